// The elementary functions and reductions of the arithmetic contract (docs/numerics.md, R1, R4, R6), for every
// compiler and machine: plain binary32 operations in a fixed order, fused only where fma is written. The same source
// compiled with vector flags gives the same bits.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define TANDEM_EXACT __host__ __device__ inline
#else
#define TANDEM_EXACT inline
#endif

namespace tandem {

namespace detail {
TANDEM_EXACT std::uint32_t float_bits(float x) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}
TANDEM_EXACT float bits_float(std::uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}
}  // namespace detail

// e^x. x is clamped to [-87, 88]; relative error below 1.2e-7 (tests/ops/test_exact_math.cpp sweeps every exponent).
// The polynomial interpolates e^r at the seven Chebyshev nodes of |r| <= ln2/2; with its first
// three coefficients rounded its own error is 2.0e-8.
TANDEM_EXACT float exp_c(float x) {
  x = x > 88.0F ? 88.0F : x;
  x = x < -87.0F ? -87.0F : x;
  const float n = __builtin_rintf(x * 0x1.715476p+0F);
  float r = __builtin_fmaf(n, -0x1.62e430p-1F, x);  // ln 2 rounded to binary32
  r = __builtin_fmaf(n, 0x1.05c610p-29F, r);        // and what the rounding lost
  float p = 0x1.6d758cp-10F;
  p = __builtin_fmaf(p, r, 0x1.127000p-7F);
  p = __builtin_fmaf(p, r, 0x1.5554acp-5F);
  p = __builtin_fmaf(p, r, 0x1.555404p-3F);
  p = __builtin_fmaf(p, r, 0.5F);
  p = __builtin_fmaf(p, r, 1.0F);
  p = __builtin_fmaf(p, r, 1.0F);
  const auto shift = static_cast<std::uint32_t>(static_cast<std::int32_t>(n)) << 23;
  return detail::bits_float(detail::float_bits(p) + shift);
}

// 1 / (1 + e^-x), and x / (1 + e^-x).
TANDEM_EXACT float sigmoid_c(float x) {
  return 1.0F / (1.0F + exp_c(-x));
}
TANDEM_EXACT float silu_c(float x) {
  return x / (1.0F + exp_c(-x));
}

// ln x for normal x > 0: x = 2^k m with m in [sqrt(1/2), sqrt(2)), ln m = 2 atanh((m-1)/(m+1)) by an odd series.
TANDEM_EXACT float log_c(float x) {
  const std::uint32_t bits = detail::float_bits(x);
  const std::uint32_t from_root = bits - 0x3F3504F3U;  // sqrt(1/2)
  const std::int32_t k = static_cast<std::int32_t>(from_root) >> 23;
  const float m = detail::bits_float((from_root & 0x007FFFFFU) + 0x3F3504F3U);
  const float s = (m - 1.0F) / (m + 1.0F);
  const float z = s * s;
  float p = 0x1.c71c72p-4F;                  // 1/9
  p = __builtin_fmaf(p, z, 0x1.24924ap-3F);  // 1/7
  p = __builtin_fmaf(p, z, 0x1.99999ap-3F);  // 1/5
  p = __builtin_fmaf(p, z, 0x1.555556p-2F);  // 1/3
  p = p * z;
  const float twice = s + s;
  const float series = __builtin_fmaf(twice, p, twice);
  const float exponent = static_cast<float>(k);
  return __builtin_fmaf(exponent, 0x1.62e430p-1F, __builtin_fmaf(exponent, -0x1.05c610p-29F, series));
}

// ln(1 + e^x) = max(x, 0) + log1p(e^-|x|). log1p(y) is ln(u) * y / (u - 1) with u = 1 + y rounded, which cancels the
// rounding of u; for y that vanishes in the sum it is y itself.
TANDEM_EXACT float softplus_c(float x) {
  const float y = exp_c(x > 0.0F ? -x : x);
  const float u = 1.0F + y;
  const float delta = u - 1.0F;
  const float tail = delta == 0.0F ? y : log_c(u) * (y / delta);
  return (x > 0.0F ? x : 0.0F) + tail;
}

// Elements of one segment of a float reduction, its lanes, and the segment of a key axis (R4, R7).
inline constexpr std::size_t kSegment = 256;
inline constexpr std::size_t kLanes = 32;
inline constexpr std::size_t kKeySegment = 64;

// Pairwise sum of v[0..n), destroying v: padded with +0 to a power of two, neighbours at stride 1, 2, 4, ...
// v must have room for the padding. Returns the sum; +0 for n == 0.
TANDEM_EXACT float tree_sum(float* v, std::size_t n) {
  if (n == 0) return 0.0F;
  std::size_t padded = 1;
  while (padded < n) padded *= 2;
  for (std::size_t i = n; i < padded; ++i) v[i] = 0.0F;
  for (std::size_t stride = 1; stride < padded; stride *= 2)
    for (std::size_t i = 0; i < padded; i += 2 * stride) v[i] = v[i] + v[i + stride];
  return v[0];
}

}  // namespace tandem
