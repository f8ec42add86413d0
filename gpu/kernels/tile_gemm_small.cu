// The many-row kernels of the types with a scale per block: tile_gemm.cuh says how they work.
#include "gpu/kernels/tile_gemm.cuh"

namespace tandem {

namespace {
template <>
constexpr bool kBranchFree<CardMXFP4> = false;
template <>
constexpr bool kBranchFree<CardQ5<false>> = false;
}  // namespace

const TileGemmKernel* small_gemm_kernel(DType type) {
  return for_small_type(type, []<class T>(T) -> const TileGemmKernel* {
    static constexpr TileGemmKernel kKernel = gemm_kernel_of<T>();
    return &kKernel;
  });
}

}  // namespace tandem
