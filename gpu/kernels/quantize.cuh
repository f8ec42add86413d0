// R2 for one block of 32 (docs/numerics.md), shared by the kernels that quantise.
#pragma once

namespace tandem {
namespace {

struct BlockScale {
  float inverse, d;
};
// From the largest magnitude of a block. A block whose 127 / amax overflows counts as zero.
__device__ __forceinline__ BlockScale block_scale(float amax) {
  float inverse = amax > 0.0F ? 127.0F / amax : 0.0F;
  if (__float_as_uint(inverse) == 0x7F800000U) inverse = amax = 0.0F;
  return {inverse, amax / 127.0F};
}
__device__ __forceinline__ bool is_finite(float x) {
  return (__float_as_uint(x) & 0x7F800000U) != 0x7F800000U;
}

}  // namespace
}  // namespace tandem
