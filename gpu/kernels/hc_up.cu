// Implements  the third launch of Ops::hc_read: gate = up low, mixed = the mean of sigmoid(gate) * normed over the
//             streams, and R2 of mixed.
// When        every hyper-connection module, up to 16 rows.
// How         a block has 32 columns of mixed, so two tiles of each stream's rows of `up`, whole: they are short (two
//             segments). A warp per segment (tile_product.cuh); then a warp per row mixes and quantises its 32 columns.
// Measured    docs/decisions.md, 2026-11-30.
#include <algorithm>

#include "gpu/cuda_check.h"
#include "gpu/kernels/hc_read.cuh"
#include "gpu/kernels/launch.cuh"
#include "gpu/kernels/launch_check.h"
#include "gpu/kernels/tile_product.cuh"
#include "runtime/tile.h"

namespace tandem {
namespace {

constexpr int kStreams = static_cast<int>(kHcStreams);
constexpr int kTiles = 2 * kStreams;  // of a block
constexpr int kMaxUpThreads = 512;
constexpr int kMaxSegmentsUp = 4, kMaxShared = 98 * 1024;

struct HcUp {
  TileProduct p;     // of up
  int stream_tiles;  // tiles from a stream's rows to the next's
  ConstDeviceRows normed;
  DeviceRows mixed;
  QuantOut quant;
};

template <class T, int V>
__global__ void __launch_bounds__(kMaxUpThreads) hc_up_kernel(const HcUp a) {
  using Acts = Activations<T, V>;
  extern __shared__ __align__(16) std::uint8_t shared[];
  __shared__ std::int32_t act_row[V];
  const TileProduct& p = a.p;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int first = V * static_cast<int>(blockIdx.y), count = min(V, p.width - first);
  const auto tile_size = static_cast<int>(p.tile_bytes);
  std::uint8_t* const acts = shared + kTiles * tile_size;
  auto* const part = reinterpret_cast<float*>(acts + p.segments * Acts::kBytes);
  const auto blocks_of = [&](int segment) {
    return T::kBlockCols == 256 ? kSegmentBlocks : min(kSegmentBlocks, p.blocks - kSegmentBlocks * segment);
  };

  const int units = kTiles * p.segments;
  for (int u = warp; u < units; u += warps) {
    const int k = u / p.segments, segment = u - k * p.segments;
    const int tile = k / 2 * a.stream_tiles + 2 * static_cast<int>(blockIdx.x) + k % 2;
    const std::uint8_t* from = p.data[0] + static_cast<std::size_t>(tile) * p.tile_bytes +
                               static_cast<std::size_t>(segment) * T::bytes(kSegmentBlocks);
    std::uint8_t* to = shared + k * tile_size + segment * T::bytes(kSegmentBlocks);
    for (int i = 16 * lane; i < T::bytes(blocks_of(segment)); i += 16 * 32) copy16(to + i, from + i);
  }
  begin_kernel();
  if (static_cast<int>(threadIdx.x) < count) act_row[threadIdx.x] = first + static_cast<int>(threadIdx.x);
  // The values that the warp mixes, before they are needed.
  float normed[kStreams] = {};
  const int column = 32 * static_cast<int>(blockIdx.x) + lane;
  if (warp < count) {
    const float* row = a.normed.data + static_cast<std::size_t>(first + warp) * a.normed.stride;
#pragma unroll
    for (int s = 0; s < kStreams; ++s)
      normed[s] = row[static_cast<std::size_t>(s) * a.mixed.cols + static_cast<std::size_t>(column)];
  }
  __syncthreads();
  if (warp < p.segments)
    Acts::issue(acts + warp * Acts::kBytes, p.x, p.blocks, {act_row, count}, warp, blocks_of(warp), lane);
  commit_copies();
  wait_copies<0>();
  __syncthreads();
  for (int u = warp; u < units; u += warps) {
    const int k = u / p.segments, segment = u - k * p.segments;
    segment_mma<T, V>(shared + k * tile_size + segment * T::bytes(kSegmentBlocks), blocks_of(segment),
                      Acts(acts + segment * Acts::kBytes), nullptr, lane, part + u * (V * kRows));
  }
  __syncthreads();
  if (warp >= count) return;  // at least eight warps
  float sum = 0.0F;
#pragma unroll
  for (int s = 0; s < kStreams; ++s) {
    const float* results = part + (2 * s + lane / kRows) * p.segments * (V * kRows) + kRows * warp + lane % kRows;
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = i < kMaxSegmentsUp && i < p.segments ? results[i * (V * kRows)] : 0.0F;
    sum = __fmaf_rn(sigmoid_c(tree_of_8(v, p.padded_segments) * p.scale[0]), normed[s], sum);
  }
  const float mixed = sum / static_cast<float>(kStreams);
  const auto row = static_cast<std::size_t>(first + warp);
  a.mixed.data[row * a.mixed.stride + static_cast<std::size_t>(column)] = mixed;
  quantize_by_warp(mixed, static_cast<unsigned>(lane), row * (a.mixed.cols / 32) + blockIdx.x,
                   static_cast<std::int32_t>(row), a.quant);
}

struct UpKernel {
  void (*kernel)(HcUp);
  int rows, activations;
};
template <class T>
UpKernel up_kernel_of(std::size_t rows) {
  if (rows <= 4) return {&hc_up_kernel<T, 4>, 4, Activations<T, 4>::kBytes};
  return {&hc_up_kernel<T, 8>, 8, Activations<T, 8>::kBytes};
}
UpKernel up_kernel(DType type, std::size_t rows) {
  switch (type) {
    case DType::Q8_0:
      return up_kernel_of<CardQ8_0>(rows);
    case DType::Q4_0:
      return up_kernel_of<CardQ4<false>>(rows);
    case DType::Q5_0:
      return up_kernel_of<CardQ5<false>>(rows);
    case DType::IQ4_NL:
      return up_kernel_of<CardIQ4_NL>(rows);
    default:
      return {};
  }
}

int shared_of(const UpKernel& k, std::size_t tile, int segments) {
  return kTiles * static_cast<int>(tile) + segments * (k.activations + kTiles * k.rows * kRows * 4);
}

}  // namespace

bool can_fuse_hc_up(DType type, std::size_t rank) {
  const UpKernel k = up_kernel(type, 8);
  const auto segments = static_cast<int>((rank + kSegment - 1) / kSegment);
  return k.kernel != nullptr && rank % 32 == 0 && segments <= kMaxSegmentsUp &&
         shared_of(k, tile_bytes(type, rank), segments) <= kMaxShared;
}

void load_hc_up_kernels() {
  for (const DType type : {DType::Q8_0, DType::Q4_0, DType::Q5_0, DType::IQ4_NL})
    for (const std::size_t rows : {4, 8})
      CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(up_kernel(type, rows).kernel),
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxShared));
}

void launch_hc_up(const DeviceHcRead& read, DeviceStream stream) {
  const std::size_t rows = read.x.rows, d = read.mixed.cols;
  const UpKernel k = up_kernel(read.up.type, rows);
  LAUNCH_CHECK(k.kernel != nullptr && rows > 0 && rows <= kHcRows && d % 32 == 0 && read.up.rows == kHcStreams * d &&
                   read.normed.cols == read.up.rows,
               rows, d, read.up.rows, read.up.cols, read.normed.cols);
  HcUp a{};
  a.p = tile_product(read.up.type, read.up.rows, read.up.cols);
  a.p.data[0] = read.up.data;
  a.p.scale[0] = read.up.scale;
  a.p.x = {read.scratch.low_q.q, read.scratch.low_q.d, read.scratch.low_q.s};
  a.p.width = static_cast<int>(rows);
  a.stream_tiles = static_cast<int>(d / kTileRows);
  a.normed = read.normed;
  a.mixed = read.mixed;
  a.quant = quant_out(read.mixed_q);
  const dim3 grid(static_cast<unsigned>(d / 32), static_cast<unsigned>((a.p.width + k.rows - 1) / k.rows));
  const int threads = std::min(kMaxUpThreads, 32 * kTiles * a.p.segments);
  launch_kernel(k.kernel, grid, static_cast<unsigned>(threads),
                static_cast<std::size_t>(shared_of(k, a.p.tile_bytes, a.p.segments)), stream, a);
}

}  // namespace tandem
