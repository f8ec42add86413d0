#include "runtime/tile.h"

#include <algorithm>
#include <cstring>

#include "placement/check.h"
#include "runtime/tile_internal.h"

namespace tandem {
namespace {

using tile_internal::TileFormat;

constexpr std::size_t kSegmentCols = 32 * tile_internal::kSegmentBlocks;

const TileFormat* find_tile_format(DType type) {
  const TileFormat* format = tile_internal::arithmetic_tile_format(type);
  return format != nullptr ? format : tile_internal::lattice_tile_format(type);
}

const TileFormat& tile_format(DType type) {
  const TileFormat* format = find_tile_format(type);
  CHECK(format != nullptr, "{} has no tile layout", dtype_name(type));
  return *format;
}

// Calls segment(first column, blocks) for each segment of `cols` columns.
template <typename Visit>
void for_each_segment(std::size_t cols, Visit&& visit) {
  for (std::size_t first = 0; first < cols; first += kSegmentCols) {
    visit(first, std::min(kSegmentCols, cols - first) / 32);
  }
}

void check_count(std::size_t count) {
  CHECK(count >= 1 && count <= kTileRows, "{} rows in a tile of {}", count, kTileRows);
}

}  // namespace

bool has_tile_layout(DType type) {
  return find_tile_format(type) != nullptr;
}

std::size_t tile_segment_bytes(DType type, std::size_t blocks) {
  CHECK(blocks <= tile_internal::kSegmentBlocks, "{} blocks in a segment", blocks);
  return tile_bytes(type, 32 * blocks);
}

std::size_t tile_bytes(DType type, std::size_t cols) {
  CHECK(has_tile_layout(type), "{} has no tile layout", dtype_name(type));
  return kTileRows * row_bytes(type, cols);
}

void pack_tile(DType type, const std::uint8_t* rows, std::size_t count, std::size_t cols, std::uint8_t* tile) {
  const TileFormat& format = tile_format(type);
  check_count(count);
  const std::size_t stride = row_bytes(type, cols);
  // A lane that is all zero bits is a row of zero blocks, as packing only moves bits.
  if (count < kTileRows) std::memset(tile, 0, kTileRows * stride);
  for_each_segment(cols, [&](std::size_t first, std::size_t blocks) {
    const std::size_t offset = row_bytes(type, first);
    format.pack(rows + offset, stride, count, blocks, tile + kTileRows * offset);
  });
}

void unpack_tile(DType type, const std::uint8_t* tile, std::size_t count, std::size_t cols, std::uint8_t* rows) {
  const TileFormat& format = tile_format(type);
  check_count(count);
  const std::size_t stride = row_bytes(type, cols);
  for_each_segment(cols, [&](std::size_t first, std::size_t blocks) {
    const std::size_t offset = row_bytes(type, first);
    format.unpack(tile + kTileRows * offset, count, blocks, rows + offset, stride);
  });
}

}  // namespace tandem
