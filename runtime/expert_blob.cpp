#include "runtime/expert_blob.h"

#include <cstring>

namespace tandem {

bool ExpertBlobLayout::possible(const ExpertBank& bank) {
  return has_tile_layout(bank.gate.type) && has_tile_layout(bank.up.type) && has_tile_layout(bank.down.type);
}

ExpertBlobLayout ExpertBlobLayout::of(const ExpertBank& bank) {
  ExpertBlobLayout layout;
  std::size_t at = 0;
  const auto place = [&at](const WeightView& view) {
    const Part part{view.type, view.rows, view.cols, at, tandem::tile_bytes(view.type, view.cols)};
    at += part.tiles() * part.tile_bytes;
    at = (at + 63) / 64 * 64;
    return part;
  };
  layout.gate = place(bank.gate);
  layout.up = place(bank.up);
  layout.down = place(bank.down);
  layout.bytes = at;
  return layout;
}

void pack_expert(const ExpertBank& bank, int expert, const ExpertBlobLayout& layout, std::uint8_t* blob) {
  const ExpertWeights weights = bank.expert(expert);
  const auto pack = [blob](const WeightView& view, const ExpertBlobLayout::Part& part) {
    for (std::size_t t = 0; t < part.tiles(); ++t)
      pack_tile(part.type, view.row(t * kTileRows), part.tile_rows(t), part.cols,
                blob + part.offset + t * part.tile_bytes);
    return part.offset + part.tiles() * part.tile_bytes;
  };
  const auto fill = [blob](std::size_t from, std::size_t to) { std::memset(blob + from, 0, to - from); };
  fill(pack(weights.gate, layout.gate), layout.up.offset);
  fill(pack(weights.up, layout.up), layout.down.offset);
  fill(pack(weights.down, layout.down), layout.bytes);
}

}  // namespace tandem
