// The machines of the host.
#include "tests/machines.h"

#include "cpu/cpu_ops.h"
#include "cpu/reference_ops.h"

namespace tandem::testing {

// The reference is in the list because row purity, guards and unchanged inputs are asked of it too.
const std::vector<Machine>& machines() {
  static const std::vector<Machine> list = {
      {"Reference", [](std::string*) { return make_reference_ops(); }},
      {"Cpu1", [](std::string*) { return make_cpu_ops(1); }},
      {"Cpu2", [](std::string*) { return make_cpu_ops(2); }},
  };
  return list;
}

}  // namespace tandem::testing
