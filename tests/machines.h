// Every machine of this build, for tests that hold them against ReferenceOps. A new machine is one more entry.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "cpu/cpu_ops.h"
#include "cpu/reference_ops.h"

namespace tandem::testing {

struct Machine {
  std::string name;  // part of the test's name: letters and digits
  std::function<std::unique_ptr<Ops>()> make;

  friend void PrintTo(const Machine& machine, std::ostream* out) { *out << machine.name; }
};

// The reference is in the list because row purity, guards and unchanged inputs are asked of it too.
inline const std::vector<Machine>& machines() {
  static const std::vector<Machine> list = {
      {"Reference", [] { return make_reference_ops(); }},
      {"Cpu1", [] { return make_cpu_ops(1); }},
      {"Cpu2", [] { return make_cpu_ops(2); }},
  };
  return list;
}

// Base of the tests that run once per machine.
class MachineTest : public ::testing::TestWithParam<Machine> {
 protected:
  Ops& machine() const { return *machine_; }

 private:
  std::unique_ptr<Ops> machine_ = GetParam().make();
};

inline std::string machine_name(const ::testing::TestParamInfo<Machine>& info) {
  return info.param.name;
}

}  // namespace tandem::testing

#define INSTANTIATE_FOR_MACHINES(suite)                                                    \
  INSTANTIATE_TEST_SUITE_P(All, suite, ::testing::ValuesIn(::tandem::testing::machines()), \
                           ::tandem::testing::machine_name)
