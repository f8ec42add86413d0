// CHECK for sources that nvcc compiles (it does not compile {fmt}): aborts with the values, all of them integers.
#pragma once

#include <cstddef>
#include <initializer_list>

namespace tandem::detail {
[[noreturn]] void launch_failed(const char* file, int line, const char* expression,
                                std::initializer_list<std::size_t> values);
}

#define LAUNCH_CHECK(condition, ...)                                                                  \
  do {                                                                                                \
    if (!(condition)) ::tandem::detail::launch_failed(__FILE__, __LINE__, #condition, {__VA_ARGS__}); \
  } while (false)
