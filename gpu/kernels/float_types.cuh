// The float types of weights, for kernels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gpu/kernels/float_matmul.h"

namespace tandem::gpu {
namespace {

__device__ __forceinline__ float widen(float v) {
  return v;
}
__device__ __forceinline__ float widen(__half v) {
  return __half2float(v);
}
__device__ __forceinline__ float widen(__nv_bfloat16 v) {
  return __bfloat162float(v);
}

// body(zero of the weight's type)
template <typename Body>
void for_type(FloatType type, Body body) {
  switch (type) {
    case FloatType::kF32:
      return body(float{});
    case FloatType::kF16:
      return body(__half{});
    case FloatType::kBf16:
      return body(__nv_bfloat16{});
  }
}

}  // namespace
}  // namespace tandem::gpu
