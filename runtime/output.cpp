#include "runtime/output.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "placement/check.h"

namespace tandem {
namespace {

// Returns 0 or the errno that stopped it.
int write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(n));
    } else if (errno == EAGAIN) {  // somebody made the shared terminal or pipe non-blocking
      pollfd ready{fd, POLLOUT, 0};
      poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace

void write_stdout(std::string_view bytes) {
  const int error = write_all(STDOUT_FILENO, bytes);
  if (error == 0) return;
  if (error == EPIPE) throw OutputClosed();
  fail_input("standard output: expected to write {} bytes, found: {}. Fix: free space, or send the output elsewhere",
             bytes.size(), std::strerror(error));
}

void write_stderr(std::string_view bytes) {
  write_all(STDERR_FILENO, bytes);
}

void ignore_broken_pipes() {
  std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace tandem
