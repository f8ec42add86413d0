// The GPU as an Ops. No CUDA type here: callers build the same with and without CUDA.
#pragma once

#include <memory>
#include <string>

#include "runtime/ops.h"

namespace tandem {

// Null when device number `device` cannot be used; *why_not then holds the reason as the end of a sentence
// ("this build has no GPU support").
std::unique_ptr<Ops> make_gpu_ops(int device, std::string* why_not);

}  // namespace tandem
