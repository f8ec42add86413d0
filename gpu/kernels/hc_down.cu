// Implements  the second launch of Ops::hc_read: low = silu((down normed) / streams) and its R2; inject normed.
// When        every hyper-connection module, up to 16 rows.
// How         `down` has few rows and long ones (20 tiles of 40 segments), so the segments are shared out as well: a
//             block takes eight neighbouring segments of a tile, a warp each (tile_product.cuh), and adds them up:
//             eight aligned neighbours are a subtree of R4. The block that comes last to a pair of tiles adds the
//             subtrees, in their order, and quantises the 32 columns. inject is cut in the same way, lanes apart, by
//             blocks of their own for every row of x.
// Measured    docs/decisions.md, 2026-11-30.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "gpu/cuda_check.h"
#include "gpu/kernels/hc_read.cuh"
#include "gpu/kernels/last_block.cuh"
#include "gpu/kernels/launch.cuh"
#include "gpu/kernels/launch_check.h"
#include "gpu/kernels/reduce.cuh"
#include "gpu/kernels/tile_product.cuh"
#include "runtime/tile.h"

namespace tandem {
namespace {

constexpr int kChunk = 8;  // segments of a block, and its warps
constexpr int kThreads = 32 * kChunk;
constexpr int kStreams = static_cast<int>(kHcStreams);

struct HcDown {
  TileProduct p;      // of down
  int chunks;         // of a row
  int inject_blocks;  // chunks * rows, or 0: no inject
  DeviceRows low;
  QuantOut quant;
  float* partial;                 // [row groups][tiles][chunks][V * 16], then those of inject
  float* inject_partial;          // [rows][chunks][streams][32]
  std::uint32_t* arrived;         // [row groups][tiles / 2]
  std::uint32_t* inject_arrived;  // [rows]
  const void* inject_weights;
  gpu::FloatType inject_type;
  float inject_scale;
  ConstDeviceRows normed;
  DeviceRows inject;
};

// The subtrees of a value, `stride` apart.
__device__ __forceinline__ float tree_of_chunks(const float* partial, std::size_t stride, int chunks, int padded) {
  float v[kChunk];
#pragma unroll
  for (int c = 0; c < kChunk; ++c) v[c] = c < chunks ? __ldcg(partial + stride * static_cast<std::size_t>(c)) : 0.0F;
  return tree_of_8(v, padded / kChunk);
}

template <class T, int V>
__device__ __forceinline__ void down_block(const HcDown& a, int block, int group, int count,
                                           const std::int32_t* act_row, std::uint8_t* shared) {
  using Acts = Activations<T, V>;
  const TileProduct& p = a.p;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int tile = block / a.chunks, chunk = block - tile * a.chunks, segment = kChunk * chunk + warp;
  std::uint8_t* const own = shared + warp * (T::bytes(kSegmentBlocks) + Acts::kBytes);
  auto* const part = reinterpret_cast<float*>(shared + kChunk * (T::bytes(kSegmentBlocks) + Acts::kBytes));
  if (segment >= p.segments) begin_kernel();
  if (segment < p.segments) {
    const int nb = T::kBlockCols == 256 ? kSegmentBlocks : min(kSegmentBlocks, p.blocks - kSegmentBlocks * segment);
    const std::uint8_t* from = p.data[0] + static_cast<std::size_t>(tile) * p.tile_bytes +
                               static_cast<std::size_t>(segment) * T::bytes(kSegmentBlocks);
    for (int i = 16 * lane; i < T::bytes(nb); i += 16 * 32) copy16(own + i, from + i);
    begin_kernel();
    std::uint8_t* const acts = own + T::bytes(kSegmentBlocks);
    Acts::issue(acts, p.x, p.blocks, {act_row, count}, segment, nb, lane);
    commit_copies();
    wait_copies<0>();
    __syncwarp();
    segment_mma<T, V>(own, nb, Acts(acts), nullptr, lane, part + warp * (V * kRows));
  }
  __syncthreads();
  const int t = static_cast<int>(threadIdx.x);
  const std::size_t tiles = static_cast<std::size_t>(group) * static_cast<std::size_t>(p.tiles);
  const auto partial_of = [&](int of_tile, int of_chunk) {
    return a.partial + ((tiles + static_cast<std::size_t>(of_tile)) * static_cast<std::size_t>(a.chunks) +
                        static_cast<std::size_t>(of_chunk)) *
                           (V * kRows);
  };
  if (t < V * kRows) {
    float v[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; ++i) v[i] = kChunk * chunk + i < p.segments ? part[i * (V * kRows) + t] : 0.0F;
    partial_of(tile, chunk)[t] = tree_of_8(v, p.padded_segments);
  }
  const int pair = tile / 2;
  if (!comes_last(a.arrived + group * (p.tiles / 2) + pair, static_cast<unsigned>(2 * a.chunks))) return;
  const int r = warp;
  if (r >= count) return;
  const float* partial = partial_of(2 * pair + lane / kRows, 0) + kRows * r + lane % kRows;
  const float dot = tree_of_chunks(partial, V * kRows, a.chunks, p.padded_segments) * p.scale[0];
  const float low = silu_c(dot / static_cast<float>(kHcStreams));
  const auto row = static_cast<std::size_t>(act_row[r]);
  a.low.data[row * a.low.stride + static_cast<std::size_t>(32 * pair + lane)] = low;
  quantize_by_warp(low, static_cast<unsigned>(lane), row * (a.low.cols / 32) + static_cast<std::size_t>(pair),
                   act_row[r], a.quant);
}

// A chunk of inject times one row of x. Shared memory: [streams][8 segments][32].
template <typename T>
__device__ __forceinline__ void inject_block(const HcDown& a, int chunk, int row, float* shared) {
  const unsigned lane = threadIdx.x % kWarp;
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const auto cols = static_cast<unsigned>(a.normed.cols);
  const int segments = static_cast<int>((cols + kSegment - 1) / kSegment), segment = kChunk * chunk + warp;
  const unsigned first = static_cast<unsigned>(segment) * kSegment + lane;
  if (segment >= segments) begin_kernel();
  if (segment < segments) {
    const T* weights = static_cast<const T*>(a.inject_weights);
    const float* x = a.normed.data + static_cast<std::size_t>(row) * a.normed.stride;
    T w[kStreams][kSegmentSteps];
    float v[kSegmentSteps];
#pragma unroll
    for (unsigned k = 0; k < kSegmentSteps; ++k) {
      if (first + k * kLanes >= cols) continue;
#pragma unroll
      for (unsigned o = 0; o < kHcStreams; ++o) w[o][k] = weights[std::size_t{o} * cols + first + k * kLanes];
    }
    begin_kernel();
#pragma unroll
    for (unsigned k = 0; k < kSegmentSteps; ++k)
      if (first + k * kLanes < cols) v[k] = x[first + k * kLanes];
#pragma unroll
    for (int o = 0; o < kStreams; ++o) {
      float acc = 0.0F;
#pragma unroll
      for (unsigned k = 0; k < kSegmentSteps; ++k)
        if (first + k * kLanes < cols) acc = __fmaf_rn(static_cast<float>(w[o][k]), v[k], acc);
      shared[(o * kChunk + warp) * static_cast<int>(kWarp) + static_cast<int>(lane)] = acc;
    }
  }
  __syncthreads();
  int padded = 1;
  while (padded < segments) padded *= 2;
  constexpr std::size_t kPartial = kHcStreams * kWarp;
  float* const partials = a.inject_partial + static_cast<std::size_t>(row * a.chunks) * kPartial;
  const std::size_t own = static_cast<std::size_t>(warp) * kWarp + lane;
  if (warp < kStreams) {
    float v[kChunk];
#pragma unroll
    for (int s = 0; s < kChunk; ++s)
      v[s] = kChunk * chunk + s < segments
                 ? shared[(warp * kChunk + s) * static_cast<int>(kWarp) + static_cast<int>(lane)]
                 : 0.0F;
    partials[static_cast<std::size_t>(chunk) * kPartial + own] = tree_of_8(v, padded);
  }
  if (!comes_last(a.inject_arrived + row, static_cast<unsigned>(a.chunks)) || warp >= kStreams) return;
  const float dot = warp_tree(tree_of_chunks(partials + own, kPartial, a.chunks, padded));
  if (lane == 0)
    a.inject.data[static_cast<std::size_t>(row) * a.inject.stride + static_cast<std::size_t>(warp)] =
        dot * a.inject_scale;
}

template <class T, int V>
__global__ void __launch_bounds__(kThreads) hc_down_kernel(const HcDown a) {
  extern __shared__ __align__(16) std::uint8_t shared[];
  __shared__ std::int32_t act_row[V];
  // The blocks of inject come first: they take longest.
  const int block = static_cast<int>(blockIdx.x) - a.inject_blocks;
  if (block < 0) {
    const int row = static_cast<int>(blockIdx.x) / a.chunks, chunk = static_cast<int>(blockIdx.x) - row * a.chunks;
    auto* const lanes = reinterpret_cast<float*>(shared);
    switch (a.inject_type) {
      case gpu::FloatType::kF32:
        return inject_block<float>(a, chunk, row, lanes);
      case gpu::FloatType::kF16:
        return inject_block<__half>(a, chunk, row, lanes);
      default:
        return inject_block<__nv_bfloat16>(a, chunk, row, lanes);
    }
  }
  const int blocks = a.p.tiles * a.chunks, group = block / blocks, first = V * group;
  const int count = min(V, a.p.width - first);
  if (static_cast<int>(threadIdx.x) < count) act_row[threadIdx.x] = first + static_cast<int>(threadIdx.x);
  __syncthreads();
  down_block<T, V>(a, block - group * blocks, group, count, act_row, shared);
}

template <class T, int V>
constexpr int shared_bytes() {
  return std::max(kChunk * (T::bytes(kSegmentBlocks) + Activations<T, V>::kBytes + V * kRows * 4),
                  kStreams * kThreads * 4);
}

struct DownKernel {
  void (*kernel)(HcDown);
  int shared, rows;
};
template <class T>
DownKernel down_kernel_of(std::size_t rows) {
  if (rows <= 4) return {&hc_down_kernel<T, 4>, shared_bytes<T, 4>(), 4};
  return {&hc_down_kernel<T, 8>, shared_bytes<T, 8>(), 8};
}
DownKernel down_kernel(DType type, std::size_t rows) {
  switch (type) {
    case DType::Q8_0:
      return down_kernel_of<CardQ8_0>(rows);
    case DType::Q4_0:
      return down_kernel_of<CardQ4<false>>(rows);
    case DType::Q5_0:
      return down_kernel_of<CardQ5<false>>(rows);
    case DType::IQ4_NL:
      return down_kernel_of<CardIQ4_NL>(rows);
    case DType::Q4_K:
      return down_kernel_of<CardQ4_K>(rows);
    case DType::Q5_K:
      return down_kernel_of<CardQ5_K>(rows);
    case DType::Q6_K:
      return down_kernel_of<CardQ6_K>(rows);
    case DType::IQ4_XS:
      return down_kernel_of<CardIQ4_XS>(rows);
    default:
      return {};
  }
}

constexpr std::size_t kMaxRank = 1024, kMaxWide = kChunk * kChunk * kSegment;
constexpr std::size_t kRowGroups = 2;
std::size_t aligned(std::size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

}  // namespace

bool can_fuse_hc_down(DType type, std::size_t wide, std::size_t rank) {
  return down_kernel(type, 1).kernel != nullptr && rank % 32 == 0 && rank > 0 && rank <= kMaxRank && wide <= kMaxWide;
}

void load_hc_down_kernels() {
  for (const DType type :
       {DType::Q8_0, DType::Q4_0, DType::Q5_0, DType::IQ4_NL, DType::Q4_K, DType::Q5_K, DType::Q6_K, DType::IQ4_XS})
    for (const std::size_t rows : {4, 8}) {
      const DownKernel k = down_kernel(type, rows);
      CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(k.kernel),
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, k.shared));
    }
}

HcScratch make_hc_scratch(void* memory, std::size_t wide, std::size_t rank) {
  auto* at = static_cast<std::uint8_t*>(memory);
  const auto take = [&]<typename T>(T*& to, std::size_t count) {
    to = reinterpret_cast<T*>(at);
    at += aligned(count * sizeof(T));
  };
  HcScratch s;
  const std::size_t chunks = (wide / kSegment + kChunk) / kChunk;
  for (const auto& [quant, cols] : {std::pair{&s.normed_q, wide}, std::pair{&s.low_q, rank}}) {
    take(quant->q, kHcRows * cols);
    take(quant->d, kHcRows * cols / 32);
    take(quant->s, kHcRows * cols / 16);
  }
  take(s.partial, kHcRows * chunks * (rank + kHcStreams * kWarp));
  const std::size_t counters = kRowGroups * (rank / 32) + kHcRows;
  take(s.arrived, counters);
  s.arrived_bytes = counters * sizeof(std::uint32_t);
  return s;
}
std::size_t hc_scratch_bytes(std::size_t wide, std::size_t rank) {
  const HcScratch s = make_hc_scratch(nullptr, wide, rank);
  return reinterpret_cast<std::size_t>(s.arrived) + aligned(s.arrived_bytes);
}

void launch_hc_down(const DeviceHcRead& read, DeviceStream stream) {
  const std::size_t rows = read.x.rows;
  const DownKernel k = down_kernel(read.down.type, rows);
  LAUNCH_CHECK(k.kernel != nullptr && rows > 0 && rows <= kHcRows && read.down.cols == read.normed.cols &&
                   read.low.cols == read.down.rows && read.up.cols == read.low.cols,
               rows, read.down.rows, read.down.cols, read.low.cols, read.normed.cols, read.up.cols);
  HcDown a{};
  a.p = tile_product(read.down.type, read.down.rows, read.down.cols);
  a.p.data[0] = read.down.data;
  a.p.scale[0] = read.down.scale;
  a.p.x = {read.scratch.normed_q.q, read.scratch.normed_q.d, read.scratch.normed_q.s};
  a.p.width = static_cast<int>(rows);
  a.chunks = (a.p.segments + kChunk - 1) / kChunk;
  a.inject_blocks = read.inject_weights != nullptr ? a.chunks * a.p.width : 0;
  a.low = read.low;
  a.quant = quant_out(read.scratch.low_q);
  const int groups = (a.p.width + k.rows - 1) / k.rows;
  a.partial = read.scratch.partial;
  a.inject_partial = a.partial + static_cast<std::size_t>(groups * a.p.tiles * a.chunks * k.rows * kRows);
  a.arrived = read.scratch.arrived;
  a.inject_arrived = a.arrived + groups * (a.p.tiles / 2);
  a.inject_weights = read.inject_weights;
  a.inject_type = read.inject_type;
  a.inject_scale = read.inject_scale;
  a.normed = read.normed;
  a.inject = read.inject;
  const auto grid = static_cast<unsigned>(a.inject_blocks + groups * a.p.tiles * a.chunks);
  launch_kernel(k.kernel, grid, kThreads, static_cast<std::size_t>(k.shared), stream, a);
}

}  // namespace tandem
