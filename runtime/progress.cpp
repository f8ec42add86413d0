#include "runtime/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "runtime/environment.h"
#include "runtime/output.h"

namespace tandem {
namespace {

// "40 s", "12 min", "3 h 05 min"
std::string time_left(double seconds) {
  const auto s = static_cast<long long>(std::ceil(std::min(seconds, 1e9)));
  if (s < 120) return fmt::format("{} s", s);
  const long long minutes = (s + 59) / 60;
  if (minutes < 120) return fmt::format("{} min", minutes);
  return fmt::format("{} h {:02} min", minutes / 60, minutes % 60);
}

}  // namespace

Progress::Progress(std::string label, std::string unit)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      enabled_(terminal_can_move(STDERR_FILENO)),
      start_(std::chrono::steady_clock::now()),
      last_drawn_(start_) {}

Progress::~Progress() {
  clear();
}

void Progress::update(std::size_t done, std::size_t total) {
  const auto now = std::chrono::steady_clock::now();
  if (!enabled_ || now - start_ < kDelay || now - last_drawn_ < std::chrono::milliseconds(100)) return;
  last_drawn_ = now;
  drawn_ = true;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  // One column stays free: some terminals wrap a line that fills the last one.
  const int width = terminal_width(STDERR_FILENO) - 1;
  write_stderr(fmt::format("\r{}\x1b[K", render(label_, unit_, done, total, seconds, width, first_)));
}

void Progress::clear() {
  if (drawn_) write_stderr("\r\x1b[K");
  drawn_ = false;
}

std::string Progress::render(const std::string& label, const std::string& unit, std::size_t done, std::size_t total,
                             double seconds, int width, std::size_t first) {
  const double rate = seconds > 0.0 && done > first ? static_cast<double>(done - first) / seconds : 0.0;
  std::string numbers = fmt::format("{}/{} {}, {:.0f}/s", done, total, unit, rate);
  if (rate > 0.0 && done < total) numbers += ", " + time_left(static_cast<double>(total - done) / rate) + " left";
  const auto columns = static_cast<std::size_t>(std::max(width, 0));
  std::string text = label + " ";
  const std::size_t fixed = text.size() + numbers.size() + 3;
  if (columns >= fixed + 10) {
    const std::size_t cells = std::min<std::size_t>(columns - fixed, 40);
    const std::size_t filled = total == 0 ? cells : std::min(cells, cells * done / total);
    text += fmt::format("[{:#<{}}{:.<{}}] ", "", filled, "", cells - filled);
  }
  text += numbers;
  return text.substr(0, columns);
}

}  // namespace tandem
