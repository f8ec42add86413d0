// Philox4x32-10: a counter-based random number generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// SC11). A value is a function of (key, counter) alone, so noise for any position and token can be had in any order, on
// any machine, as often as needed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/exact_math.h"

namespace tandem {

struct PhiloxBlock {
  std::uint32_t lane[4];
};

TANDEM_EXACT PhiloxBlock philox4x32_10(PhiloxBlock counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53U} * counter.lane[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57U} * counter.lane[2];
    counter =
        PhiloxBlock{{static_cast<std::uint32_t>(b >> 32) ^ counter.lane[1] ^ key0, static_cast<std::uint32_t>(b),
                     static_cast<std::uint32_t>(a >> 32) ^ counter.lane[3] ^ key1, static_cast<std::uint32_t>(a)}};
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return counter;
}

// The 32 random bits of one (seed, position, token): key = seed (low word, high word), counter = (position low,
// position high, token / 4, 0), lane token % 4 (docs/numerics.md, R8).
TANDEM_EXACT std::uint32_t sampling_bits(std::uint64_t seed, std::uint64_t position, std::uint32_t token) {
  const PhiloxBlock counter{
      {static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32), token / 4, 0}};
  const PhiloxBlock block =
      philox4x32_10(counter, static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
  return block.lane[token % 4];
}

// Standard Gumbel noise -ln(-ln u) from 32 bits r: u = 1 - v with v = (r + 1/2) 2^-32 rounded to binary32 and held
// below 1. -ln u is taken as -log1p(-v), so that all 32 bits count where it matters: v near 0 makes the largest noise.
// Lies in (-2.82, kMaxGumbel].
inline constexpr float kMaxGumbel = 22.875F;  // 33 ln 2 = 22.8739
TANDEM_EXACT float gumbel_from_bits(std::uint32_t r) {
  float v = __builtin_fmaf(static_cast<float>(r), 0x1p-32F, 0x1p-33F);
  v = v > 0x1.fffffep-1F ? 0x1.fffffep-1F : v;
  const float u = 1.0F - v;
  const float lost = 1.0F - u;  // what the rounding of u left of v
  const float exponential = lost == 0.0F ? v : -log_c(u) * (v / lost);
  return -log_c(exponential);
}

TANDEM_EXACT float gumbel_noise(std::uint64_t seed, std::uint64_t position, std::uint32_t token) {
  return gumbel_from_bits(sampling_bits(seed, position, token));
}

}  // namespace tandem
