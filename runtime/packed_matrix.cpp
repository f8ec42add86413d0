#include "runtime/packed_matrix.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace tandem {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kBytesPerTask = std::size_t{1} << 18;  // some 0.1 ms of packing

}  // namespace

void detail::AlignedRelease::operator()(std::uint8_t* memory) const {
  ::operator delete (memory, std::align_val_t{alignment});
}

PackedMatrix::PackedMatrix(DType type_, std::size_t rows_, std::size_t cols_)
    : type(type_), rows(rows_), cols(cols_), tile_bytes(tandem::tile_bytes(type_, cols_)) {
  CHECK(rows > 0 && cols > 0, "{} x {}", rows, cols);
  // A large matrix is streamed; with huge pages the translation of addresses costs nothing. Best effort: the advice may
  // be refused.
  const bool large = bytes() >= 2 * kHugePage;
  const std::size_t alignment = large ? kHugePage : kAlignment;
  memory_ = {static_cast<std::uint8_t*>(::operator new (bytes(), std::align_val_t{alignment})),
             detail::AlignedRelease{alignment}};
  if (large) madvise(memory_.get(), bytes() / kHugePage * kHugePage, MADV_HUGEPAGE);
}

PackedMatrix pack_matrix(const WeightView& view, const ParallelFor& parallel) {
  PackedMatrix packed(view.type, view.rows, view.cols);
  packed.scale = view.scale;
  const std::size_t tiles = packed.tiles();
  const std::size_t group = std::max<std::size_t>(1, kBytesPerTask / packed.tile_bytes);
  parallel((tiles + group - 1) / group, [&](std::size_t task) {
    const std::size_t end = std::min(tiles, (task + 1) * group);
    for (std::size_t t = task * group; t < end; ++t) {
      pack_tile(view.type, view.row(t * kTileRows), packed.tile_rows(t), view.cols, packed.tile(t));
    }
  });
  return packed;
}

}  // namespace tandem
