// Live check of L2 (docs/numerics.md): in every pass, one expert of every layer that the card computed for the first
// row is computed again by the CPU from the file's bytes, and compared bit for bit.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "gpu/cuda_memory.h"
#include "runtime/ops.h"

namespace tandem {

class ExpertCheck {
 public:
  explicit ExpertCheck(CudaMemory& memory) : memory_(memory) {}

  // What one layer of a pass leaves behind for it, in host memory.
  struct Sample {
    const ExpertBank* bank = nullptr;
    int layer = -1;
    std::size_t used = 0, cols = 0, out = 0;
    std::shared_ptr<std::uint8_t> staging;  // ids, q, d, s of the first row; its results by rank
  };
  // Puts copies of the first row's operands and results behind the operations launched so far.
  Sample take(const ExpertBank& bank, int layer, const Routes& hits, const QuantRows& x, ConstRows y);
  // After the pass. Aborts with layer, expert and element where a bit differs.
  void compare(const std::vector<Sample>& samples, Ops& cpu);
  std::uint64_t compared() const { return compared_; }

 private:
  CudaMemory& memory_;
  std::uint64_t compared_ = 0, turn_ = 0;
  std::vector<float> result_;
};

}  // namespace tandem
