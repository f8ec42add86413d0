// What a launch of a many-row kernel (tile_gemm.cuh) is given, and the table of the kernels. Inside gpu/kernels only.
#pragma once

#include "gpu/kernels/tile_gemm.h"
#include "gpu/kernels/tile_kernel_table.h"

namespace tandem {

inline constexpr int kGemmWarps = 8;  // of a block at most

struct TileGemm {
  std::size_t tile_bytes;
  int blocks, segments;
  int stage_bytes;  // of a warp's weights
  const std::uint32_t* table;
  DeviceQuant x;
  // Plain: rows 0 .. width - 1 of x times the parts; `fused`: gate and up are parts 0 and 1, of the same shape.
  int width;
  int parts;
  TilePart part[kTileParts];
  bool fused;
  // Blocks that share the segments of a row, `split` (a power of two) each: their sums are nodes of the tree, and block
  // z writes its own to part[0].y + z * split_stride. 0: one block has them all.
  int split;
  std::size_t split_stride;
  // Experts (sorted.first not null): the pairs of the batch's; the matrices at these offsets of a blob. part[0] (and
  // part[1] where fused) have scale, rows and tiles. Row pair / used of x meets the pair.
  SortedPairs sorted;
  int used;
  std::size_t offset[2];
  ExpertBatch batch;
  // As of TileProduct.
  std::int8_t* hidden_q;
  float* hidden_d;
  std::int32_t* hidden_s;
  std::int32_t* bad;
};

struct TileGemmKernel {
  void (*kernel)(TileGemm);
  int (*segment_bytes)(int blocks);
  int activation_bytes;  // of a segment of kGemmRows rows
  int table_bytes;
};

const TileGemmKernel* small_gemm_kernel(DType type);
const TileGemmKernel* wide_gemm_kernel(DType type);
const TileGemmKernel* lattice_gemm_kernel(DType type);
// Any type with a tile layout; aborts for others.
const TileGemmKernel& gemm_kernel(DType type);
// Once per device and type: part of load_tile_kernels().
void load_gemm_kernel(DType type);

}  // namespace tandem
