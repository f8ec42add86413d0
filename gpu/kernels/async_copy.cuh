// Copies from the card's memory to shared memory that go on beside the thread (cp.async).
#pragma once

namespace tandem {
namespace {

// `at`, `to`: shared memory.
__device__ __forceinline__ void copy16(unsigned at, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}
__device__ __forceinline__ void copy16(void* to, const void* from) {
  copy16(static_cast<unsigned>(__cvta_generic_to_shared(to)), from);
}
template <int kBytes>
__device__ __forceinline__ void copy_small(unsigned at, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(kBytes) : "memory");
}
template <int kBytes>
__device__ __forceinline__ void copy_small(void* to, const void* from) {
  copy_small<kBytes>(static_cast<unsigned>(__cvta_generic_to_shared(to)), from);
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int Pending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

}  // namespace
}  // namespace tandem
