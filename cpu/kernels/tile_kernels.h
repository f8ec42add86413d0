// Implements: products of packed tiles (runtime/tile.h) with quantised rows, R3 and R4 of docs/numerics.md, for every
// instruction set this build has. All of them give the bits of dot_block_ref.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "runtime/quant.h"

namespace tandem {

enum class TileIsa : std::uint8_t { kScalar, kAvx2, kAvxVnni, kAvx512Vnni };
inline constexpr std::array<TileIsa, 4> kAllTileIsas{TileIsa::kScalar, TileIsa::kAvx2, TileIsa::kAvxVnni,
                                                     TileIsa::kAvx512Vnni};
std::string_view tile_isa_name(TileIsa isa);  // "scalar", "avx2", "avxvnni", "avx512"
std::optional<TileIsa> find_tile_isa(std::string_view name);
bool tile_isa_supported(TileIsa isa);  // by this processor
TileIsa best_tile_isa();

// One quantised activation row and where its results go: y[0 .. rows) receives the tile's rows.
struct TileJob {
  const std::int8_t* q;
  const float* d;
  const std::int32_t* s;  // [cols / 16]
  float* y;
};

// The first `rows` rows of one tile of `cols` columns times every job, each result times `scale`. The tile is read once
// per eight jobs.
using TileFunction = void (*)(const std::uint8_t* tile, std::size_t cols, const TileJob* jobs, std::size_t job_count,
                              std::size_t rows, float scale);

// The kernel of a type, or nullptr when the type has no tile layout. REQUIRES tile_isa_supported(isa) before calling
// it.
TileFunction tile_function(TileIsa isa, DType type);

}  // namespace tandem
