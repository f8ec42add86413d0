// What the kernels over packed tiles share: asynchronous copies to shared memory, and integers as floats.
#pragma once

#include <cstdint>

namespace tandem {
namespace {

constexpr int kMagic = 0x4B400000;          // 1.5 * 2^23
constexpr float kMagicFloat = 12582912.0F;  // as a float
constexpr int kSegmentBlocks = 8;
constexpr int kRows = 16;  // of a tile

__device__ __forceinline__ void copy16(std::uint8_t* to, const void* from) {
  const auto at = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}
template <int kBytes>
__device__ __forceinline__ void copy_small(std::uint8_t* to, const void* from) {
  const auto at = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(kBytes) : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int Pending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

__device__ __forceinline__ float small_int(int v) {  // |v| < 2^22, without the slow conversion
  return __int_as_float(kMagic + v) - kMagicFloat;
}
__device__ __forceinline__ float magic_float(int bits) {
  return __int_as_float(bits) - kMagicFloat;
}

}  // namespace
}  // namespace tandem
