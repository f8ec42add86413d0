// A second reading of the tile layouts of the arithmetic types, element by element from the text of runtime/tile.h:
// where a scale lies, where a code lies, nothing else. It shares no code with the packing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/quant.h"

namespace tandem::testing {

// The types that it can read: every one with a tile layout except the lattice types.
inline constexpr DType kArithmeticTileTypes[] = {DType::Q4_0, DType::Q4_1,   DType::Q5_0,   DType::Q5_1, DType::Q8_0,
                                                 DType::Q2_0, DType::Q2_K,   DType::Q3_K,   DType::Q4_K, DType::Q5_K,
                                                 DType::Q6_K, DType::IQ4_NL, DType::IQ4_XS, DType::MXFP4};

// Columns 32 * b .. 32 * b + 31 of row r in a tile of `cols` columns, as decode_block32 has them.
Block32 read_tile_block(DType type, const std::uint8_t* tile, std::size_t cols, std::size_t r, std::size_t b);

// Bytes of a segment of nb blocks, from the same text.
std::size_t segment_bytes_by_text(DType type, std::size_t nb);

// `bytes` uniformly random bytes: codes and scales take every value, NaN and infinite ones included.
std::vector<std::uint8_t> random_bytes(std::size_t bytes, std::uint64_t seed);

}  // namespace tandem::testing
