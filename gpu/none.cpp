// The GPU of a build without CUDA.
#include "gpu/gpu_ops.h"

namespace tandem {

std::unique_ptr<Ops> make_gpu_ops(int /*device*/, std::string* why_not) {
  *why_not = "this build has no GPU support";
  return nullptr;
}

}  // namespace tandem
