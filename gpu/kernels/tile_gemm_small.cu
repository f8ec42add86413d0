// The many-row kernels of the types with a scale per block: tile_gemm.cuh says how they work.
#include "gpu/kernels/tile_gemm.cuh"

namespace tandem {

const TileGemmKernel* small_gemm_kernel(DType type) {
  return for_small_type(type, []<class T>(T) -> const TileGemmKernel* {
    static constexpr TileGemmKernel kKernel = gemm_kernel_of<T>();
    return &kKernel;
  });
}

}  // namespace tandem
