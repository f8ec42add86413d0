#include "cpu/cpu_ops.h"
#include "tests/e2e/model_machine.h"

namespace tandem::testing {

std::unique_ptr<Ops> make_model_machine(int workers) {
  return make_cpu_ops(workers);
}
const std::string& no_machine() {
  static const std::string none;
  return none;
}

}  // namespace tandem::testing
