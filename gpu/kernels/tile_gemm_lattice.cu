// The many-row kernels of the lattice types: tile_gemm.cuh says how they work.
#include "gpu/kernels/lattice_types.cuh"
#include "gpu/kernels/tile_gemm.cuh"

namespace tandem {

namespace {
template <>
constexpr bool kBranchFree<CardIQ3_S> = false;
}  // namespace

const TileGemmKernel* lattice_gemm_kernel(DType type) {
  return for_lattice_type(type, []<class T>(T) -> const TileGemmKernel* {
    static constexpr TileGemmKernel kKernel = gemm_kernel_of<T>();
    return &kKernel;
  });
}

}  // namespace tandem
