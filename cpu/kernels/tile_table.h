// Type to kernel, for the instruction set of the including file.
#pragma once

#include "cpu/kernels/tile_arith.h"

namespace tandem {
namespace {

inline TileFunction tile_table(DType type) {
  switch (type) {
    case DType::Q4_0:
      return &tile_entry<TileQ4_0>;
    case DType::Q4_1:
      return &tile_entry<TileQ4_1>;
    case DType::Q5_0:
      return &tile_entry<TileQ5_0>;
    case DType::Q5_1:
      return &tile_entry<TileQ5_1>;
    case DType::Q8_0:
      return &tile_entry<TileQ8_0>;
    case DType::Q2_0:
      return &tile_entry<TileQ2_0>;
    case DType::Q2_K:
      return &tile_entry<TileQ2_K>;
    case DType::Q3_K:
      return &tile_entry<TileQ3_K>;
    case DType::Q4_K:
      return &tile_entry<TileQ4_K>;
    case DType::Q5_K:
      return &tile_entry<TileQ5_K>;
    case DType::Q6_K:
      return &tile_entry<TileQ6_K>;
    case DType::IQ4_NL:
      return &tile_entry<TileIQ4_NL>;
    case DType::IQ4_XS:
      return &tile_entry<TileIQ4_XS>;
    case DType::MXFP4:
      return &tile_entry<TileMXFP4>;
    default:
      return nullptr;
  }
}

}  // namespace
}  // namespace tandem
