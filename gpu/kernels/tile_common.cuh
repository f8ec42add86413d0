// What the kernels over packed tiles share: their shapes, and integers as floats.
#pragma once

#include <cstdint>

#include "gpu/kernels/async_copy.cuh"

namespace tandem {
namespace {

constexpr int kMagic = 0x4B400000;          // 1.5 * 2^23
constexpr float kMagicFloat = 12582912.0F;  // as a float
constexpr int kSegmentBlocks = 8;
constexpr int kRows = 16;  // of a tile

__device__ __forceinline__ float small_int(int v) {  // |v| < 2^22, without the slow conversion
  return __int_as_float(kMagic + v) - kMagicFloat;
}
__device__ __forceinline__ float magic_float(int bits) {
  return __int_as_float(bits) - kMagicFloat;
}

}  // namespace
}  // namespace tandem
