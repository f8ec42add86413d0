// Two kinds of error, and nothing else:
//   CHECK      a mistake of ours. Always on; prints the expression, the place and the values, then aborts.
//   InputError a mistake in a file, a flag, a policy or a prompt. Thrown before anything is changed, caught only in
//              runtime/main.cpp (exit code 2) and by the chat prompt (message, chat goes on).
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace tandem {

// One message a person can act on: where (file, key, tensor or flag), what was expected, what was found, and how to
// fix it. The convention is "WHERE: expected X, found Y. Fix: Z".
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <typename... Args>
[[noreturn]] void fail_input(fmt::format_string<Args...> format, Args&&... args) {
  throw InputError(fmt::format(format, std::forward<Args>(args)...));
}

namespace detail {
[[noreturn]] void check_failed(const char* file, int line, const char* expression, std::string_view values);
}

// CHECK(condition) or CHECK(condition, "format {}", values...): aborts with the values when the condition is false.
#define TANDEM_CHECK_MESSAGE(...) ::fmt::format(__VA_ARGS__)
#define CHECK(condition, ...)                                                                       \
  do {                                                                                              \
    if (!(condition)) [[unlikely]] {                                                                \
      ::tandem::detail::check_failed(__FILE__, __LINE__, #condition,                                \
                                     ::std::string{__VA_OPT__(TANDEM_CHECK_MESSAGE(__VA_ARGS__))}); \
    }                                                                                               \
  } while (false)

// DCHECK is CHECK in debug and sanitizer builds, and nothing in release builds.
#ifdef NDEBUG
#define DCHECK(condition, ...) \
  do {                         \
  } while (false && (condition))
#else
#define DCHECK(...) CHECK(__VA_ARGS__)
#endif

}  // namespace tandem
