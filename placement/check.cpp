#include "placement/check.h"

#include <cstdio>
#include <cstdlib>

namespace tandem::detail {

void check_failed(const char* file, int line, const char* expression, std::string_view values) {
  fmt::print(stderr, "\ntandem: internal error at {}:{}: {} is false{}{}\n", file, line, expression,
             values.empty() ? "" : ": ", values);
  std::fflush(stderr);
  std::abort();
}

}  // namespace tandem::detail
