#include "gpu/kernels/tile_product.h"

#include <algorithm>

#include "gpu/cuda_check.h"
#include "gpu/kernels/lattice.h"
#include "gpu/kernels/tile_kernel_table.h"
#include "placement/check.h"
#include "runtime/exact_math.h"
#include "runtime/tile.h"

namespace tandem {
namespace {

constexpr int kMaxWarps = kMaxTileThreads / 32;
constexpr int kRingBudget = 84 * 1024;  // of a block: sm_86 gives one 99 KB
constexpr int kPartBudget = 20 * 1024;  // for sums of segments, beyond one tile per group
constexpr int kMaxShared = 99 * 1024;   // the most that every card since sm_86 gives
constexpr int kActivationBytes = 768;   // per warp: tile_product.cuh
constexpr std::size_t kMaxCols = 32 * 1024;
constexpr int kBlocksPerProcessor = 3;  // fewer blocks than that per processor: no tile more for each

constexpr DType kTypes[] = {DType::Q4_0,   DType::Q4_1,  DType::Q5_0,    DType::Q5_1,   DType::Q8_0,  DType::Q2_0,
                            DType::Q2_K,   DType::Q3_K,  DType::Q4_K,    DType::Q5_K,   DType::Q6_K,  DType::IQ4_NL,
                            DType::IQ4_XS, DType::MXFP4, DType::IQ2_XXS, DType::IQ2_XS, DType::IQ2_S, DType::IQ3_XXS,
                            DType::IQ3_S,  DType::IQ1_S, DType::IQ1_M};

int processors() {
  thread_local int known_device = -1, count = 0;
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  if (device != known_device) {
    CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    known_device = device;
  }
  return count;
}

constexpr int divide_up(int a, int b) {
  return (a + b - 1) / b;
}

// Index into TileKernels::kernel.
int kernel_for(int rows, TileRoute route) {
  if (route != TileRoute::kMma && rows <= 2) return rows - 1;
  return rows <= 4 ? 2 : 3;
}

}  // namespace

const TileKernels& tile_kernels(DType type) {
  const TileKernels* kernels = small_tile_kernels(type);
  if (kernels == nullptr) kernels = wide_tile_kernels(type);
  if (kernels == nullptr) kernels = lattice_tile_kernels(type);
  CHECK(kernels != nullptr, "{} has no tile kernel", dtype_name(type));
  return *kernels;
}

void load_tile_kernels() {
  load_lattice_tables();
  int most = 0, device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  CHECK(most >= kMaxShared, "{} bytes of shared memory per block", most);
  for (const DType type : kTypes)
    for (const auto kernel : tile_kernels(type).kernel)
      CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxShared - 1024));
}

TileProduct tile_product(DType type, std::size_t rows, std::size_t cols) {
  CHECK(rows > 0 && cols > 0 && cols % dtype_info(type).block_elems == 0 && cols <= kMaxCols, "{} x {} {}", rows, cols,
        dtype_name(type));
  TileProduct p{};
  p.tile_bytes = tile_bytes(type, cols);
  p.rows = static_cast<int>(rows);
  p.tiles = static_cast<int>((rows + kTileRows - 1) / kTileRows);
  p.blocks = static_cast<int>(cols / 32);
  p.segments = static_cast<int>((cols + kSegment - 1) / kSegment);
  p.padded_segments = 1;
  while (p.padded_segments < p.segments) p.padded_segments *= 2;
  p.table = device_lattice_table(type);
  p.scale[0] = p.scale[1] = 1.0F;
  p.divide = 1;
  return p;
}

void launch_tile_product(DType type, TileProduct& p, int jobs, TileRoute route, cudaStream_t stream) {
  const TileKernels& kernels = tile_kernels(type);
  const int index = kernel_for(p.width, route), most_rows = 1 << index;
  p.wide = index == 3;
  p.segment_bytes = kernels.segment_bytes(std::min(8, p.blocks));
  const int ring = kernels.stages * p.segment_bytes;
  const int most_warps = std::clamp(kRingBudget / ring, 1, kMaxWarps);
  // Warps: one per segment; several groups of them where a row has few segments, several rounds where it has many.
  int warps;
  p.groups = 1;
  if (p.segments <= most_warps) {
    const int most_groups = std::min(p.fused ? 4 : p.tiles, most_warps / p.segments);
    p.groups = p.fused && most_groups == 3 ? 2 : std::clamp(most_groups, 1, 8);
    warps = p.groups * p.segments;
  } else {
    warps = divide_up(p.segments, divide_up(p.segments, most_warps));
  }
  // More tiles per block use what a warp knows of the activations again, as long as there are blocks enough.
  const int part_of_tile = p.segments * most_rows * 64;
  const int row_groups = p.jobs != nullptr ? 1 : divide_up(p.width, most_rows);
  p.slots = p.fused ? 4 : p.groups;
  if (!p.fused)
    while (2 * p.slots * part_of_tile <= kPartBudget && 2 * p.slots <= 8 * p.groups &&
           divide_up(p.tiles, 2 * p.slots) * row_groups * jobs >= kBlocksPerProcessor * processors())
      p.slots *= 2;
  const int shared = warps * (ring + (p.wide ? kActivationBytes : 0)) + kernels.table_bytes + p.slots * part_of_tile;
  CHECK(shared <= kMaxShared - 1024, "{} bytes of shared memory", shared);
  const int tile_groups = p.fused ? p.tiles / 2 : divide_up(p.tiles, p.slots);
  const dim3 grid(static_cast<unsigned>(tile_groups * row_groups), static_cast<unsigned>(jobs));
  kernels.kernel[index]<<<grid, static_cast<unsigned>(32 * warps), static_cast<std::size_t>(shared), stream>>>(p);
  CUDA_CHECK_LAUNCH();
}

void launch_tile_matmul(const DeviceTiles& w, const DeviceQuant& x, std::size_t rows, float* y, std::size_t y_stride,
                        cudaStream_t stream, TileRoute route) {
  if (rows == 0) return;
  TileProduct p = tile_product(w.type, w.rows, w.cols);
  p.data[0] = w.data;
  p.scale[0] = w.scale;
  p.x = x;
  p.width = static_cast<int>(rows);
  p.y = y;
  p.y_stride = y_stride;
  launch_tile_product(w.type, p, 1, route, stream);
}

}  // namespace tandem
