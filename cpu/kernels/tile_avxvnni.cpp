// The tile kernels for one instruction set; compiled with its flags (CMakeLists.txt).
#define TANDEM_TILE_AVXVNNI
#include "cpu/kernels/tile_lattice.h"
#include "cpu/kernels/tile_table.h"

namespace tandem {
TileFunction tile_function_avxvnni(DType type) {
  const TileFunction function = tile_table(type);
  return function != nullptr ? function : lattice_table(type);
}
}  // namespace tandem
