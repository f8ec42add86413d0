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
constexpr int kFewWarps = 12;           // more only where the warps have several tiles each to begin with
constexpr int kWarpBudget = 76 * 1024;  // rings and activations of a block
constexpr int kPartBudget = 20 * 1024;  // for sums of segments, beyond one tile per group
constexpr int kMaxShared = 98 * 1024;   // sm_86 and sm_89 give a block 99 KB
constexpr std::size_t kMaxCols = 32 * 1024;

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
  CHECK(most > kMaxShared, "{} bytes of shared memory per block", most);
  for (const DType type : kTypes)
    for (const auto kernel : tile_kernels(type).kernel)
      CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxShared));
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
  return p;
}

void launch_tile_product(DType type, TileProduct& p, int jobs, TileRoute route, cudaStream_t stream) {
  const TileKernels& kernels = tile_kernels(type);
  const int index = kernel_for(p.width, route), most_rows = 1 << index;
  constexpr int kActivations[] = {kTileActivationBytes<1>, kTileActivationBytes<2>, kTileActivationBytes<4>,
                                  kTileActivationBytes<8>};
  const int together = index < 2 ? kSegmentsTogether<1> : kSegmentsTogether<8>;
  p.units = divide_up(p.segments, together);
  p.stage_bytes = std::min(together, p.segments) * kernels.segment_bytes(std::min(8, p.blocks));
  const int ring = kernels.stages[index] * p.stage_bytes, activations = together * kActivations[index];
  const int part_of_tile = p.segments * most_rows * 64;
  const int budget = std::min(kWarpBudget, kMaxShared - kernels.table_bytes - (p.fused ? 4 : 1) * part_of_tile);
  const auto fit = [&](int buffers) { return std::clamp(budget / (ring + buffers * activations), 1, kMaxWarps); };
  // Warps: one per unit of segments; several groups of them where a row has few units, several rounds where it has
  // many.
  int warps, buffers = 1;
  p.groups = 1;
  if (p.units <= std::min(kFewWarps, fit(1))) {
    const int room = std::min(fit(1), p.fused ? kMaxWarps : kFewWarps) / p.units;
    const int most_groups = std::min(p.fused ? 4 : p.tiles, room);
    p.groups = p.fused && most_groups == 3 ? 2 : std::clamp(most_groups, 1, 8);
    warps = p.groups * p.units;
  } else {
    buffers = 2;
    warps = divide_up(p.units, divide_up(p.units, std::min(kFewWarps, fit(2))));
  }
  p.warp_bytes = ring + buffers * activations;
  const int row_groups = p.jobs != nullptr ? 1 : divide_up(p.width, most_rows);
  const auto shared_bytes = [&] { return warps * p.warp_bytes + kernels.table_bytes + p.slots * part_of_tile; };
  // As many tiles per block as make one wave of blocks, so that no block starts late: the ring hides what a start
  // costs.
  p.slots = p.fused ? 4 : p.groups;
  if (!p.fused) {
    int resident = 0;
    CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident,
                                                             reinterpret_cast<const void*>(kernels.kernel[index]),
                                                             32 * warps, static_cast<std::size_t>(shared_bytes())));
    const int wave = std::max(1, resident) * processors();
    while ((p.slots + p.groups) * part_of_tile <= kPartBudget && divide_up(p.tiles, p.slots) * row_groups * jobs > wave)
      p.slots += p.groups;
  }
  CHECK(shared_bytes() <= kMaxShared, "{} bytes of shared memory", shared_bytes());
  const int tile_groups = p.fused ? p.tiles / 2 : divide_up(p.tiles, p.slots);
  const dim3 grid(static_cast<unsigned>(tile_groups * row_groups), static_cast<unsigned>(jobs));
  kernels.kernel[index]<<<grid, static_cast<unsigned>(32 * warps), static_cast<std::size_t>(shared_bytes()), stream>>>(
      p);
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
