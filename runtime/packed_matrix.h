// A block-format matrix in the tile layout of runtime/tile.h, with the memory that holds it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "placement/check.h"
#include "runtime/quant.h"
#include "runtime/tensor.h"
#include "runtime/tile.h"

namespace tandem {

// Runs body(0) .. body(n - 1), in any order and on any threads, and returns when all have ended. An exception of a body
// is rethrown by the call. The machines bring their own: runtime knows no threads.
using ParallelFor = std::function<void(std::size_t n, const std::function<void(std::size_t)>& body)>;

namespace detail {
struct AlignedRelease {
  std::size_t alignment = 0;
  void operator()(std::uint8_t* memory) const;
};
}  // namespace detail

// Movable. The tiles lie one after the other, tile_bytes apart, so that data() .. data() + bytes() is what a copy to a
// device or to a cache file moves. data() is aligned to 64 bytes; a tile is to the largest power of two in tile_bytes,
// at least 16.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  // Memory for rows x cols, not yet written. REQUIRES has_tile_layout(type) and whole blocks. Throws std::bad_alloc.
  PackedMatrix(DType type_, std::size_t rows_, std::size_t cols_);

  DType type = DType::F32;
  std::size_t rows = 0;
  std::size_t cols = 0;
  std::size_t tile_bytes = 0;
  float scale = 1.0F;  // multiplies every product, as in WeightView

  explicit operator bool() const { return memory_ != nullptr; }
  std::size_t tiles() const { return (rows + kTileRows - 1) / kTileRows; }
  std::size_t bytes() const { return tiles() * tile_bytes; }
  // Rows of tile `index` that the matrix has: 16, or fewer in the last tile.
  std::size_t tile_rows(std::size_t index) const {
    DCHECK(index < tiles());
    return index + 1 < tiles() ? kTileRows : rows - index * kTileRows;
  }
  const std::uint8_t* data() const { return memory_.get(); }
  std::uint8_t* data() { return memory_.get(); }
  const std::uint8_t* tile(std::size_t index) const {
    DCHECK(index < tiles());
    return memory_.get() + index * tile_bytes;
  }
  std::uint8_t* tile(std::size_t index) {
    DCHECK(index < tiles());
    return memory_.get() + index * tile_bytes;
  }

 private:
  std::unique_ptr<std::uint8_t, detail::AlignedRelease> memory_;
};

// Packs a matrix tile by tile: body(i) of `parallel` writes a group of tiles and nothing else. REQUIRES
// has_tile_layout(view.type) and at least one row. Throws std::bad_alloc.
PackedMatrix pack_matrix(const WeightView& view, const ParallelFor& parallel);

}  // namespace tandem
