// The tile kernels for one instruction set; compiled with its flags (CMakeLists.txt).
#define TANDEM_TILE_AVX512
#include "cpu/kernels/tile_table.h"

namespace tandem {
TileFunction tile_function_avx512(DType type) {
  return tile_table(type);
}
}  // namespace tandem
