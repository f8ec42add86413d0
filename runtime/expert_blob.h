// One expert, one blob: the tiles of gate, then up, then down, in one piece of memory. The same bytes serve RAM, VRAM
// and a cache file, so moving an expert is one copy.
#pragma once

#include "runtime/model.h"
#include "runtime/packed_matrix.h"

namespace tandem {

// Where the three matrices lie in a blob.
struct ExpertBlobLayout {
  struct Part {
    DType type = DType::F32;
    std::size_t rows = 0, cols = 0;
    std::size_t offset = 0;  // of the first tile
    std::size_t tile_bytes = 0;
    std::size_t tiles() const { return (rows + kTileRows - 1) / kTileRows; }
    std::size_t tile_rows(std::size_t index) const {
      return index + 1 < tiles() ? kTileRows : rows - index * kTileRows;
    }
  };
  Part gate, up, down;
  std::size_t bytes = 0;  // of one blob, a multiple of 64

  // False when one of the three types has no tile layout; such a bank is read from the file's rows.
  static bool possible(const ExpertBank& bank);
  static ExpertBlobLayout of(const ExpertBank& bank);  // REQUIRES possible(bank)
};

// Packs one expert into `blob` (layout.bytes, every byte written).
void pack_expert(const ExpertBank& bank, int expert, const ExpertBlobLayout& layout, std::uint8_t* blob);

}  // namespace tandem
