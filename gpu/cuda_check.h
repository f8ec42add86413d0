// CUDA_CHECK(call): aborts with the call, the error's name and the place when a CUDA call fails. A failing call is a
// mistake of ours or a lost device; neither can be gone on from.
#pragma once

#include <cuda_runtime_api.h>

namespace tandem::detail {
[[noreturn]] void cuda_failed(const char* file, int line, const char* expression, cudaError_t error);
inline void cuda_check(const char* file, int line, const char* expression, cudaError_t error) {
  if (error != cudaSuccess) [[unlikely]]
    cuda_failed(file, line, expression, error);
}
}  // namespace tandem::detail

#define CUDA_CHECK(...) ::tandem::detail::cuda_check(__FILE__, __LINE__, #__VA_ARGS__, (__VA_ARGS__))
// After a launch: reports a launch that was refused (too much shared memory, a wrong grid), not what the kernel does.
#define CUDA_CHECK_LAUNCH() CUDA_CHECK(cudaGetLastError())
