#include "gpu/kernels/launch_check.h"

#include <fmt/ranges.h>

#include "placement/check.h"

namespace tandem::detail {

void launch_failed(const char* file, int line, const char* expression, std::initializer_list<std::size_t> values) {
  check_failed(file, line, expression, fmt::format("{}", fmt::join(values, ", ")));
}

}  // namespace tandem::detail
