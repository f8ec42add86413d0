// The reductions of the contract (docs/numerics.md, R4) in the form that a warp does them: lane l of a warp is lane l
// of R4. Additions commute bit for bit, so an exchange with the neighbour at distance 1, 2, 4, ... is tree_sum.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/exact_math.h"

namespace tandem {

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFU;
inline constexpr unsigned kSegmentSteps = kSegment / kLanes;  // elements of a lane in one segment
inline constexpr unsigned kMaxSegments = 64;                  // of one row that a kernel here takes: 16384 elements

// The sum of the 32 lanes, in every lane.
__device__ inline float warp_tree(float v) {
#pragma unroll
  for (unsigned stride = 1; stride < kWarp; stride *= 2) v = v + __shfl_xor_sync(kAllLanes, v, stride);
  return v;
}

// tree_sum of p[0], p[stride], ..., `count` values, 1 <= count <= kPadded = the next power of two.
template <unsigned kPadded>
__device__ inline float padded_tree(const float* p, unsigned stride, unsigned count) {
  float v[kPadded];
#pragma unroll
  for (unsigned i = 0; i < kPadded; ++i) v[i] = i < count ? p[i * stride] : 0.0F;
#pragma unroll
  for (unsigned step = 1; step < kPadded; step *= 2)
#pragma unroll
    for (unsigned i = 0; i < kPadded; i += 2 * step) v[i] = v[i] + v[i + step];
  return v[0];
}
__device__ inline float strided_tree(const float* p, unsigned stride, unsigned count) {
  if (count == 1) return p[0];
  if (count == 2) return padded_tree<2>(p, stride, count);
  if (count <= 4) return padded_tree<4>(p, stride, count);
  if (count <= 8) return padded_tree<8>(p, stride, count);
  if (count <= 16) return padded_tree<16>(p, stride, count);
  const float low = padded_tree<16>(p, stride, 16);
  if (count <= 32) return low + padded_tree<16>(p + 16 * stride, stride, count - 16);
  const float half = low + padded_tree<16>(p + 16 * stride, stride, 16);
  const float third = padded_tree<16>(p + 32 * stride, stride, count < 48 ? count - 32 : 16);
  return half + (third + (count > 48 ? padded_tree<16>(p + 48 * stride, stride, count - 48) : 0.0F));
}

// Lane `lane` of one segment of the dot product of a and b.
__device__ inline float segment_dot(const float* a, const float* b, unsigned n, unsigned segment, unsigned lane) {
  float acc = 0.0F;
  const unsigned first = segment * kSegment + lane;
#pragma unroll
  for (unsigned k = 0; k < kSegmentSteps; ++k) {
    const unsigned i = first + k * kLanes;
    if (i < n) acc = __fmaf_rn(a[i], b[i], acc);
  }
  return acc;
}

// dot_float_ref(a, b, n) by the whole block, in every thread. `lanes` is shared, [segments][32]. The caller
// synchronises before it uses `lanes` again.
__device__ inline float block_dot(const float* a, const float* b, unsigned n, float* lanes) {
  const unsigned lane = threadIdx.x % kWarp, segments = (n + kSegment - 1) / kSegment;
  for (unsigned s = threadIdx.x / kWarp; s < segments; s += blockDim.x / kWarp)
    lanes[s * kWarp + lane] = segment_dot(a, b, n, s, lane);
  __syncthreads();
  return warp_tree(strided_tree(lanes + lane, kWarp, segments));
}

// Threads of a block that owns one row of n elements: a warp per segment.
inline unsigned row_threads(std::size_t n) {
  const std::size_t segments = (n + kSegment - 1) / kSegment;
  const std::size_t rounds = (segments + 31) / 32;
  return static_cast<unsigned>((segments + rounds - 1) / rounds) * kWarp;
}

// One exchange of warp_trees: lanes `kStride` apart add what the other keeps, so each keeps half of 2 * kHalf values.
template <unsigned kHalf, unsigned kStride>
__device__ __forceinline__ void halve_values(float* v) {
  if constexpr (kHalf > 0) {
    const bool upper = (threadIdx.x & kStride) != 0;
#pragma unroll
    for (unsigned i = 0; i < kHalf; ++i) {
      const float other = __shfl_xor_sync(kAllLanes, upper ? v[i] : v[i + kHalf], kStride);
      v[i] = (upper ? v[i + kHalf] : v[i]) + other;
    }
    halve_values<kHalf / 2, kStride * 2>(v);
  }
}

// Sums kValues values over the 32 lanes at once, each by the tree: kValues - 1 exchanges (and those left over) in place
// of 5 * kValues. Afterwards lane l holds the sum of value lane_value<kValues>(l). Destroys v.
template <unsigned kValues>
__device__ __forceinline__ float warp_trees(float (&v)[kValues]) {
  static_assert((kValues & (kValues - 1)) == 0 && kValues <= kWarp);
  halve_values<kValues / 2, 1>(v);
  float sum = v[0];
#pragma unroll
  for (unsigned rest = kValues; rest < kWarp; rest *= 2) sum = sum + __shfl_xor_sync(kAllLanes, sum, rest);
  return sum;
}
template <unsigned kValues>
__device__ __forceinline__ unsigned lane_value(unsigned lane) {
  unsigned value = 0, stride = 1;
#pragma unroll
  for (unsigned half = kValues / 2; half > 0; half /= 2, stride *= 2)
    if ((lane & stride) != 0) value += half;
  return value;
}

// 1 / sqrt of the sum of n squares (kMean: of their mean) plus eps.
template <bool kMean>
__device__ inline float inverse_root(float sum, unsigned n, float eps) {
  return 1.0F / __fsqrt_rn((kMean ? sum / static_cast<float>(n) : sum) + eps);
}

// Value i of a normed head after the rotation of its first 2 * half values in pairs `half` apart (Ops::norm_rope), by
// the pair's angle.
__device__ inline float rotated(const float* normed, unsigned i, unsigned half, float cos, float sin) {
  const float own = normed[i];
  if (i >= 2 * half) return own;
  const bool low = i < half;
  const float other = normed[low ? i + half : i - half];
  return __fmaf_rn(low ? -other : other, sin, own * cos);
}

}  // namespace tandem
