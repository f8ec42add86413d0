// Values as the KV storage keeps them.
#pragma once

#include <cuda_fp16.h>

namespace tandem::gpu {

__device__ inline void narrow(float v, float& out) {
  out = v;
}
__device__ inline void narrow(float v, __half& out) {
  out = __float2half_rn(v);
}

}  // namespace tandem::gpu
