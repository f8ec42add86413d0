#include "gpu/cuda_check.h"

#include <cstdio>
#include <cstdlib>

namespace tandem::detail {

void cuda_failed(const char* file, int line, const char* expression, cudaError_t error) {
  std::fprintf(stderr, "\ntandem: internal error at %s:%d: %s failed: %s (%s)\n", file, line, expression,
               cudaGetErrorName(error), cudaGetErrorString(error));
  std::fflush(stderr);
  std::abort();
}

}  // namespace tandem::detail
