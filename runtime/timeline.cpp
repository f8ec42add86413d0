#include "runtime/timeline.h"

#include <fmt/format.h>

#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "placement/files.h"

namespace tandem {
namespace {

struct Event {
  const char* name;
  int layer;
  Timeline::Clock::time_point begin, end;
};
struct ThreadLog {
  std::string name;
  std::vector<Event> events;
};
struct Registry {
  std::mutex mutex;
  std::vector<std::shared_ptr<ThreadLog>> threads;  // shared: a thread may end before the trace is written
  Timeline::Clock::time_point start;
};

Registry& registry() {
  static Registry all;
  return all;
}

ThreadLog& my_log() {
  thread_local const std::shared_ptr<ThreadLog> log = [] {
    auto fresh = std::make_shared<ThreadLog>();
    const std::lock_guard lock(registry().mutex);
    fresh->name = registry().threads.empty() ? "main" : fmt::format("thread {}", registry().threads.size());
    registry().threads.push_back(fresh);
    return fresh;
  }();
  return *log;
}

double microseconds(Timeline::Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

}  // namespace

std::atomic<bool> Timeline::on_{false};

void Timeline::start() {
  my_log();  // the caller comes first
  registry().start = Clock::now();
  on_.store(true);
}

void Timeline::name_thread(const char* prefix, int number) {
  if (on()) my_log().name = fmt::format("{} {}", prefix, number);
}

void Timeline::add(const char* name, int layer, Clock::time_point begin, Clock::time_point end) {
  std::vector<Event>& events = my_log().events;
  if (events.size() < kMostSpans) events.push_back({name, layer, begin, end});
}

void Timeline::write(const std::filesystem::path& path) {
  AtomicFile file(path);
  std::string text = "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [";
  const std::lock_guard lock(registry().mutex);
  std::size_t thread = 0;
  for (const auto& log : registry().threads) {
    fmt::format_to(std::back_inserter(text),
                   "{}{{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": 1, \"tid\": {}, \"args\": {{\"name\": "
                   "\"{}\"}}}}",
                   thread == 0 ? "\n" : ",\n", thread, log->name);
    for (const Event& event : log->events) {
      fmt::format_to(std::back_inserter(text),
                     ",\n{{\"ph\": \"X\", \"name\": \"{}\", \"pid\": 1, \"tid\": {}, \"ts\": {:.3f}, \"dur\": {:.3f}",
                     event.name, thread, microseconds(event.begin - registry().start),
                     microseconds(event.end - event.begin));
      if (event.layer >= 0) fmt::format_to(std::back_inserter(text), ", \"args\": {{\"layer\": {}}}", event.layer);
      text += '}';
    }
    file.write(text);
    text.clear();
    ++thread;
  }
  file.write(text + "\n]}\n");
  file.finish();
}

}  // namespace tandem
