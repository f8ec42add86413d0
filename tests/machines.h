// The machines that tests hold against ReferenceOps.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "runtime/ops.h"

namespace tandem::testing {

struct Machine {
  std::string name;                                                // part of the test's name: letters and digits
  std::function<std::unique_ptr<Ops>(std::string* why_not)> make;  // null: see *why_not

  friend void PrintTo(const Machine& machine, std::ostream* out) { *out << machine.name; }
};

// The machines of a test program: those of the host (tests/machines.cpp), or the card's kernels (tests/gpu).
const std::vector<Machine>& machines();

// Base of the tests that run once per machine; skipped, with the reason, where the machine is not to be had.
class MachineTest : public ::testing::TestWithParam<Machine> {
 protected:
  void SetUp() override {
    std::string why_not;
    machine_ = GetParam().make(&why_not);
    if (machine_ == nullptr) GTEST_SKIP() << why_not;
  }
  Ops& machine() const { return *machine_; }

 private:
  std::unique_ptr<Ops> machine_;
};

inline std::string machine_name(const ::testing::TestParamInfo<Machine>& info) {
  return info.param.name;
}

}  // namespace tandem::testing

#define INSTANTIATE_FOR_MACHINES(suite)                                                    \
  INSTANTIATE_TEST_SUITE_P(All, suite, ::testing::ValuesIn(::tandem::testing::machines()), \
                           ::tandem::testing::machine_name)
