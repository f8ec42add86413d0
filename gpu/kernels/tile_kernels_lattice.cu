// The tile kernels of the lattice types: tile_product.cuh and expert_product.cuh say how they work.
#include "gpu/kernels/expert_product.cuh"
#include "gpu/kernels/lattice_types.cuh"

namespace tandem {

const TileKernels* lattice_tile_kernels(DType type) {
  return for_lattice_type(type, []<class T>(T) -> const TileKernels* {
    static constexpr TileKernels kKernels = tile_kernels_of<T>();
    return &kKernels;
  });
}

}  // namespace tandem
