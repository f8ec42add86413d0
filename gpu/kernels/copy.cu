// Implements  a copy and a read of device memory.
// When        benchmarks and doctor: the roof of every kernel that is bound by memory.
// How         16 bytes per thread and step, four steps in flight, consecutive threads on consecutive addresses.
// Measured    see bench/results: the figures of the same run stand beside those of the kernels.
#include "gpu/kernels/copy.h"

#include <cstdint>

#include "gpu/cuda_check.h"

namespace tandem {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kUnroll = 4;

__global__ void copy_kernel(uint4* to, const uint4* from, std::size_t n) {
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * kThreads * kUnroll + threadIdx.x;
  uint4 v[kUnroll];
#pragma unroll
  for (unsigned i = 0; i < kUnroll; ++i)
    if (first + i * kThreads < n) v[i] = from[first + i * kThreads];
#pragma unroll
  for (unsigned i = 0; i < kUnroll; ++i)
    if (first + i * kThreads < n) to[first + i * kThreads] = v[i];
}

__global__ void read_kernel(unsigned* never, const uint4* from, std::size_t n) {
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * kThreads * kUnroll + threadIdx.x;
  unsigned sum = 0;
#pragma unroll
  for (unsigned i = 0; i < kUnroll; ++i)
    if (first + i * kThreads < n) {
      const uint4 v = from[first + i * kThreads];
      sum += v.x ^ v.y ^ v.z ^ v.w;
    }
  if (sum == 0xDEADBEEFU) *never = sum;
}

unsigned blocks(std::size_t n) {
  constexpr std::size_t kPerBlock = std::size_t{kThreads} * kUnroll;
  return static_cast<unsigned>((n + kPerBlock - 1) / kPerBlock);
}

}  // namespace

void launch_copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  const std::size_t n = bytes / sizeof(uint4);
  if (n == 0) return;
  copy_kernel<<<blocks(n), kThreads, 0, stream>>>(static_cast<uint4*>(to), static_cast<const uint4*>(from), n);
  CUDA_CHECK_LAUNCH();
}

void launch_read(unsigned* never, const void* from, std::size_t bytes, cudaStream_t stream) {
  const std::size_t n = bytes / sizeof(uint4);
  if (n == 0) return;
  read_kernel<<<blocks(n), kThreads, 0, stream>>>(never, static_cast<const uint4*>(from), n);
  CUDA_CHECK_LAUNCH();
}

bool has_kernels_for_device() {
  cudaFuncAttributes attributes;
  const bool found = cudaFuncGetAttributes(&attributes, copy_kernel) == cudaSuccess;
  static_cast<void>(cudaGetLastError());
  return found;
}

}  // namespace tandem
