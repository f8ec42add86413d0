// R2 for one block of 32 (docs/numerics.md), shared by the kernels that quantise.
#pragma once

#include <cstddef>
#include <cstdint>

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

// Where quantised rows go: as DeviceQuant, to be written; and the first row that is not finite.
struct QuantOut {
  std::int8_t* q;
  float* d;
  std::int32_t* s;
  std::int32_t* bad;
};
// The largest of the lanes' magnitudes, which are ordered as their bits are.
__device__ __forceinline__ float warp_max(float magnitude) {
  return __uint_as_float(__reduce_max_sync(~0U, __float_as_uint(magnitude)));
}
struct HalfSums {
  int low, high;
};
// Sums of q over lanes 0 to 15 and 16 to 31, in one: each is within +-2032.
__device__ __forceinline__ HalfSums half_sums(int q, unsigned lane) {
  const int sums = __reduce_add_sync(~0U, lane < 16 ? q : q * 65536);
  const int low = static_cast<std::int16_t>(sums & 0xFFFF);
  return {low, (sums - low) >> 16};
}
// R2 of one block by a warp: lane l has value l. `block` counts from the first row's first block. What comes out of a
// block with a value that is not finite is nobody's: the caller says which row it spoils.
__device__ __forceinline__ void quantize_block(float value, unsigned lane, std::size_t block, std::int8_t* q, float* d,
                                               std::int32_t* s) {
  const BlockScale scale = block_scale(warp_max(fabsf(value)));
  const int code = __float2int_rn(value * scale.inverse);
  const HalfSums sums = half_sums(code, lane);
  q[32 * block + lane] = static_cast<std::int8_t>(code);
  if (lane < 2) s[2 * block + lane] = lane == 0 ? sums.low : sums.high;
  if (lane == 0) d[block] = scale.d;
}
__device__ __forceinline__ void quantize_by_warp(float value, unsigned lane, std::size_t block, std::int32_t row,
                                                 const QuantOut& out) {
  quantize_block(value, lane, block, out.q, out.d, out.s);
  if (!is_finite(value)) atomicMin(out.bad, row);
}

}  // namespace
}  // namespace tandem
