// The many-row kernels of the types of 256 columns with plain codes: tile_gemm.cuh says how they work.
#include "gpu/kernels/tile_gemm.cuh"

namespace tandem {

const TileGemmKernel* wide_gemm_kernel(DType type) {
  return for_wide_type(type, []<class T>(T) -> const TileGemmKernel* {
    static constexpr TileGemmKernel kKernel = gemm_kernel_of<T>();
    return &kKernel;
  });
}

}  // namespace tandem
