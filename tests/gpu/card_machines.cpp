// The machine of the card's test programs.
#include "tests/gpu/card_ops.h"
#include "tests/machines.h"

namespace tandem::testing {

const std::vector<Machine>& machines() {
  static const std::vector<Machine> list = {{"Card", make_card_ops}};
  return list;
}

}  // namespace tandem::testing
