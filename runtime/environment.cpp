#include "runtime/environment.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace tandem {
namespace {

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view{} : std::string_view{value};
}

Environment read_environment() {
  Environment result;
  result.no_color = !variable("NO_COLOR").empty();
  const std::string_view term = variable("TERM");
  result.dumb_terminal = term.empty() || term == "dumb";
  const std::string_view colors = variable("COLORTERM");
  result.true_color = colors == "truecolor" || colors == "24bit";
  const std::filesystem::path state = variable("XDG_STATE_HOME");
  if (state.is_absolute()) {  // the XDG rules: a relative path is to be ignored
    result.state_home = state;
  } else if (!variable("HOME").empty()) {
    result.state_home = std::filesystem::path(variable("HOME")) / ".local" / "state";
  }
  return result;
}

}  // namespace

const Environment& environment() {
  static const Environment result = read_environment();
  return result;
}

std::filesystem::path user_state_folder() {
  const std::filesystem::path& home = environment().state_home;
  return home.empty() ? home : home / "tandem";
}

bool terminal_can_move(int fd) {
  return isatty(fd) == 1 && !environment().dumb_terminal;
}

bool terminal_can_color(int fd) {
  return terminal_can_move(fd) && !environment().no_color;
}

int terminal_width(int fd) {
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

}  // namespace tandem
