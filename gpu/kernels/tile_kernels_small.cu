// The tile kernels of the types with a scale per block: tile_product.cuh says how they work.
#include "gpu/kernels/tile_product.cuh"

namespace tandem {

const TileKernels* small_tile_kernels(DType type) {
  switch (type) {
    case DType::Q4_0: {
      static constexpr TileKernels kKernels = tile_kernels_of<CardQ4<false>>();
      return &kKernels;
    }
    case DType::Q4_1: {
      static constexpr TileKernels kKernels = tile_kernels_of<CardQ4<true>>();
      return &kKernels;
    }
    case DType::Q5_0: {
      static constexpr TileKernels kKernels = tile_kernels_of<CardQ5<false>>();
      return &kKernels;
    }
    case DType::Q5_1: {
      static constexpr TileKernels kKernels = tile_kernels_of<CardQ5<true>>();
      return &kKernels;
    }
    case DType::Q8_0: {
      static constexpr TileKernels kKernels = tile_kernels_of<CardQ8_0>();
      return &kKernels;
    }
    case DType::Q2_0: {
      static constexpr TileKernels kKernels = tile_kernels_of<CardQ2_0>();
      return &kKernels;
    }
    case DType::IQ4_NL: {
      static constexpr TileKernels kKernels = tile_kernels_of<CardIQ4_NL>();
      return &kKernels;
    }
    case DType::MXFP4: {
      static constexpr TileKernels kKernels = tile_kernels_of<CardMXFP4>();
      return &kKernels;
    }
    default:
      return nullptr;
  }
}

}  // namespace tandem
