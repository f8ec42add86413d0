// The machine that the end-to-end tests run on: the CPU, or in the card's test programs the card with a crew beside it.
// The hash that they must find is always the CPU's.
#pragma once

#include <memory>
#include <string>

#include "runtime/ops.h"

namespace tandem::testing {

// REQUIRES no_machine() empty.
std::unique_ptr<Ops> make_model_machine(int workers);
// Why there is none, for GTEST_SKIP; empty: there is one.
const std::string& no_machine();

}  // namespace tandem::testing

#define SKIP_WITHOUT_MACHINE() \
  if (!::tandem::testing::no_machine().empty()) GTEST_SKIP() << ::tandem::testing::no_machine()
