// A progress bar on standard error for work that takes longer than a moment.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace tandem {

// Draws "LABEL [#####....] 412/1024 UNIT, 230/s, 3 s left" in place, from kDelay after its start on and at most ten
// times a second; the destructor removes it. Draws nothing when standard error is no terminal or cannot move its
// cursor.
class Progress {
 public:
  static constexpr std::chrono::milliseconds kDelay{700};

  Progress(std::string label, std::string unit);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void start_at(std::size_t done) { first_ = done; }  // what was done before: no part of the rate
  void update(std::size_t done, std::size_t total);
  void clear();  // removes the bar; a later update draws it again

  // The text of the bar, at most `width` columns; `first` of `done` were there `seconds` ago.
  static std::string render(const std::string& label, const std::string& unit, std::size_t done, std::size_t total,
                            double seconds, int width, std::size_t first = 0);

 private:
  std::string label_, unit_;
  bool enabled_;
  bool drawn_ = false;
  std::size_t first_ = 0;
  std::chrono::steady_clock::time_point start_, last_drawn_;
};

}  // namespace tandem
