// The product of float weights with rows of floats (gpu/kernels/float_matmul.h), for kernels.
#pragma once

#include "gpu/kernels/float_types.cuh"
#include "gpu/kernels/launch.cuh"
#include "gpu/kernels/reduce.cuh"

namespace tandem::gpu {
namespace {

template <typename T>
struct ProductPart {
  const T* weights;  // [n, cols]
  float* y;          // [rows, n], rows y_stride apart
  std::size_t y_stride;
  unsigned n;
  float scale;
};
// One or more matrices that meet the same rows.
template <typename T>
struct ProductArgs {
  ProductPart<T> part[kMaxFloatMatrices];
  unsigned parts;
  unsigned n, cols;  // of all parts
  const float* x;
  std::size_t x_stride;
  unsigned rows;  // of x
};

constexpr unsigned kProductWarps = 16;  // of a block, at most
constexpr std::size_t kProductSharedBytes = 48 * 1024;

// By all threads of a block: kRows rows of x from first_row on times kOut rows of W from first_out on. Where there are
// fewer, the last one is computed again and not written. `lanes`: shared, [kOut * kRows][segments][32]. Calls
// begin_kernel().
template <typename T, unsigned kRows, unsigned kOut>
__device__ __forceinline__ void product_block(const ProductArgs<T>& a, const ProductPart<T>& part, unsigned first_out,
                                              unsigned first_row, float* lanes) {
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  const unsigned segments = (a.cols + kSegment - 1) / kSegment;
  // With four rows of W there is no register left to hold them over the wait.
  constexpr bool kWeightsFirst = kOut < 4;
  if (!kWeightsFirst || warp >= segments) begin_kernel();
  for (unsigned s = warp; s < segments; s += warps) {
    const unsigned first = s * kSegment + lane;
    T raw[kOut][kSegmentSteps];
#pragma unroll
    for (unsigned o = 0; o < kOut; ++o) {
      const T* row = part.weights + std::size_t{min(first_out + o, part.n - 1)} * a.cols;
#pragma unroll
      for (unsigned k = 0; k < kSegmentSteps; ++k)
        if (first + k * kLanes < a.cols) raw[o][k] = row[first + k * kLanes];
    }
    if (kWeightsFirst && s == warp) begin_kernel();  // the first weights are on their way
#pragma unroll
    for (unsigned r = 0; r < kRows; ++r) {
      // With four rows of W in registers, those of x come one by one: together they would cost loads in flight.
      if (kOut == 4 && first_row + r >= a.rows) break;
      const float* x = a.x + min(first_row + r, a.rows - 1) * a.x_stride;
      float v[kSegmentSteps];
#pragma unroll
      for (unsigned k = 0; k < kSegmentSteps; ++k)
        if (first + k * kLanes < a.cols) v[k] = x[first + k * kLanes];
#pragma unroll
      for (unsigned o = 0; o < kOut; ++o) {
        float acc = 0.0F;
#pragma unroll
        for (unsigned k = 0; k < kSegmentSteps; ++k)
          if (first + k * kLanes < a.cols) acc = __fmaf_rn(widen(raw[o][k]), v[k], acc);
        lanes[((o * kRows + r) * segments + s) * kWarp + lane] = acc;
      }
    }
  }
  __syncthreads();
  for (unsigned i = warp; i < kOut * kRows; i += warps) {
    const unsigned out = first_out + i / kRows, row = first_row + i % kRows;
    if (row >= a.rows || out >= part.n) continue;
    const float dot = warp_tree(strided_tree(lanes + i * segments * kWarp + lane, kWarp, segments));
    if (lane == 0) part.y[row * part.y_stride + out] = dot * part.scale;
  }
}

// Warps of a block: each with the same number of segments, as far as that goes.
inline unsigned product_warps(unsigned cols) {
  const unsigned segments = (cols + kSegment - 1) / kSegment, rounds = (segments + kProductWarps - 1) / kProductWarps;
  return (segments + rounds - 1) / rounds;
}
inline std::size_t product_shared_bytes(unsigned cols, unsigned results) {
  return std::size_t{results} * ((cols + kSegment - 1) / kSegment) * kWarp * sizeof(float);
}

}  // namespace
}  // namespace tandem::gpu
