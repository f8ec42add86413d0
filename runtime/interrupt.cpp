#include "runtime/interrupt.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "placement/check.h"

namespace tandem {
namespace {

volatile std::sig_atomic_t interrupt_flag = 0;
int wake_pipe[2] = {-1, -1};

void on_interrupt(int) {
  interrupt_flag = 1;
  wake();
}

}  // namespace

void catch_interrupts(InterruptMode mode) {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART | (mode == InterruptMode::kOnce ? static_cast<int>(SA_RESETHAND) : 0);
  CHECK(sigaction(SIGINT, &action, nullptr) == 0);
}

bool interrupted() {
  return interrupt_flag != 0;
}

void clear_interrupt() {
  interrupt_flag = 0;
}

int wake_fd() {
  if (wake_pipe[0] < 0) CHECK(pipe2(wake_pipe, O_NONBLOCK | O_CLOEXEC) == 0, "errno {}", errno);
  return wake_pipe[0];
}

void wake() noexcept {
  const int before = errno;
  // A full pipe is as good as one more byte.
  if (wake_pipe[1] >= 0 && write(wake_pipe[1], "", 1) < 0) errno = before;
  errno = before;
}

void drain_wakes() {
  char bytes[64];
  while (read(wake_fd(), bytes, sizeof bytes) > 0) {
  }
}

}  // namespace tandem
