// How many bytes of weights one pass has to read, from the sizes in the file: what decode speed is measured against.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/model.h"
#include "runtime/tensor.h"

namespace tandem::bench {

struct PassBytes {
  std::uint64_t dense = 0;            // read by every pass: mixers, hyper-connections, routers, shared experts, PLE
  std::uint64_t head = 0;             // the output matrix
  std::uint64_t rows = 0;             // of one token: its embedding row and its n-gram rows
  std::vector<std::uint64_t> expert;  // of one expert, by layer
  // A pass of w rows that meets experts_met[layer] different experts.
  std::uint64_t total(std::size_t w, const std::vector<std::size_t>& experts_met) const;
};

// The trunk's bytes, as the file has them.
PassBytes pass_bytes(const Model& model);

// Different experts among the `used` highest logits of every row.
std::size_t count_experts(ConstRows logits, std::size_t used);

}  // namespace tandem::bench
