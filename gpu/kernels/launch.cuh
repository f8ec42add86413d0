// How kernels of a pass are launched: each may be brought onto the card while the one before it on its stream still
// runs, up to the point where it needs what came before (sm_90 on: programmatic dependent launch). That hides the start
// of a kernel, and the first reads of its weights, behind the end of the one before.
//
// What a kernel launched this way owes: every thread calls begin_kernel() once, before it returns and before it reads
// or writes anything that a kernel writes. Weights, and arguments, may be read earlier. begin_kernel() returns when all
// kernels before have ended and what they wrote can be seen, and lets the next one come: never two at a time.
// Measured: docs/performance.md, "Early starts".
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "gpu/cuda_check.h"
#include "gpu/kernels/launch.h"

namespace tandem {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool kEarlyStarts = true;
#else
inline constexpr bool kEarlyStarts = false;
#endif

__device__ __forceinline__ void begin_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

template <typename... Parameters, typename... Arguments>
void launch_kernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared, cudaStream_t stream,
                   const Arguments&... arguments) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = early_starts() ? 1 : 0;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

}  // namespace tandem
