// The gate of Ops::gdn_gates, shared by its kernels.
#pragma once

#include "runtime/exact_math.h"

namespace tandem::gpu {

__device__ inline float decay_gate(float alpha, float dt_bias, float a) {
  return exp_c(a * softplus_c(alpha + dt_bias));
}

}  // namespace tandem::gpu
