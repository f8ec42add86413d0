// The tile kernels for one instruction set; compiled with its flags (CMakeLists.txt).
#define TANDEM_TILE_AVX2
#include "cpu/kernels/tile_lattice.h"
#include "cpu/kernels/tile_table.h"

namespace tandem {
TileFunction tile_function_avx2(DType type) {
  const TileFunction function = tile_table(type);
  return function != nullptr ? function : lattice_table(type);
}
}  // namespace tandem
