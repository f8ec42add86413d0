// How runtime/tile.cpp reaches the layouts of the block types, and the word moves that the layouts are written with.
// Only tile*.cpp include this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "runtime/quant.h"
#include "runtime/tile.h"

namespace tandem::tile_internal {

inline constexpr std::size_t kSegmentBlocks = 8;  // blocks of 32 columns in a full segment

// One segment of one type, both ways. Row r of the segment begins at rows + r * stride, in the file's form, and has
// `blocks` blocks of 32 columns. A segment takes 16 * row_bytes(type, 32 * blocks) bytes and is a permutation of the
// bits of 16 such rows. `pack` writes the lanes 0 .. count - 1 and no byte of another lane (the caller has zeroed the
// segment when count < 16); `unpack` writes every byte of the rows 0 .. count - 1.
struct TileFormat {
  void (*pack)(const std::uint8_t* rows, std::size_t stride, std::size_t count, std::size_t blocks,
               std::uint8_t* segment);
  void (*unpack)(const std::uint8_t* segment, std::size_t count, std::size_t blocks, std::uint8_t* rows,
                 std::size_t stride);
};

// The layout of a type, or nullptr when the file does not define one for it.
const TileFormat* arithmetic_tile_format(DType type);  // runtime/tile_arith.cpp
const TileFormat* lattice_tile_format(DType type);     // runtime/tile_lattice.cpp: IQ1_*, IQ2_*, IQ3_*

// A layout is written once and compiled for both ways: the same places, read and written with the roles exchanged.
enum class Way { kPack, kUnpack };
template <Way W>
using FileByte = std::conditional_t<W == Way::kPack, const std::uint8_t, std::uint8_t>;
template <Way W>
using TileByte = std::conditional_t<W == Way::kPack, std::uint8_t, const std::uint8_t>;

// Moves `words` little-endian words: the one at file + i * file_step pairs with the one at tile + i * tile_step.
// `regroup(Word (&)[kWords])` permutes the bits in between; a regrouping that is not its own inverse looks at W.
template <Way W, typename Word, std::size_t kWords, typename Regroup>
inline __attribute__((always_inline)) void move_words(FileByte<W>* file, std::size_t file_step, TileByte<W>* tile,
                                                      std::size_t tile_step, Regroup&& regroup) {
  Word words[kWords];
  for (std::size_t i = 0; i < kWords; ++i) {
    if constexpr (W == Way::kPack) {
      __builtin_memcpy(&words[i], file + i * file_step, sizeof(Word));
    } else {
      __builtin_memcpy(&words[i], tile + i * tile_step, sizeof(Word));
    }
  }
  regroup(words);
  for (std::size_t i = 0; i < kWords; ++i) {
    if constexpr (W == Way::kPack) {
      __builtin_memcpy(tile + i * tile_step, &words[i], sizeof(Word));
    } else {
      __builtin_memcpy(file + i * file_step, &words[i], sizeof(Word));
    }
  }
}

// `kCount` values that lie side by side in the row and 16 values apart in the tile: [kCount][16 rows], lane r.
template <Way W, typename Word, std::size_t kCount = 1>
inline __attribute__((always_inline)) void move_field(FileByte<W>* file, TileByte<W>* field, std::size_t r) {
  move_words<W, Word, kCount>(file, sizeof(Word), field + r * sizeof(Word), kTileRows * sizeof(Word),
                              [](Word(&)[kCount]) {});
}

// TileFormat of a layout: Layout::row<W>(row, blocks, r, segment) moves the row r of a segment.
template <typename Layout>
inline constexpr TileFormat kTileFormatOf = {
    [](const std::uint8_t* rows, std::size_t stride, std::size_t count, std::size_t blocks, std::uint8_t* segment) {
      for (std::size_t r = 0; r < count; ++r) Layout::template row<Way::kPack>(rows + r * stride, blocks, r, segment);
    },
    [](const std::uint8_t* segment, std::size_t count, std::size_t blocks, std::uint8_t* rows, std::size_t stride) {
      for (std::size_t r = 0; r < count; ++r) Layout::template row<Way::kUnpack>(rows + r * stride, blocks, r, segment);
    },
};

}  // namespace tandem::tile_internal
