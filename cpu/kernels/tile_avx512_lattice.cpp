// The tile kernels of the lattice types for AVX-512 with byte permutes (VBMI); compiled with its flags
// (CMakeLists.txt).
#define TANDEM_TILE_AVX512
#include "cpu/kernels/tile_lattice.h"

namespace tandem {
TileFunction tile_function_avx512_lattice(DType type) {
  return lattice_table(type);
}
}  // namespace tandem
