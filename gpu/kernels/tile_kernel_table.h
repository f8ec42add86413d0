// What a launch of a tile kernel (tile_product.cuh) is given, and the table of the kernels. Inside gpu/kernels only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/kernels/expert_jobs.h"
#include "gpu/kernels/tile_product.h"

namespace tandem {

inline constexpr int kMaxTileThreads = 640;
inline constexpr int kMaxExpertWarps = 12;  // that take units, beside the one that finishes items
inline constexpr int kMaxExpertThreads = 32 * (kMaxExpertWarps + 1);
// Asynchronous copies move 32 bytes at a time: to a place that is not aligned to that they are slower (H200: experts of
// Q6_K and Q8_0 by 6 to 14 %; to lines of 128 bytes it is 1 % more, which the shared memory of an RTX 3090 lacks).
inline constexpr int kCopyAlignment = 32;
constexpr int for_copies(int bytes) {
  return (bytes + kCopyAlignment - 1) / kCopyAlignment * kCopyAlignment;
}
inline constexpr int kExpertHeadBytes = kCopyAlignment;  // of a block's shared memory, before its warps'
inline constexpr int kTileUnroll = 4;                    // blocks of 32 columns in the loop over a segment, mma
inline constexpr int kDotUnroll = 4;                     // dp4a

// Neighbouring segments that a warp takes at once: one per half warp where a lane has a row.
template <int V>
inline constexpr int kSegmentsTogether = V <= 2 ? 2 : 1;
// Stages of a warp's ring: about 4 to 9 KB in flight.
template <int kStageBytes>
inline constexpr int kTileStages = kStageBytes >= 2000   ? 2
                                   : kStageBytes >= 1200 ? 3
                                                         : 4;

// Shared memory of the activations of one segment, V rows: codes, scales, sums.
template <int V>
inline constexpr int kTileActivationBytes = for_copies(V*(288 + 36 + 72));

// From a tile's segment to that of a half warp's neighbour, so that the two never meet in a bank.
template <int kBytes>
inline constexpr int kTilePitch = (kBytes + 63) / 128 * 128 + 64;

// One of several matrices of the same type and columns that meet the same activations.
struct TilePart {
  const std::uint8_t* data;
  float* y;
  std::size_t y_stride;
  float scale;
  int rows, tiles;
  int first_group;  // of the grid's groups of tiles
};
inline constexpr int kTileParts = static_cast<int>(kMaxTileMatrices);

// Where results go.
struct TileResults {
  // Plain: y; NaN where bad[row] is not 0 (bad may be null).
  float* y;
  std::size_t y_stride;
  // Fused: the quantised hidden row; bad[row] = 1 when it holds a value that is not finite.
  std::int8_t* hidden_q;
  float* hidden_d;
  std::int32_t* hidden_s;
  std::int32_t* bad;
};

struct TileProduct {
  // The matrix, and for `fused` its partner (gate, up), of the same type and shape.
  const std::uint8_t* data[2];
  std::size_t tile_bytes;
  float scale[2];
  int rows, tiles, blocks, segments, padded_segments;
  int units;                   // of a row: segments, taken together
  int stages, stage_bytes;     // of the ring
  int warp_bytes;              // ring and activations of a warp
  const std::uint32_t* table;  // of a lattice type
  DeviceQuant x;               // rows 0 .. width - 1 are used
  int width;
  // Several matrices: what differs between them is here, not above. Not fused.
  int parts;
  TilePart part[kTileParts];
  // The cut of the work: tiles of a block, warps per segment of them.
  int slots, groups;
  bool fused;
  TileResults out;
};

// The same for a list of experts (expert_product.cuh).
struct ExpertProduct {
  std::size_t offset[2];  // of the matrix, and for `fused` its partner, in a job's blob
  std::size_t tile_bytes;
  float scale[2];
  const float* expert_scale[2];  // by expert, times scale; or null
  int rows, tiles, blocks, segments, padded_segments;
  int warp_bytes;  // of a unit's weights and activations
  const std::uint32_t* table;
  DeviceQuant x;
  bool by_pair;  // x has a row per pair; otherwise those of the pass
  // The list, and whether the kernel before this one found it there, too.
  const ExpertJob* jobs;
  const std::int32_t* job_count;
  bool list_ready;
  // Tiles of an item (fused: of both matrices together; even), items of a job.
  int slots, groups;
  int units;                   // of an item: two tiles of one segment
  int step_jobs, step_groups;  // from an item of a block to its next: the grid, cut into jobs and the rest
  bool fused;
  TileResults out;  // by pair
};

// Kernels of a type for at most 1, 2, 4, 8 activation rows.
struct TileKernels {
  void (*kernel[4])(TileProduct);
  void (*expert[3])(ExpertProduct);  // 1, 2, 4
  int (*segment_bytes)(int blocks);
  int stages[4];
  int pitch;
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
ExpertProduct expert_product(DType type, std::size_t rows, std::size_t cols);
// Choose the cut of the work and launch.
void launch_tile_product(DType type, TileProduct& p, TileRoute route, cudaStream_t stream);
// `jobs`, `rows`: how many jobs there are and rows a job has at most.
void launch_expert_product(DType type, ExpertProduct& p, int jobs, int rows, cudaStream_t stream);

}  // namespace tandem
