// The one place that reads environment variables: NO_COLOR, TERM, COLORTERM, XDG_STATE_HOME, HOME.
#pragma once

#include <filesystem>
#include <string>

namespace tandem {

struct Environment {
  bool no_color = false;             // NO_COLOR is set and not empty
  bool dumb_terminal = false;        // TERM is unset, empty or "dumb": no cursor movement, no colours
  bool true_color = false;           // COLORTERM is "truecolor" or "24bit"
  std::filesystem::path state_home;  // XDG_STATE_HOME, or HOME/.local/state; empty when neither is known
};

// Read once, at the first call.
const Environment& environment();

// state_home/tandem: history and saved conversations. Empty when unknown.
std::filesystem::path user_state_folder();

// Whether escape sequences may be written to this file descriptor: a terminal that is not dumb. Colours want more.
bool terminal_can_move(int fd);
bool terminal_can_color(int fd);
int terminal_width(int fd);  // columns, 80 when unknown

}  // namespace tandem
