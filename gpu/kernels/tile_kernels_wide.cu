// The tile kernels of the types of 256 columns with plain codes: tile_product.cuh says how they work.
#include "gpu/kernels/tile_product.cuh"

namespace tandem {

const TileKernels* wide_tile_kernels(DType type) {
  switch (type) {
    case DType::Q2_K: {
      static constexpr TileKernels kKernels = tile_kernels_of<CardQ2_K>();
      return &kKernels;
    }
    case DType::Q3_K: {
      static constexpr TileKernels kKernels = tile_kernels_of<CardQ3_K>();
      return &kKernels;
    }
    case DType::Q4_K: {
      static constexpr TileKernels kKernels = tile_kernels_of<CardQ4_K>();
      return &kKernels;
    }
    case DType::Q5_K: {
      static constexpr TileKernels kKernels = tile_kernels_of<CardQ5_K>();
      return &kKernels;
    }
    case DType::Q6_K: {
      static constexpr TileKernels kKernels = tile_kernels_of<CardQ6_K>();
      return &kKernels;
    }
    case DType::IQ4_XS: {
      static constexpr TileKernels kKernels = tile_kernels_of<CardIQ4_XS>();
      return &kKernels;
    }
    default:
      return nullptr;
  }
}

}  // namespace tandem
