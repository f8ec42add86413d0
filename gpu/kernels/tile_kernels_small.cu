// The tile kernels of the types with a scale per block: tile_product.cuh and expert_product.cuh say how they work.
#include "gpu/kernels/expert_product.cuh"

namespace tandem {

const TileKernels* small_tile_kernels(DType type) {
  return for_small_type(type, []<class T>(T) -> const TileKernels* {
    static constexpr TileKernels kKernels = tile_kernels_of<T>();
    return &kKernels;
  });
}

}  // namespace tandem
