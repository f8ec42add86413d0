#include "gpu/device_buffer.h"

#include "gpu/cuda_check.h"

namespace tandem::detail {

void* device_allocate(std::size_t bytes) {
  void* memory = nullptr;
  CUDA_CHECK(cudaMalloc(&memory, bytes));
  return memory;
}
void* pinned_allocate(std::size_t bytes) {
  void* memory = nullptr;
  CUDA_CHECK(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
  return memory;
}
// Errors are not looked at: a buffer with static storage may outlive the driver.
void device_release(void* memory) {
  static_cast<void>(cudaFree(memory));
}
void pinned_release(void* memory) {
  static_cast<void>(cudaFreeHost(memory));
}
void copy_to_device(void* device, const void* host, std::size_t bytes) {
  if (bytes > 0) CUDA_CHECK(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
}
void copy_to_host(void* host, const void* device, std::size_t bytes) {
  if (bytes > 0) CUDA_CHECK(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
}

}  // namespace tandem::detail
