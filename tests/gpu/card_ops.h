// The float kernels of the card as an Ops over host memory: arguments go up, one launch, results come down. So the
// tests of the operations (tests/ops) hold for the kernels as they are.
#pragma once

#include <memory>
#include <string>

#include "runtime/ops.h"

namespace tandem::testing {

// Null without a card; *why_not then says why. Products are those of float weights only.
std::unique_ptr<Ops> make_card_ops(std::string* why_not);

}  // namespace tandem::testing
