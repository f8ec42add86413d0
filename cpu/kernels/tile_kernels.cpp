#include "cpu/kernels/tile_kernels.h"

#include "cpu/isa.h"

namespace tandem {

// One per cpu/kernels/tile_ISA.cpp.
TileFunction tile_function_scalar(DType type);
TileFunction tile_function_avx2(DType type);
TileFunction tile_function_avxvnni(DType type);
TileFunction tile_function_avx512(DType type);
TileFunction tile_function_avx512_lattice(DType type);  // needs VBMI and GFNI

std::string_view tile_isa_name(TileIsa isa) {
  constexpr std::string_view kNames[] = {"scalar", "avx2", "avxvnni", "avx512"};
  return kNames[static_cast<std::size_t>(isa)];
}

std::optional<TileIsa> find_tile_isa(std::string_view name) {
  for (const TileIsa isa : kAllTileIsas)
    if (tile_isa_name(isa) == name) return isa;
  return std::nullopt;
}

bool tile_isa_supported(TileIsa isa) {
  const bool avx2 = cpu_has("avx2") && cpu_has("fma") && cpu_has("f16c");
  switch (isa) {
    case TileIsa::kScalar:
      return true;
    case TileIsa::kAvx2:
      return avx2;
    case TileIsa::kAvxVnni:
      return avx2 && cpu_has("avxvnni");
    case TileIsa::kAvx512Vnni:
      return avx2 && cpu_has("avx512f") && cpu_has("avx512bw") && cpu_has("avx512vl") && cpu_has("avx512dq") &&
             cpu_has("avx512vnni");
  }
  return false;
}

TileIsa best_tile_isa() {
  TileIsa best = TileIsa::kScalar;
  for (const TileIsa isa : kAllTileIsas)
    if (tile_isa_supported(isa)) best = isa;
  return best;
}

TileFunction tile_function(TileIsa isa, DType type) {
  switch (isa) {
    case TileIsa::kScalar:
      return tile_function_scalar(type);
    case TileIsa::kAvx2:
      return tile_function_avx2(type);
    case TileIsa::kAvxVnni:
      return tile_function_avxvnni(type);
    case TileIsa::kAvx512Vnni: {
      const TileFunction function = tile_function_avx512(type);
      if (function != nullptr) return function;
      // The first processors with AVX-512 VNNI lack the byte permutes that the lattice types look points up with, and
      // the affine instruction that turns their signs. Asked once: CPUID leaves a virtual machine, microseconds each
      // time, and this is called for every matrix of a list of experts.
      static const bool lattice = cpu_has("avx512vbmi") && cpu_has("gfni");
      return lattice ? tile_function_avx512_lattice(type) : tile_function_avx2(type);
    }
  }
  return nullptr;
}

}  // namespace tandem
