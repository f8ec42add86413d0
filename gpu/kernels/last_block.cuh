// Grids whose last block goes on with what the others have made.
#pragma once

#include <cstdint>

namespace tandem {
namespace {

// By all threads of a block, after what they have written. Whether this block is the last of `count` to come here; what
// the others wrote can then be read (past the L1 cache). *arrived is 0, and is again when all have come.
__device__ __forceinline__ bool comes_last(std::uint32_t* arrived, unsigned count) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicInc(arrived, count - 1) == count - 1;  // the last one sets it back to 0
  __syncthreads();
  if (last) __threadfence();
  return last;
}

}  // namespace
}  // namespace tandem
