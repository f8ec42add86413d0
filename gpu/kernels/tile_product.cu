#include "gpu/kernels/tile_product.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "gpu/cuda_check.h"
#include "gpu/kernels/expert_cut.h"
#include "gpu/kernels/lattice.h"
#include "gpu/kernels/launch.cuh"
#include "gpu/kernels/tile_gemm_table.h"
#include "gpu/kernels/tile_kernel_table.h"
#include "placement/check.h"
#include "runtime/exact_math.h"
#include "runtime/tile.h"

namespace tandem {
namespace {

constexpr int kMaxWarps = kMaxTileThreads / 32;
constexpr int kMaxShared = 98 * 1024;  // sm_86 and sm_89 give a block 99 KB
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

// Segments of a unit, and shared memory of its activations.
int together(int index) {
  return index < 2 ? kSegmentsTogether<1> : kSegmentsTogether<8>;
}
int activation_bytes(int index) {
  constexpr int kBytes[] = {kTileActivationBytes<1>, kTileActivationBytes<2>, kTileActivationBytes<4>,
                            kTileActivationBytes<8>};
  return together(index) * kBytes[index];
}

// How the work is cut: warps per block, groups of them that share the units of a row, tiles per block, stages per warp.
struct Cut {
  int warps, groups, slots, stages, warp_bytes, shared;
};

// The cut with the least estimated time, in the time of one unit of a warp: waves of blocks, each of which takes about
// two units to start and to end, and the units of a warp one after the other (twice that where the next unit is not on
// its way meanwhile). Measured on an H200: an empty block's 2 us against 1 us for a unit.
Cut best_cut(const TileKernels& kernels, int index, const TileProduct& p, int copies) {
  const int part_of_tile = p.segments * (1 << index) * 64, activations = activation_bytes(index);
  const auto* kernel = reinterpret_cast<const void*>(kernels.kernel[index]);
  Cut best{};
  double least = 0;
  for (int groups = 1; groups <= (p.fused ? 4 : std::min(8, p.tiles)); ++groups) {
    if (p.fused && groups == 3) continue;
    for (int rounds = 1; rounds <= p.units; ++rounds) {  // units of a row per warp
      if (rounds > 1 && groups > 1) break;
      const int warps = groups * divide_up(p.units, rounds);
      if (warps > kMaxWarps || (rounds > 1 && divide_up(p.units, rounds - 1) == warps)) continue;
      for (int tiles = 1; tiles <= 8; ++tiles) {  // per warp
        const int slots = p.fused ? 4 : groups * tiles, per_warp = (p.fused ? 4 / groups : tiles) * rounds;
        if ((p.fused || slots > p.tiles + groups) && tiles > 1) break;
        for (int stages = 1; stages <= std::min(kernels.stages[index], per_warp); ++stages) {
          const int warp_bytes = stages * p.stage_bytes + (rounds > 1 ? 2 : 1) * activations;
          const int shared = warps * warp_bytes + kernels.table_bytes + slots * part_of_tile;
          if (shared > kMaxShared) break;
          int resident = 0;
          CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, 32 * warps,
                                                                   static_cast<std::size_t>(shared)));
          if (resident == 0) break;
          const int blocks = (p.fused ? p.tiles / 2 : divide_up(p.tiles, slots)) * copies;
          const int waves = divide_up(blocks, resident * processors());
          const double units = stages == 1 ? 2.0 * per_warp - 1.0 : per_warp;
          const double time = waves * (2.0 + units);
          if (best.warps == 0 || time < least) {
            least = time;
            best = {warps, groups, slots, stages, warp_bytes, shared};
          }
        }
      }
    }
  }
  CHECK(best.warps > 0, "{} columns: no cut fits the shared memory", 32 * p.blocks);
  return best;
}

// Remembered by what it depends on: asking the driver takes longer than a launch.
Cut cut_for(DType type, int index, const TileProduct& p, int copies) {
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  using Key = std::tuple<int, DType, int, int, int, bool, int>;
  static std::mutex mutex;
  static std::map<Key, Cut> known;
  const Key key{device, type, index, p.tiles, p.blocks, p.fused, copies};
  const std::lock_guard lock(mutex);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  return known.emplace(key, best_cut(tile_kernels(type), index, p, copies)).first->second;
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
  for (const DType type : kTypes) {
    for (const auto kernel : tile_kernels(type).kernel)
      CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxShared));
    for (const auto kernel : tile_kernels(type).expert)
      CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, most));
    load_gemm_kernel(type);
  }
}

namespace {

// What the two kinds of products have in common, from type and shape.
template <class Product>
Product shaped(DType type, std::size_t rows, std::size_t cols) {
  CHECK(rows > 0 && cols > 0 && cols % dtype_info(type).block_elems == 0 && cols <= kMaxCols, "{} x {} {}", rows, cols,
        dtype_name(type));
  Product p{};
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

}  // namespace

TileProduct tile_product(DType type, std::size_t rows, std::size_t cols) {
  return shaped<TileProduct>(type, rows, cols);
}
ExpertProduct expert_product(DType type, std::size_t rows, std::size_t cols) {
  return shaped<ExpertProduct>(type, rows, cols);
}

void launch_tile_product(DType type, TileProduct& p, TileRoute route, cudaStream_t stream) {
  const TileKernels& kernels = tile_kernels(type);
  const int index = kernel_for(p.width, route);
  p.units = divide_up(p.segments, together(index));
  p.stage_bytes = std::min(together(index), p.segments) * kernels.segment_bytes(std::min(8, p.blocks));
  const int row_groups = divide_up(p.width, 1 << index);
  const Cut cut = cut_for(type, index, p, row_groups);
  p.groups = cut.groups;
  p.slots = cut.slots;
  p.stages = cut.stages;
  p.warp_bytes = cut.warp_bytes;
  int tile_groups = p.fused ? p.tiles / 2 : divide_up(p.tiles, p.slots);
  if (p.parts > 0) {
    tile_groups = 0;
    for (int i = 0; i < p.parts; ++i) {
      p.part[i].first_group = tile_groups;
      tile_groups += divide_up(p.part[i].tiles, p.slots);
    }
  }
  launch_kernel(kernels.kernel[index], static_cast<unsigned>(tile_groups * row_groups),
                static_cast<unsigned>(32 * cut.warps), static_cast<std::size_t>(cut.shared), stream, p);
}

namespace {

// How an item is cut, and how many blocks a processor takes.
struct ExpertCut {
  int pairs, warps, shared, resident;
};

// An item of so many pairs of tiles; no warps where it does not fit. Warps: expert_cut.h.
ExpertCut expert_cut(const TileKernels& kernels, int index, const ExpertProduct& p, int pairs, int most) {
  const int units = pairs * p.segments, rest = expert_rest(kernels.table_bytes, units, 1 << index);
  ExpertCut cut{};
  cut.pairs = pairs;
  cut.warps = expert_warps(units, kMaxExpertWarps, p.warp_bytes, rest, most);
  cut.shared = cut.warps * p.warp_bytes + rest;
  if (cut.warps > 0)
    CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &cut.resident, reinterpret_cast<const void*>(kernels.expert[index]), 32 * (cut.warps + 1),
        static_cast<std::size_t>(cut.shared)));
  return cut;
}

// Fused: the two tiles of 32 hidden rows; otherwise about as many pairs of tiles as give a block's warps one unit each,
// those with the most warps on a processor, and of these the fewest, so that there are many items to share out.
ExpertCut best_expert_cut(const TileKernels& kernels, int index, const ExpertProduct& p) {
  int most = 0, device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  if (p.fused) return expert_cut(kernels, index, p, 2, most);
  const int all_pairs = divide_up(p.tiles, 2), full = std::max(1, kMaxExpertWarps / p.segments);
  ExpertCut best{};
  for (int pairs = std::max(1, full - 1); pairs <= full; ++pairs) {
    const ExpertCut cut = expert_cut(kernels, index, p, std::min(all_pairs, pairs), most);
    if (best.warps == 0 || cut.resident * cut.warps > best.resident * best.warps) best = cut;
  }
  return best;
}

}  // namespace

void launch_expert_product(DType type, ExpertProduct& p, int jobs, int rows, cudaStream_t stream) {
  CHECK(rows >= 1 && rows <= kJobPairs, "{} rows of a job", rows);
  const TileKernels& kernels = tile_kernels(type);
  const int index = rows <= 2 ? rows - 1 : 2;
  constexpr int kActivations[] = {kTileActivationBytes<1>, kTileActivationBytes<2>, kTileActivationBytes<4>};
  p.warp_bytes = 2 * kernels.pitch + kActivations[index];
  CHECK(static_cast<std::size_t>(p.tiles) * p.tile_bytes < std::size_t{1} << 32, "{} tiles of {} bytes", p.tiles,
        p.tile_bytes);
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  using Key = std::tuple<int, DType, int, int, int, bool>;
  static std::mutex mutex;
  static std::map<Key, ExpertCut> known;
  const Key key{device, type, index, p.tiles, p.blocks, p.fused};
  ExpertCut cut;
  {
    const std::lock_guard lock(mutex);
    auto found = known.find(key);
    if (found == known.end()) found = known.emplace(key, best_expert_cut(kernels, index, p)).first;
    cut = found->second;
  }
  CHECK(cut.resident > 0, "{} columns: an item of {} bytes a warp does not fit the shared memory", 32 * p.blocks,
        p.warp_bytes);
  p.slots = 2 * cut.pairs;
  p.units = cut.pairs * p.segments;
  p.groups = p.fused ? p.tiles / 2 : divide_up(p.tiles, p.slots);
  const int blocks = std::min(cut.resident * processors(), jobs * p.groups);
  p.step_jobs = blocks / p.groups;
  p.step_groups = blocks % p.groups;
  launch_kernel(kernels.expert[index], static_cast<unsigned>(blocks), static_cast<unsigned>(32 * (cut.warps + 1)),
                static_cast<std::size_t>(cut.shared), stream, p);
}

void launch_tile_matmul(const DeviceTiles& w, const DeviceQuant& x, std::size_t rows, float* y, std::size_t y_stride,
                        cudaStream_t stream, TileRoute route) {
  const TileMatmul one{w, y, y_stride};
  launch_tile_matmuls(&one, 1, x, rows, stream, route);
}

void launch_tile_matmuls(const TileMatmul* products, std::size_t count, const DeviceQuant& x, std::size_t rows,
                         cudaStream_t stream, TileRoute route) {
  CHECK(count >= 1 && count <= kMaxTileMatrices, "{} matrices", count);
  if (rows == 0) return;
  if (route == TileRoute::kGemm || (route == TileRoute::kAuto && rows >= kGemmMinRows))
    return launch_tile_gemm(products, count, x, rows, stream);
  const DeviceTiles& first = products[0].w;
  if (count == 1) {
    TileProduct p = tile_product(first.type, first.rows, first.cols);
    p.data[0] = first.data;
    p.scale[0] = first.scale;
    p.x = x;
    p.width = static_cast<int>(rows);
    p.out = TileResults{.y = products[0].y, .y_stride = products[0].y_stride};
    return launch_tile_product(first.type, p, route, stream);
  }
  std::size_t all_tiles = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const DeviceTiles& w = products[i].w;
    CHECK(w.type == first.type && w.cols == first.cols && w.rows > 0, "{} x {} {} beside {} x {} {}", w.rows, w.cols,
          dtype_name(w.type), first.rows, first.cols, dtype_name(first.type));
    all_tiles += (w.rows + kTileRows - 1) / kTileRows;
  }
  TileProduct p = tile_product(first.type, all_tiles * kTileRows, first.cols);
  p.parts = static_cast<int>(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto [w, y, y_stride] = products[i];
    p.part[i] = {
        w.data, y, y_stride, w.scale, static_cast<int>(w.rows), static_cast<int>((w.rows + kTileRows - 1) / kTileRows),
        0};
  }
  p.x = x;
  p.width = static_cast<int>(rows);
  launch_tile_product(first.type, p, route, stream);
}

}  // namespace tandem
