// The GPU of a build without CUDA.
#include "gpu/gpu_ops.h"

namespace tandem {

namespace {
constexpr const char* kNone = "this build has no GPU support";
}

std::unique_ptr<Ops> make_gpu_ops(const GpuOptions& /*options*/, std::string* why_not) {
  *why_not = kNone;
  return nullptr;
}

std::vector<GpuCard> list_gpus(std::string* why_not) {
  *why_not = kNone;
  return {};
}

std::optional<Hardware::Gpu> probe_gpu(int /*device*/, std::string* why_not) {
  *why_not = kNone;
  return {};
}

}  // namespace tandem
