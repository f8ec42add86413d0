// What a launch of a tile kernel (tile_product.cuh) is given, and the table of the kernels. Inside gpu/kernels only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/kernels/expert_jobs.h"
#include "gpu/kernels/tile_product.h"

namespace tandem {

// Two blocks of these share a processor with 96 registers a thread.
inline constexpr int kMaxTileThreads = 320;

// Segments in flight per warp: about 4 to 5 KB.
template <int kSegmentBytes>
inline constexpr int kTileStages = kSegmentBytes >= 2000   ? 2
                                   : kSegmentBytes >= 1200 ? 3
                                                           : 4;

struct TileProduct {
  // The matrix, and for `fused` its partner (gate, up), of the same type and shape. data null: in the blob of a job.
  const std::uint8_t* data[2];
  std::size_t offset[2];  // in a blob
  std::size_t tile_bytes;
  float scale[2];
  const float* expert_scale[2];  // by expert, times scale; or null
  int rows, tiles, blocks, segments, padded_segments;
  int segment_bytes;           // of a stage of the ring
  const std::uint32_t* table;  // of a lattice type
  // Activations and who uses them: rows 0 .. width - 1 of x, or the pairs of jobs, whose row is pair / divide.
  DeviceQuant x;
  int width, divide;
  const ExpertJob* jobs;
  const std::int32_t* job_count;
  // The cut of the work: tiles of a block, warps per segment of them.
  int slots, groups;
  bool fused, wide;
  // Results by row or pair. Plain: y; NaN where bad[pair] is not 0 (bad may be null).
  float* y;
  std::size_t y_stride;
  // Fused: the quantised hidden row; bad[pair] = 1 when it holds a value that is not finite.
  std::int8_t* hidden_q;
  float* hidden_d;
  std::int32_t* hidden_s;
  std::int32_t* bad;
};

// Kernels of a type for at most 1, 2, 4, 8 activation rows.
struct TileKernels {
  void (*kernel[4])(TileProduct);
  int (*segment_bytes)(int blocks);
  int stages;
  int table_bytes;
};

// One per source of instantiations; null for a type that it does not have.
const TileKernels* small_tile_kernels(DType type);
const TileKernels* wide_tile_kernels(DType type);
const TileKernels* lattice_tile_kernels(DType type);

// Any type with a tile layout; aborts for others.
const TileKernels& tile_kernels(DType type);

// Fills what follows from type and shape. Everything else is zero: the caller says what to multiply.
TileProduct tile_product(DType type, std::size_t rows, std::size_t cols);
// Chooses the cut of the work and launches. `jobs`: how many row groups or jobs the grid has to serve at most.
void launch_tile_product(DType type, TileProduct& p, int jobs, TileRoute route, cudaStream_t stream);

}  // namespace tandem
