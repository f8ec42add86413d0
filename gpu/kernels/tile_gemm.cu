#include "gpu/kernels/tile_gemm.h"

#include <algorithm>

#include "gpu/cuda_check.h"
#include "gpu/kernels/lattice.h"
#include "gpu/kernels/launch.cuh"
#include "gpu/kernels/tile_gemm_table.h"
#include "placement/check.h"
#include "runtime/tile.h"

namespace tandem {
namespace {

constexpr int kMaxShared = 97 * 1024;  // sm_86 and sm_89 give a block 99 KB; a kernel has a little of its own

constexpr std::size_t divide_up(std::size_t a, std::size_t b) {
  return (a + b - 1) / b;
}
std::size_t align_up(std::size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

// How a block is cut: warps, and its shared memory.
struct GemmCut {
  int warps, shared;
};
// As many warps as fit. A fused block has as many for gate as for up, and whole blocks of 32 hidden rows of each.
GemmCut gemm_cut(const TileGemmKernel& kernel, int stage_bytes, bool fused) {
  for (const int warps : {8, 6, 4, 2}) {
    if (fused && warps % 4 != 0) continue;
    const int ring = 2 * kernel.activation_bytes + 2 * warps * stage_bytes + kernel.table_bytes;
    const int values = fused ? 2 * kGemmRows * (16 * warps / 2 + 4) * 4 : 0;  // over the activations and the ring
    if (std::max(ring, values) <= kMaxShared) return {warps, std::max(ring, values)};
  }
  CHECK(false, "{} bytes of a segment do not fit the shared memory", stage_bytes);
}

TileGemm tile_gemm(DType type, std::size_t rows, std::size_t cols, const TileGemmKernel& kernel) {
  const TileProduct shape = tile_product(type, rows, cols);  // checks them
  TileGemm p{};
  p.tile_bytes = shape.tile_bytes;
  p.blocks = shape.blocks;
  p.segments = shape.segments;
  p.table = shape.table;
  p.stage_bytes = kernel.segment_bytes(std::min(8, p.blocks));
  return p;
}

TilePart part_of(const DeviceTiles& w, float* y, std::size_t y_stride) {
  return {w.data, y, y_stride, w.scale, static_cast<int>(w.rows), static_cast<int>(divide_up(w.rows, kTileRows)), 0};
}
TilePart part_of(const ExpertBlobLayout::Part& part, float scale, float* y, std::size_t y_stride) {
  return {nullptr, y, y_stride, scale, static_cast<int>(part.rows), static_cast<int>(part.tiles()), 0};
}

void launch(const TileGemmKernel& kernel, const TileGemm& p, const GemmCut& cut, std::size_t x, std::size_t y,
            cudaStream_t stream, std::size_t z = 1) {
  if (x == 0 || y == 0) return;
  const dim3 grid(static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z));
  launch_kernel(kernel.kernel, grid, static_cast<unsigned>(32 * cut.warps), static_cast<std::size_t>(cut.shared),
                stream, p);
}

// ---- segments shared out --------------------------------------------------------------------------------------------

constexpr std::size_t kFewBlocks = 200;     // less than these leave processors of a large card idle
constexpr std::size_t kEnoughBlocks = 256;  // that is what a split is made for
constexpr unsigned kMostSplits = 16;        // of a row
constexpr int kLeastSplit = 4;              // segments
constexpr unsigned kSplitThreads = 256;

// y = the tree over the splits of a result, times scale.
__global__ void join_splits_kernel(const float* parts, unsigned splits, std::size_t part_stride, std::size_t rows,
                                   std::size_t cols, float* y, std::size_t y_stride, float scale) {
  begin_kernel();
  const std::size_t at = static_cast<std::size_t>(blockIdx.x) * kSplitThreads + threadIdx.x;
  if (at >= rows * cols) return;
  float v[kMostSplits];
#pragma unroll
  for (unsigned i = 0; i < kMostSplits; ++i) v[i] = i < splits ? parts[i * part_stride + at] : 0.0F;
#pragma unroll
  for (unsigned step = 1; step < kMostSplits; step *= 2)
#pragma unroll
    for (unsigned i = 0; i < kMostSplits; i += 2 * step) v[i] = v[i] + v[i + step];
  y[at / cols * y_stride + at % cols] = v[0] * scale;
}

// Segments of a block, so that there are enough blocks and the sums fit the memory; 0: all of them.
int split_for(std::size_t blocks, int segments, std::size_t result_bytes, std::size_t memory_bytes) {
  if (blocks >= kFewBlocks || segments <= kLeastSplit) return 0;
  int split = kLeastSplit;
  const auto splits = [&](int size) {
    return divide_up(static_cast<std::size_t>(segments), static_cast<std::size_t>(size));
  };
  while (splits(2 * split) * blocks >= kEnoughBlocks || splits(split) > kMostSplits) split *= 2;
  return split < segments && splits(split) * result_bytes <= memory_bytes ? split : 0;
}

// ---- the order of pairs ---------------------------------------------------------------------------------------------

constexpr unsigned kSortThreads = 1024;

// One block: counts, sums before, places. The order within an expert is that of the atomic additions: it decides which
// rows share a block, not what they are.
__global__ void __launch_bounds__(kSortThreads)
    sort_pairs_kernel(const std::int32_t* expert, unsigned pairs, unsigned experts, SortedPairs out) {
  __shared__ std::int32_t count[kMostSortedExperts], warp_sum[32];
  const unsigned i = threadIdx.x, lane = i % 32, warp = i / 32;
  begin_kernel();
  count[i] = 0;
  __syncthreads();
  for (unsigned at = i; at < pairs; at += kSortThreads)
    if (const std::int32_t e = expert[at]; e >= 0) atomicAdd(&count[e], 1);
  __syncthreads();
  const std::int32_t own = count[i];
  std::int32_t until = own;
  for (unsigned step = 1; step < 32; step *= 2) {
    const std::int32_t below = __shfl_up_sync(~0U, until, step);
    if (lane >= step) until += below;
  }
  if (lane == 31) warp_sum[warp] = until;
  __syncthreads();
  for (unsigned w = 0; w < warp; ++w) until += warp_sum[w];
  count[i] = until - own;  // the next place
  if (i < experts) out.first[i + 1] = until;
  if (i == 0) out.first[0] = 0;
  __syncthreads();
  for (unsigned at = i; at < pairs; at += kSortThreads)
    if (const std::int32_t e = expert[at]; e >= 0) out.order[atomicAdd(&count[e], 1)] = static_cast<std::int32_t>(at);
}

}  // namespace

const TileGemmKernel& gemm_kernel(DType type) {
  const TileGemmKernel* kernel = small_gemm_kernel(type);
  if (kernel == nullptr) kernel = wide_gemm_kernel(type);
  if (kernel == nullptr) kernel = lattice_gemm_kernel(type);
  CHECK(kernel != nullptr, "{} has no tile kernel", dtype_name(type));
  return *kernel;
}

void load_gemm_kernel(DType type) {
  CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(gemm_kernel(type).kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxShared));
}

void launch_tile_gemm(const TileMatmul* products, std::size_t count, const DeviceQuant& x, std::size_t rows,
                      cudaStream_t stream, float* memory, std::size_t memory_bytes) {
  CHECK(count >= 1 && count <= kMaxTileMatrices, "{} matrices", count);
  if (rows == 0) return;
  const DeviceTiles& first = products[0].w;
  const TileGemmKernel& kernel = gemm_kernel(first.type);
  TileGemm p = tile_gemm(first.type, first.rows, first.cols, kernel);
  const GemmCut cut = gemm_cut(kernel, p.stage_bytes, false);
  p.x = x;
  p.width = static_cast<int>(rows);
  p.parts = static_cast<int>(count);
  int tile_groups = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const DeviceTiles& w = products[i].w;
    CHECK(w.type == first.type && w.cols == first.cols && w.rows > 0, "{} x {} {} beside {} x {} {}", w.rows, w.cols,
          dtype_name(w.type), first.rows, first.cols, dtype_name(first.type));
    p.part[i] = part_of(w, products[i].y, products[i].y_stride);
    p.part[i].first_group = tile_groups;
    tile_groups += (p.part[i].tiles + cut.warps - 1) / cut.warps;
  }
  const std::size_t blocks = static_cast<std::size_t>(tile_groups) * divide_up(rows, kGemmRows);
  if (count == 1 && memory != nullptr)
    p.split = split_for(blocks, p.segments, rows * first.rows * sizeof(float), memory_bytes);
  if (p.split == 0) return launch(kernel, p, cut, blocks, 1, stream);
  const std::size_t splits = divide_up(static_cast<std::size_t>(p.segments), static_cast<std::size_t>(p.split));
  const TilePart whole = p.part[0];
  p.split_stride = rows * first.rows;
  p.part[0].y = memory;
  p.part[0].y_stride = first.rows;
  p.part[0].scale = 1.0F;
  launch(kernel, p, cut, blocks, 1, stream, splits);
  launch_kernel(join_splits_kernel, static_cast<unsigned>(divide_up(p.split_stride, kSplitThreads)), kSplitThreads, 0,
                stream, memory, static_cast<unsigned>(splits), p.split_stride, rows, first.rows, whole.y,
                whole.y_stride, whole.scale);
}

void launch_sort_pairs(const std::int32_t* expert, std::size_t pairs, std::size_t experts, const SortedPairs& out,
                       cudaStream_t stream) {
  static_assert(kMostSortedExperts == kSortThreads);
  CHECK(experts > 0 && experts <= kMostSortedExperts && pairs < std::size_t{1} << 31, "{} pairs of {} experts", pairs,
        experts);
  launch_kernel(sort_pairs_kernel, 1, kSortThreads, 0, stream, expert, static_cast<unsigned>(pairs),
                static_cast<unsigned>(experts), out);
}

std::size_t gemm_scratch_bytes(std::size_t pairs, std::size_t ff, std::size_t experts) {
  return align_up((experts + 1) * 4) + 2 * align_up(pairs * 4) + align_up(pairs * ff) + align_up(pairs * ff / 8) +
         align_up(pairs * ff / 4);
}

GemmScratch make_gemm_scratch(void* memory, std::size_t pairs, std::size_t ff, std::size_t experts) {
  auto* at = static_cast<std::uint8_t*>(memory);
  const auto take = [&at](std::size_t bytes) {
    std::uint8_t* const piece = at;
    at += align_up(bytes);
    return static_cast<void*>(piece);
  };
  GemmScratch scratch;
  scratch.pairs = pairs;
  scratch.sorted.first = static_cast<std::int32_t*>(take((experts + 1) * 4));
  scratch.sorted.order = static_cast<std::int32_t*>(take(pairs * 4));
  scratch.bad = static_cast<std::int32_t*>(take(pairs * 4));
  scratch.q = static_cast<std::int8_t*>(take(pairs * ff));
  scratch.d = static_cast<float*>(take(pairs * ff / 8));
  scratch.s = static_cast<std::int32_t*>(take(pairs * ff / 4));
  return scratch;
}

bool can_gemm_experts(const ExpertBlobLayout& layout) {
  return layout.gate.type == layout.up.type && layout.gate.rows % 32 == 0;
}

void launch_gemm_experts(const GemmExperts& experts, const ExpertBatch& batch, std::size_t expected,
                         const GemmScratch& scratch, cudaStream_t stream) {
  const ExpertBlobLayout& layout = *experts.layout;
  CHECK(can_gemm_experts(layout) && batch.count <= kBatchExperts, "experts of {} and {}, {} rows; {} of them",
        dtype_name(layout.gate.type), dtype_name(layout.up.type), layout.gate.rows, batch.count);
  if (batch.count == 0) return;
  const std::size_t jobs = static_cast<std::size_t>(batch.count) + expected / kGemmRows;
  {
    const TileGemmKernel& kernel = gemm_kernel(layout.gate.type);
    TileGemm p = tile_gemm(layout.gate.type, layout.gate.rows, layout.gate.cols, kernel);
    const GemmCut cut = gemm_cut(kernel, p.stage_bytes, true);
    p.x = experts.x;
    p.fused = true;
    p.part[0] = part_of(layout.gate, experts.scale[0], nullptr, 0);
    p.part[1] = part_of(layout.up, experts.scale[1], nullptr, 0);
    p.sorted = scratch.sorted;
    p.used = static_cast<int>(experts.used);
    p.offset[0] = layout.gate.offset;
    p.offset[1] = layout.up.offset;
    p.batch = batch;
    p.hidden_q = scratch.q;
    p.hidden_d = scratch.d;
    p.hidden_s = scratch.s;
    p.bad = scratch.bad;
    launch(kernel, p, cut, divide_up(layout.gate.tiles(), static_cast<std::size_t>(cut.warps / 2)), jobs, stream);
  }
  const TileGemmKernel& kernel = gemm_kernel(layout.down.type);
  TileGemm p = tile_gemm(layout.down.type, layout.down.rows, layout.down.cols, kernel);
  const GemmCut cut = gemm_cut(kernel, p.stage_bytes, false);
  p.x = {scratch.q, scratch.d, scratch.s};
  p.part[0] = part_of(layout.down, experts.scale[2], experts.y, experts.y_stride);
  p.sorted = scratch.sorted;
  p.used = 1;
  p.offset[0] = layout.down.offset;
  p.batch = batch;
  p.bad = scratch.bad;
  launch(kernel, p, cut, divide_up(layout.down.tiles(), static_cast<std::size_t>(cut.warps)), jobs, stream);
}

void launch_gemm_ffn(const DeviceTiles& gate, const DeviceTiles& up, const DeviceTiles& down, const DeviceQuant& x,
                     std::size_t rows, float* y, std::size_t y_stride, std::int8_t* hidden_q, float* hidden_d,
                     std::int32_t* hidden_s, std::int32_t* bad, cudaStream_t stream) {
  CHECK(gate.type == up.type && gate.rows == up.rows && gate.cols == up.cols && gate.rows % 32 == 0,
        "gate {} x {} {}, up {} x {} {}", gate.rows, gate.cols, dtype_name(gate.type), up.rows, up.cols,
        dtype_name(up.type));
  CUDA_CHECK(cudaMemsetAsync(bad, 0, rows * sizeof(std::int32_t), stream));
  {
    const TileGemmKernel& kernel = gemm_kernel(gate.type);
    TileGemm p = tile_gemm(gate.type, gate.rows, gate.cols, kernel);
    const GemmCut cut = gemm_cut(kernel, p.stage_bytes, true);
    p.x = x;
    p.width = static_cast<int>(rows);
    p.fused = true;
    p.part[0] = part_of(gate, nullptr, 0);
    p.part[1] = part_of(up, nullptr, 0);
    p.hidden_q = hidden_q;
    p.hidden_d = hidden_d;
    p.hidden_s = hidden_s;
    p.bad = bad;
    const std::size_t tile_groups =
        divide_up(static_cast<std::size_t>(p.part[0].tiles), static_cast<std::size_t>(cut.warps / 2));
    launch(kernel, p, cut, tile_groups * divide_up(rows, kGemmRows), 1, stream);
  }
  const TileGemmKernel& kernel = gemm_kernel(down.type);
  TileGemm p = tile_gemm(down.type, down.rows, down.cols, kernel);
  const GemmCut cut = gemm_cut(kernel, p.stage_bytes, false);
  p.x = {hidden_q, hidden_d, hidden_s};
  p.width = static_cast<int>(rows);
  p.parts = 1;
  p.part[0] = part_of(down, y, y_stride);
  p.bad = bad;
  const std::size_t tile_groups =
      divide_up(static_cast<std::size_t>(p.part[0].tiles), static_cast<std::size_t>(cut.warps));
  launch(kernel, p, cut, tile_groups * divide_up(rows, kGemmRows), 1, stream);
}

}  // namespace tandem
