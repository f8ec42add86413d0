// What the launches of a READ (hc_read.h) share.
#pragma once

#include "gpu/kernels/hc_read.h"
#include "gpu/kernels/quantize.cuh"

namespace tandem {
namespace {

inline QuantOut quant_out(const HcQuant& q) {
  return {q.q, q.d, q.s, q.bad};
}

// tree_sum of v[0 .. 8), padded with +0 by the caller, as far as strides are below `padded`.
__device__ __forceinline__ float tree_of_8(float* v, int padded) {
#pragma unroll
  for (int stride = 1; stride < 8; stride *= 2) {
    if (stride < padded) {
#pragma unroll
      for (int i = 0; i < 8; i += 2 * stride) v[i] = v[i] + v[i + stride];
    }
  }
  return v[0];
}

}  // namespace
}  // namespace tandem
