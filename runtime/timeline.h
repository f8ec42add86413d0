// What every thread does when, for `--timeline FILE`: spans in the trace format of Chromium (chrome://tracing,
// Perfetto).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>

namespace tandem {

class Timeline {
 public:
  // Recording begins, for the whole process and until it ends. Each thread keeps at most kMostSpans.
  static void start();
  static bool on() { return on_.load(std::memory_order_relaxed); }
  // All spans so far as JSON. REQUIRES that no other thread is recording (the machines are idle). Throws InputError.
  static void write(const std::filesystem::path& path);
  // Name of the calling thread in the trace.
  static void name_thread(const char* prefix, int number);

  using Clock = std::chrono::steady_clock;
  // name must be a literal. layer < 0: none.
  static void add(const char* name, int layer, Clock::time_point begin, Clock::time_point end);

  static constexpr std::size_t kMostSpans = std::size_t{1} << 20;

 private:
  static std::atomic<bool> on_;
};

// Records its own lifetime. One relaxed load when nothing is recorded.
class Span {
 public:
  explicit Span(const char* name, int layer = -1) : name_(Timeline::on() ? name : nullptr), layer_(layer) {
    if (name_ != nullptr) begin_ = Timeline::Clock::now();
  }
  ~Span() {
    if (name_ != nullptr) Timeline::add(name_, layer_, begin_, Timeline::Clock::now());
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  const char* name_;
  int layer_;
  Timeline::Clock::time_point begin_;
};

}  // namespace tandem
