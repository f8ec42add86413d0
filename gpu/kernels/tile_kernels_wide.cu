// The tile kernels of the types of 256 columns with plain codes: tile_product.cuh and expert_product.cuh say how they
// work.
#include "gpu/kernels/expert_product.cuh"

namespace tandem {

const TileKernels* wide_tile_kernels(DType type) {
  return for_wide_type(type, []<class T>(T) -> const TileKernels* {
    static constexpr TileKernels kKernels = tile_kernels_of<T>();
    return &kKernels;
  });
}

}  // namespace tandem
