// Which cards there are, and whether one can be used.
#include <cuda_runtime_api.h>

#include <cstdlib>

#include "gpu/card_users.h"
#include "gpu/cuda_check.h"
#include "gpu/gpu_ops.h"
#include "gpu/kernels/copy.h"

namespace tandem {

namespace {

std::string version(int number) {
  return fmt::format("{}.{}", number / 1000, number % 1000 / 10);
}

// Why no card can be used at all; empty: there is one.
std::string driver_problem(int* count) {
  const cudaError_t error = cudaGetDeviceCount(count);
  static_cast<void>(cudaGetLastError());
  int driver = 0, runtime = 0;
  static_cast<void>(cudaDriverGetVersion(&driver));
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  if (driver == 0) return "no NVIDIA driver was found";
  if (error == cudaErrorInsufficientDriver)
    return fmt::format("the NVIDIA driver is too old: it supports CUDA {}, this build needs {}", version(driver),
                       version(runtime));
  if (error == cudaErrorNoDevice || (error == cudaSuccess && *count == 0)) return "no NVIDIA card was found";
  if (error != cudaSuccess) return fmt::format("CUDA cannot be started ({})", cudaGetErrorString(error));
  return {};
}

}  // namespace

std::vector<GpuCard> list_gpus(std::string* why_not) {
  // Kernels that wait for the CPU must not be loaded while one of them waits: everything is loaded at once.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  int count = 0;
  *why_not = driver_problem(&count);
  std::vector<GpuCard> cards;
  if (!why_not->empty()) return cards;
  int before = 0;
  static_cast<void>(cudaGetDevice(&before));
  for (int i = 0; i < count; ++i) {
    GpuCard& card = cards.emplace_back();
    cudaDeviceProp properties;
    CUDA_CHECK(cudaGetDeviceProperties(&properties, i));
    card.device = i;
    card.name = properties.name;
    card.major = properties.major;
    card.minor = properties.minor;
    card.bytes = properties.totalGlobalMem;
    if (properties.major < 8) {
      card.problem =
          fmt::format("{} has compute capability {}.{}, and 8.0 or more is needed", card.name, card.major, card.minor);
      continue;
    }
    if (const cudaError_t error = cudaSetDevice(i); error != cudaSuccess) {
      card.problem = fmt::format("{} cannot be opened ({})", card.name, cudaGetErrorString(error));
      static_cast<void>(cudaGetLastError());
      continue;
    }
    if (!has_kernels_for_device())
      card.problem = fmt::format("this build has no kernels for compute capability {}.{} of {}", card.major, card.minor,
                                 card.name);
    std::size_t total = 0;
    if (cudaMemGetInfo(&card.free_bytes, &total) != cudaSuccess) static_cast<void>(cudaGetLastError());
  }
  static_cast<void>(cudaSetDevice(before));
  return cards;
}

Hardware::Gpu card_facts(int device) {
  cudaDeviceProp properties;
  CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  std::size_t free = 0, total = 0;
  CUDA_CHECK(cudaSetDevice(device));
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  Hardware::Gpu card;
  card.used_by = card_users(device);
  card.model = properties.name;
  card.arch = fmt::format("sm_{}{}", properties.major, properties.minor);
  card.vram_total = static_cast<std::int64_t>(total);
  card.vram_free = static_cast<std::int64_t>(free);
  return card;
}

}  // namespace tandem
