#include "gpu/kernels/sample.h"

#include "gpu/cuda_check.h"
#include "gpu/kernels/launch.cuh"
#include "gpu/kernels/launch_check.h"
#include "gpu/kernels/ordered.cuh"
#include "gpu/kernels/reduce.cuh"
#include "runtime/philox.h"

namespace tandem::gpu {

namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kStrips = 128;  // of one row

struct SampleArgs {
  ConstDeviceRows logits;
  const SampleNumbers* numbers;
  std::int32_t* token;
  std::int32_t* bad;
  unsigned long long* best;  // [rows, kStrips]: ordered score, then the complement of the token
};

// The best of the block's threads, in thread 0.
__device__ unsigned long long block_best(unsigned long long best) {
  __shared__ unsigned long long warps[kThreads / kWarp];
#pragma unroll
  for (unsigned stride = 1; stride < kWarp; stride *= 2) {
    const unsigned long long other = __shfl_xor_sync(kAllLanes, best, stride);
    best = other > best ? other : best;
  }
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = best;
  __syncthreads();
  if (threadIdx.x == 0)
    for (unsigned w = 1; w < kThreads / kWarp; ++w) best = warps[w] > best ? warps[w] : best;
  return best;
}

template <bool kNoise>
__global__ void strip_kernel(const __grid_constant__ SampleArgs a) {
  begin_kernel();
  const unsigned r = blockIdx.y;
  const auto n = static_cast<unsigned>(a.logits.cols);
  const float* row = a.logits.data + r * a.logits.stride;
  unsigned long long best = 0;
  bool bad = false;
  SampleNumbers numbers{0, 1.0F, 0};
  if constexpr (kNoise) numbers = *a.numbers;
#pragma unroll 4
  for (unsigned i = blockIdx.x * kThreads + threadIdx.x; i < n; i += kStrips * kThreads) {
    const float v = row[i];
    if (!(v < HUGE_VALF)) bad = true;
    if (v == -HUGE_VALF) continue;
    float score = v;
    if constexpr (kNoise)
      score = v / numbers.temperature + gumbel_noise(numbers.seed, static_cast<std::uint64_t>(numbers.position) + r, i);
    const unsigned long long key = static_cast<unsigned long long>(ordered(score)) << 32 | (0xFFFFFFFFU - i);
    best = key > best ? key : best;
  }
  if (bad) atomicMin(a.bad, static_cast<std::int32_t>(r));
  best = block_best(best);
  if (threadIdx.x == 0) a.best[r * kStrips + blockIdx.x] = best;
}

__global__ void last_kernel(const __grid_constant__ SampleArgs a) {
  begin_kernel();
  const unsigned r = blockIdx.x;
  const unsigned long long best = block_best(threadIdx.x < kStrips ? a.best[r * kStrips + threadIdx.x] : 0);
  if (threadIdx.x != 0) return;
  if (best == 0) atomicMin(a.bad, static_cast<std::int32_t>(r));
  a.token[r] = best == 0 ? 0 : static_cast<std::int32_t>(0xFFFFFFFFU - static_cast<unsigned>(best));
}

void launch(const SampleArgs& args, bool noise, DeviceStream stream) {
  LAUNCH_CHECK(args.logits.cols > 0 && args.logits.cols < (std::size_t{1} << 31), args.logits.cols);
  const auto rows = static_cast<unsigned>(args.logits.rows);
  if (rows == 0) return;
  if (noise)
    launch_kernel(strip_kernel<true>, dim3(kStrips, rows), kThreads, 0, stream, args);
  else
    launch_kernel(strip_kernel<false>, dim3(kStrips, rows), kThreads, 0, stream, args);
  launch_kernel(last_kernel, rows, kThreads, 0, stream, args);
}

}  // namespace

std::size_t sample_bytes(std::size_t rows) {
  return rows * kStrips * sizeof(unsigned long long);
}

void arg_max(ConstDeviceRows logits, std::int32_t* token, std::int32_t* bad, void* work, DeviceStream stream) {
  launch({logits, nullptr, token, bad, static_cast<unsigned long long*>(work)}, false, stream);
}

void sample(ConstDeviceRows logits, const SampleNumbers* numbers, std::int32_t* token, std::int32_t* bad, void* work,
            DeviceStream stream) {
  LAUNCH_CHECK(numbers != nullptr, logits.rows);
  launch({logits, numbers, token, bad, static_cast<unsigned long long*>(work)}, true, stream);
}

}  // namespace tandem::gpu
