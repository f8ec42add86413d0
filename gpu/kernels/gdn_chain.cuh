// What the kernels of the delta rule share: a thread has one segment of a column, 32 key elements, and the segments of
// a column are neighbouring threads.
#pragma once

#include "gpu/kernels/reduce.cuh"

namespace tandem::gpu {
namespace {

constexpr unsigned kChain = 32;  // key elements of a segment
constexpr unsigned kPitch = 36;  // floats between two in shared memory: threads of four segments read four banks

// A segment of a row of keys or queries.
__device__ __forceinline__ void load_chain(const float* row, unsigned segment, float (&x)[kChain]) {
  const auto* quads = reinterpret_cast<const float4*>(row + segment * kPitch);
#pragma unroll
  for (unsigned i = 0; i < kChain / 4; ++i) {
    const float4 quad = quads[i];
    x[4 * i] = quad.x, x[4 * i + 1] = quad.y, x[4 * i + 2] = quad.z, x[4 * i + 3] = quad.w;
  }
}
// The tree over the segments of a thread's column.
template <unsigned kSegments>
__device__ __forceinline__ float segment_tree(float v) {
#pragma unroll
  for (unsigned stride = 1; stride < kSegments; stride *= 2) v = v + __shfl_xor_sync(kAllLanes, v, stride);
  return v;
}

}  // namespace
}  // namespace tandem::gpu
