#include "gpu/cuda_memory.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "gpu/cuda_check.h"
#include "gpu/kernels/history.h"
#include "placement/units.h"
#include "runtime/sequence_state.h"

namespace tandem {

namespace {
gpu::DeviceHistory on_card(const HistoryRows& h) {
  return {h.rows, h.window, h.depth, h.width};
}
}  // namespace

std::shared_ptr<std::uint8_t> CudaMemory::allocate(std::size_t bytes) {
  ++allocations_;
  void* memory = nullptr;
  const std::size_t size = std::max<std::size_t>(bytes, 1);
  if (const cudaError_t error = cudaMalloc(&memory, size); error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    std::size_t free = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&free, &total));
    fail_input(
        "the card's memory: expected {} more, found {} free of {} ({} of it are ours). Fix: close what else uses the "
        "card (nvidia-smi lists it), or give less: --vram, --context, fewer --slots",
        format_bytes(static_cast<std::int64_t>(size)), format_bytes(static_cast<std::int64_t>(free)),
        format_bytes(static_cast<std::int64_t>(total)), format_bytes(static_cast<std::int64_t>(this->bytes())));
  }
  CUDA_CHECK(cudaMemsetAsync(memory, 0, size, stream_));
  *bytes_ += size;
  return {static_cast<std::uint8_t*>(memory), [counter = bytes_, size](std::uint8_t* gone) {
            *counter -= size;
            static_cast<void>(cudaFree(gone));  // waits for what still uses it
          }};
}

std::shared_ptr<std::uint8_t> CudaMemory::allocate_staging(std::size_t bytes) {
  ++allocations_;
  void* memory = nullptr;
  const std::size_t size = std::max<std::size_t>(bytes, 1);
  if (cudaHostAlloc(&memory, size, cudaHostAllocMapped | cudaHostAllocPortable) != cudaSuccess)
    fail_input(
        "memory: expected {} that can be locked for the card, found less. Fix: close other programs, or a smaller "
        "--prefill-chunk",
        format_bytes(static_cast<std::int64_t>(size)));
  std::fill_n(static_cast<std::uint8_t*>(memory), size, std::uint8_t{0});
  return {static_cast<std::uint8_t*>(memory), [](std::uint8_t* gone) { static_cast<void>(cudaFreeHost(gone)); }};
}

void CudaMemory::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_));
}
void CudaMemory::zero(void* to, std::size_t bytes) {
  if (bytes > 0) CUDA_CHECK(cudaMemsetAsync(to, 0, bytes, stream_));
}
void CudaMemory::write(void* to, const void* host, std::size_t bytes) {
  if (bytes == 0) return;
  CUDA_CHECK(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, stream_));
  CUDA_CHECK(cudaStreamSynchronize(stream_));
}
void CudaMemory::read(void* host, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  CUDA_CHECK(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, stream_));
  CUDA_CHECK(cudaStreamSynchronize(stream_));
}
void CudaMemory::send(void* to, const void* staging, std::size_t bytes) {
  if (bytes > 0) CUDA_CHECK(cudaMemcpyAsync(to, staging, bytes, cudaMemcpyHostToDevice, stream_));
}
void CudaMemory::fetch(void* staging, const void* from, std::size_t bytes) {
  if (bytes > 0) CUDA_CHECK(cudaMemcpyAsync(staging, from, bytes, cudaMemcpyDeviceToHost, stream_));
}

void CudaMemory::commit_rows(const HistoryRows& history, ConstRows x) {
  gpu::commit_rows(on_card(history), x, stream_);
}

void CudaMemory::keep_rows(std::span<const HistoryRows> list, std::size_t n) {
  kept_.clear();
  for (const HistoryRows& history : list) kept_.push_back(on_card(history));
  gpu::keep_rows(kept_.data(), kept_.size(), nullptr, n, stream_);
}

void CudaMemory::log_rows(const HistoryRows& history, std::size_t, ConstRows x) {
  CHECK(pending_ != nullptr, "no count of the open window's rows");
  gpu::log_rows(on_card(history), kMaxWindow, pending_, x, stream_);
}

}  // namespace tandem
