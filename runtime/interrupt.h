// Ctrl-C as a flag that loops ask for, instead of the end of the program.
#pragma once

#include <cstdint>

namespace tandem {

enum class InterruptMode : std::uint8_t {
  kOnce,   // the first Ctrl-C sets the flag, the second one ends the program (`run`)
  kEvery,  // every Ctrl-C sets the flag (`chat`)
};

void catch_interrupts(InterruptMode mode);
bool interrupted();
void clear_interrupt();

// A waiting prompt has to notice signals, which may arrive in any thread: their handlers call wake(), which makes the
// descriptor wake_fd() readable until drain_wakes().
int wake_fd();
void wake() noexcept;  // may be called from a signal handler once wake_fd() was
void drain_wakes();

}  // namespace tandem
