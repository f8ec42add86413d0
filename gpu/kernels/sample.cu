#include "gpu/kernels/sample.h"

#include "gpu/cuda_check.h"
#include "gpu/kernels/last_block.cuh"
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
  const std::int32_t* ids;
  const SampleNumbers* numbers;
  Chosen* chosen;
  std::int32_t* bad;
  unsigned long long* best;  // [rows, kStrips]: ordered score, then the complement of the logit's index
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
      score = v / numbers.temperature + gumbel_noise(numbers.seed, static_cast<std::uint64_t>(numbers.position) + r,
                                                     a.ids == nullptr ? i : static_cast<unsigned>(a.ids[i]));
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
  const unsigned i = best == 0 ? 0 : 0xFFFFFFFFU - static_cast<unsigned>(best);
  a.chosen[r].token = a.ids == nullptr ? static_cast<std::int32_t>(i) : a.ids[i];
  a.chosen[r].logit = a.logits.data[r * a.logits.stride + i];
}

// ---- the softmax's sum ----

constexpr unsigned kSumWarps = kThreads / kWarp;
constexpr unsigned kBlockSegments = 32;  // of R4, in a block: four a warp
constexpr unsigned kMostBlocks = kMaxSoftmaxLogits / (kBlockSegments * kSegment);
static_assert(kMostBlocks <= kMaxSegments);

struct SumArgs {
  ConstDeviceRows logits;
  const SampleNumbers* numbers;
  Chosen* chosen;
  std::uint32_t* arrived;
  float* tops;  // [rows, kStrips]: the largest logit of a strip
  float* sums;  // [rows, kMostBlocks, 32]: the lanes of R4
};

__device__ float warp_largest(float v) {
#pragma unroll
  for (unsigned stride = 1; stride < kWarp; stride *= 2) v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, stride));
  return v;
}

__global__ void top_kernel(const __grid_constant__ SumArgs a) {
  begin_kernel();
  __shared__ float warps[kSumWarps];
  const unsigned r = blockIdx.y;
  const auto n = static_cast<unsigned>(a.logits.cols);
  const float* row = a.logits.data + r * a.logits.stride;
  float top = -HUGE_VALF;
#pragma unroll 4
  for (unsigned i = blockIdx.x * kThreads + threadIdx.x; i < n; i += kStrips * kThreads) top = fmaxf(top, row[i]);
  top = warp_largest(top);
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = top;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (unsigned w = 1; w < kSumWarps; ++w) top = fmaxf(top, warps[w]);
  a.tops[r * kStrips + blockIdx.x] = top;
}

__global__ void sum_kernel(const __grid_constant__ SumArgs a) {
  begin_kernel();
  __shared__ float lanes[kBlockSegments * kWarp];
  const unsigned r = blockIdx.y, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const auto n = static_cast<unsigned>(a.logits.cols);
  const float* row = a.logits.data + r * a.logits.stride;
  const float scale = softmax_scale(a.numbers->temperature);
  float top = -HUGE_VALF;
  for (unsigned i = lane; i < kStrips; i += kWarp) top = fmaxf(top, a.tops[r * kStrips + i]);
  top = warp_largest(top);
  const unsigned segments = (n + kSegment - 1) / kSegment, first = blockIdx.x * kBlockSegments;
  const unsigned count = min(kBlockSegments, segments - first);
  for (unsigned s = warp; s < count; s += kSumWarps) {
    float acc = 0.0F;
    const unsigned at = (first + s) * kSegment + lane;
#pragma unroll
    for (unsigned k = 0; k < kSegmentSteps; ++k) {
      const unsigned i = at + k * kLanes;
      if (i < n) acc = acc + exp_c((row[i] - top) * scale);
    }
    lanes[s * kWarp + lane] = acc;
  }
  __syncthreads();
  if (warp == 0) a.sums[(r * kMostBlocks + blockIdx.x) * kWarp + lane] = strided_tree(lanes + lane, kWarp, count);
  if (!comes_last(a.arrived, gridDim.x * gridDim.y)) return;
  // Blocks are subtrees of R4's tree over segments, as kBlockSegments is a power of two.
  for (unsigned row_at = warp; row_at < gridDim.y; row_at += kSumWarps) {
    const float* const from = a.sums + row_at * kMostBlocks * kWarp + lane;
    const float sum = warp_tree(strided_tree(from, kWarp, gridDim.x));
    float best = -HUGE_VALF;
    for (unsigned i = lane; i < kStrips; i += kWarp) best = fmaxf(best, a.tops[row_at * kStrips + i]);
    best = warp_largest(best);
    if (lane != 0) continue;
    a.chosen[row_at].top = best + 0.0F;  // which of two zeros is the larger is the processor's affair
    a.chosen[row_at].sum = sum;
  }
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
  const std::size_t choice = kStrips * sizeof(unsigned long long);
  const std::size_t sum = (kStrips + kMostBlocks * kWarp) * sizeof(float);
  return rows * (choice > sum ? choice : sum);
}

void arg_max(ConstDeviceRows logits, const std::int32_t* ids, Chosen* chosen, std::int32_t* bad, void* work,
             DeviceStream stream) {
  launch({logits, ids, nullptr, chosen, bad, static_cast<unsigned long long*>(work)}, false, stream);
}

void sample(ConstDeviceRows logits, const std::int32_t* ids, const SampleNumbers* numbers, Chosen* chosen,
            std::int32_t* bad, void* work, DeviceStream stream) {
  LAUNCH_CHECK(numbers != nullptr, logits.rows);
  launch({logits, ids, numbers, chosen, bad, static_cast<unsigned long long*>(work)}, true, stream);
}

void softmax_sum(ConstDeviceRows logits, const SampleNumbers* numbers, Chosen* chosen, std::uint32_t* arrived,
                 void* work, DeviceStream stream) {
  LAUNCH_CHECK(numbers != nullptr && logits.cols > 0 && logits.cols <= kMaxSoftmaxLogits, logits.cols);
  const auto rows = static_cast<unsigned>(logits.rows);
  if (rows == 0) return;
  auto* const tops = static_cast<float*>(work);
  const SumArgs args{logits, numbers, chosen, arrived, tops, tops + rows * kStrips};
  constexpr std::size_t kBlock = kBlockSegments * kSegment;
  launch_kernel(top_kernel, dim3(kStrips, rows), kThreads, 0, stream, args);
  launch_kernel(sum_kernel, dim3(static_cast<unsigned>((logits.cols + kBlock - 1) / kBlock), rows), kThreads, 0, stream,
                args);
}

}  // namespace tandem::gpu
