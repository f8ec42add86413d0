// Unbuffered writing to a file descriptor, with every failure noticed.
#pragma once

#include <exception>
#include <string_view>

namespace tandem {

// The reader of standard output has gone (a closed pipe). Not an error of ours or of the user: main ends quietly.
class OutputClosed : public std::exception {
 public:
  const char* what() const noexcept override { return "standard output was closed"; }
};

// Writes all bytes to standard output. Throws OutputClosed, or InputError for a full disk and the like.
// REQUIRES SIGPIPE to be ignored (ignore_broken_pipes).
void write_stdout(std::string_view bytes);

// To standard error; failures are ignored, there is nobody left to tell.
void write_stderr(std::string_view bytes);

void ignore_broken_pipes();

}  // namespace tandem
