// A plain copy on the card: the roof that other kernels are measured against.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace tandem {

// to[0..bytes) = from[0..bytes). REQUIRES both aligned to 16 bytes and bytes % 16 == 0.
void launch_copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream);
// Reads bytes and writes nothing (unless they have an unlikely sum): the roof of kernels that only read.
// *never is one word of device memory.
void launch_read(unsigned* never, const void* from, std::size_t bytes, cudaStream_t stream);

// Whether this build has machine code or PTX that the current device can run.
bool has_kernels_for_device();

}  // namespace tandem
