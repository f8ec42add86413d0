// The tile kernels of the lattice types: tile_product.cuh says how they work.
#include "gpu/kernels/lattice_types.cuh"
#include "gpu/kernels/tile_product.cuh"

namespace tandem {

const TileKernels* lattice_tile_kernels(DType type) {
  switch (type) {
    case DType::IQ2_XXS: {
      static constexpr TileKernels kKernels = tile_kernels_of<CardIQ2_XXS>();
      return &kKernels;
    }
    case DType::IQ2_XS: {
      static constexpr TileKernels kKernels = tile_kernels_of<CardIQ2_XS>();
      return &kKernels;
    }
    case DType::IQ2_S: {
      static constexpr TileKernels kKernels = tile_kernels_of<CardIQ2_S>();
      return &kKernels;
    }
    case DType::IQ3_XXS: {
      static constexpr TileKernels kKernels = tile_kernels_of<CardIQ3_XXS>();
      return &kKernels;
    }
    case DType::IQ3_S: {
      static constexpr TileKernels kKernels = tile_kernels_of<CardIQ3_S>();
      return &kKernels;
    }
    case DType::IQ1_S: {
      static constexpr TileKernels kKernels = tile_kernels_of<CardIQ1_S>();
      return &kKernels;
    }
    case DType::IQ1_M: {
      static constexpr TileKernels kKernels = tile_kernels_of<CardIQ1_M>();
      return &kKernels;
    }
    default:
      return nullptr;
  }
}

}  // namespace tandem
