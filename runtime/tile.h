// The packed layout of a block-format matrix: tiles of 16 rows, one SIMD lane (CPU) or one thread of a half warp (GPU)
// per row, the same bytes in RAM, in VRAM and in a cache file. A tile holds 16 rows x K columns as segments of 256
// columns (the last may be shorter, in whole blocks), which is the unit of the reduction (docs/numerics.md, R4). A
// segment is scales first, then codes; docs/formats.md, "Tiles", has the byte offsets of every type.
//
// Packing permutes the bits of the file's blocks and loses none: unpack_tile gives the file's bytes back. 16 rows take
// the bytes of 16 rows in the file; a last tile with fewer rows is filled with zero blocks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/quant.h"

namespace tandem {

inline constexpr std::size_t kTileRows = 16;

// Planes of codes for one block of 32 columns; r is the row in the tile, j = 0..3:
//   P8, 512 bytes: byte [g][r][j], g = 0..7: code of column 4g + j
//   P4, 256 bytes: byte [g][r][j], g = 0..3: low nibble column 4g + j, high nibble column 16 + 4g + j
//   P2, 128 bytes: byte [h][r][j], h = 0..1: bits 2k, 2k+1 hold column 16h + 4k + j, k = 0..3
//   P1,  64 bytes: byte [r][j]: bit g holds column 4g + j, g = 0..7
// Scales of one segment of nb blocks; every field is [..][16 rows]:
//   Q4_0, Q5_0, Q8_0, IQ4_NL   f16 d[nb]
//   Q4_1, Q5_1                 f16 d[nb], f16 m[nb]
//   MXFP4                      u8 e[nb]
//   Q2_0                       f16 d[nb / 2] (one per 64 columns)
//   Q2_K                       f16 d, f16 dmin, u8 scales[16]
//   Q3_K                       f16 d, u8 scales[12] in the file's order
//   Q4_K, Q5_K                 f16 d, f16 dmin, u8 scales[12] in the file's order
//   Q6_K                       f16 d, i8 scales[16]
//   IQ4_XS                     f16 d, u16 scales_h, u8 scales_l[4]
// Codes of one block, blocks in order:
//   Q4_0, Q4_1, Q4_K, IQ4_NL, IQ4_XS, MXFP4   P4
//   Q5_0, Q5_1, Q5_K                          P4 (low four bits), P1 (fifth bit)
//   Q6_K                                      P4 (low four bits), P2 (high two)
//   Q8_0                                      P8
//   Q2_0, Q2_K                                P2
//   Q3_K                                      P2 (low two bits), P1 (the file's hmask bit)
// The lattice types (IQ1_*, IQ2_*, IQ3_*) have layouts of their own: docs/formats.md.

// True for the types that have a tile layout; other block formats are read row by row.
bool has_tile_layout(DType type);

// Bytes of a segment of `blocks` blocks of 32 columns, of a tile of `cols` columns, and of a packed matrix.
// REQUIRES has_tile_layout(type) and whole blocks.
std::size_t tile_segment_bytes(DType type, std::size_t blocks);
std::size_t tile_bytes(DType type, std::size_t cols);
inline std::size_t packed_bytes(DType type, std::size_t rows, std::size_t cols) {
  return (rows + kTileRows - 1) / kTileRows * tile_bytes(type, cols);
}

// Packs `count` <= 16 rows, row_bytes(type, cols) apart, into one tile; and back.
void pack_tile(DType type, const std::uint8_t* rows, std::size_t count, std::size_t cols, std::uint8_t* tile);
void unpack_tile(DType type, const std::uint8_t* tile, std::size_t count, std::size_t cols, std::uint8_t* rows);

}  // namespace tandem
