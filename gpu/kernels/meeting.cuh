// The steps of a meeting with the crew (gpu/handoff.h) for the kernels that take them.
#pragma once

#include "gpu/kernels/meeting.h"

namespace tandem::gpu {
namespace {

__device__ __forceinline__ void store_release(std::uint32_t* to, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ __forceinline__ std::uint32_t load_acquire(const std::uint32_t* from) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

// Row r of x to the crew, by all threads of a block. Each thread has to fence afterwards.
__device__ __forceinline__ void publish_row(const MeetingArgs& m, const QuantRowsOnCard& x, std::size_t r) {
  const std::size_t words = x.cols / 16, blocks = x.cols / 32;
  const auto* from = reinterpret_cast<const int4*>(x.q) + r * words;
  auto* to = reinterpret_cast<int4*>(m.memory.q) + r * words;
  for (std::size_t i = threadIdx.x; i < words; i += blockDim.x) to[i] = from[i];
  for (std::size_t i = threadIdx.x; i < blocks; i += blockDim.x) m.memory.d[r * blocks + i] = x.d[r * blocks + i];
  for (std::size_t i = threadIdx.x; i < words; i += blockDim.x) m.memory.s[r * words + i] = x.s[r * words + i];
}

// The last step of publishing, by one warp, after a barrier with those of its block who have written something, and
// after what other blocks have written and fenced: the release passes on what the barrier has.
__device__ __forceinline__ void ring(const MeetingArgs& m, int misses) {
  if (threadIdx.x % 32 != 0) return;
  m.memory.miss_count[m.index] = *m.misses = misses;
  store_release(m.memory.doorbell, *m.first_number + m.index);
}

}  // namespace
}  // namespace tandem::gpu
