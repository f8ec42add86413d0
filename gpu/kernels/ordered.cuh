// Floats as integers of the same order.
#pragma once

#include <cstdint>

namespace tandem {

// a > b exactly when ordered(a) > ordered(b), for a and b that are not NaN; -0 and +0 are equal. Never 0.
__device__ inline std::uint32_t ordered(float v) {
  const std::uint32_t bits = __float_as_uint(v + 0.0F);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

// The float that ordered() was given; +0 for -0.
__device__ inline float from_ordered(std::uint32_t key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7FFFFFFFU : ~key);
}

}  // namespace tandem
