// What `tandem doctor` measures of a card.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <vector>

#include "gpu/cuda_check.h"
#include "gpu/device_buffer.h"
#include "gpu/gpu_ops.h"
#include "gpu/kernels/copy.h"

namespace tandem {

namespace {

// Best GB/s of `repeats` runs of `launch`, which moves `bytes`.
template <typename Launch>
double best_gbps(cudaStream_t stream, std::size_t bytes, int repeats, Launch&& launch) {
  cudaEvent_t begin = nullptr, end = nullptr;
  CUDA_CHECK(cudaEventCreate(&begin));
  CUDA_CHECK(cudaEventCreate(&end));
  float best = 0;
  for (int i = 0; i <= repeats; ++i) {
    CUDA_CHECK(cudaEventRecord(begin, stream));
    launch();
    CUDA_CHECK(cudaEventRecord(end, stream));
    CUDA_CHECK(cudaEventSynchronize(end));
    float ms = 0;
    CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (i > 0 && (best == 0 || ms < best)) best = ms;  // the first one warms up
  }
  CUDA_CHECK(cudaEventDestroy(begin));
  CUDA_CHECK(cudaEventDestroy(end));
  return static_cast<double>(bytes) / 1e6 / static_cast<double>(best);
}

}  // namespace

std::optional<Hardware::Gpu> probe_gpu(int device, std::string* why_not) {
  const std::vector<GpuCard> cards = list_gpus(why_not);
  if (cards.empty()) return {};
  if (static_cast<std::size_t>(device) >= cards.size()) {
    *why_not = fmt::format("there is no cuda:{}", device);
    return {};
  }
  *why_not = cards[static_cast<std::size_t>(device)].problem;
  if (!why_not->empty()) return {};

  Hardware::Gpu card = card_facts(device);
  cudaStream_t stream = nullptr;
  CUDA_CHECK(cudaStreamCreate(&stream));
  // Far above the caches, far below what is free.
  const std::size_t bytes =
      std::min<std::size_t>(std::size_t{1} << 30, static_cast<std::size_t>(card.vram_free) / 4) / 4096 * 4096;
  {
    DeviceBuffer<std::uint8_t> memory(bytes);
    DeviceBuffer<unsigned> never(1);
    card.copy_gbps = best_gbps(stream, bytes, 5, [&] { launch_read(never.get(), memory.get(), bytes, stream); });
    const std::size_t part = std::min<std::size_t>(bytes, std::size_t{256} << 20);
    PinnedBuffer<std::uint8_t> host(part);
    card.pcie_to_card_gbps = best_gbps(stream, part, 3, [&] {
      CUDA_CHECK(cudaMemcpyAsync(memory.get(), host.get(), part, cudaMemcpyHostToDevice, stream));
    });
    card.pcie_from_card_gbps = best_gbps(stream, part, 3, [&] {
      CUDA_CHECK(cudaMemcpyAsync(host.get(), memory.get(), part, cudaMemcpyDeviceToHost, stream));
    });
  }
  CUDA_CHECK(cudaStreamDestroy(stream));
  return card;
}

}  // namespace tandem
