#include "cpu/crew.h"

#include <fmt/format.h>
#include <immintrin.h>
#include <sched.h>
#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "cpu/topology.h"
#include "placement/check.h"
#include "runtime/timeline.h"

namespace tandem {
namespace {

// A worker that finds nothing spins this many times (about 40 cycles each), then gives its processor to whoever else
// wants it between looks, and after kAwake sleeps. Between two layers of a round a worker waits some microseconds;
// between rounds, while a token is sampled and printed, less than a millisecond.
constexpr int kSpins = 200;
constexpr std::chrono::milliseconds kAwake{2};

// Set while a thread runs a unit: a loop inside it runs alone.
thread_local bool inside_unit = false;

void check_float_mode() {
  // R1: denormals are kept. A library that sets FTZ or DAZ in our threads would change the text.
  CHECK((_mm_getcsr() & 0x8040U) == 0, "MXCSR is {:#x}: flush-to-zero or denormals-are-zero is on", _mm_getcsr());
}

// oneTBB makes no more threads than there are processors unless it is told to, and of several such settings the
// smallest counts: so there is one for the life of the program, above what anybody asks for.
void allow_many_threads() {
  static const tbb::global_control control(tbb::global_control::max_allowed_parallelism, 1024);
}

}  // namespace

// Outlives the Crew when a task of a busy oneTBB starts only after it.
struct Crew::State {
  Board experts, loop, copies;
  alignas(64) std::atomic<std::uint32_t> wake{0};
  std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};
  std::atomic<bool> complete{false};  // all workers have been asked for
  std::atomic<int> arrived{0}, gone{0}, bound{0};
  std::atomic<bool> looping{false};  // somebody owns the loop board
  std::vector<int> processors;
  tbb::task_arena arena;

  // Runs one unit of the first board that has one; returns the board's name, null when there was none.
  const char* work() {
    if (experts.take()) return "experts";
    if (loop.take()) return "loop";
    return copies.take() ? "copies" : nullptr;
  }
  bool work_recorded();
  bool has_work() const { return experts.open() || loop.open() || copies.open(); }
  void wake_all() {
    wake.fetch_add(1);
    if (sleepers.load() > 0) wake.notify_all();
  }
  void worker(int index);
};

bool Crew::Board::open() const {
  const auto unit = static_cast<std::uint32_t>(ticket.load(std::memory_order_acquire));
  return unit != kClosed && unit < count.load(std::memory_order_relaxed);
}

bool Crew::Board::take() {
  std::uint64_t seen = ticket.load(std::memory_order_acquire);
  for (;;) {
    const auto unit = static_cast<std::uint32_t>(seen);
    const std::uint32_t end = count.load(std::memory_order_acquire);
    if (unit >= end) return false;  // kClosed is above every count
    const std::uint32_t claim = std::max(1U, (end - unit) / share.load(std::memory_order_acquire));
    const Body* run = body.load(std::memory_order_acquire);
    if (!ticket.compare_exchange_weak(seen, seen + claim, std::memory_order_acq_rel, std::memory_order_acquire))
      continue;
    const bool was_inside = inside_unit;
    inside_unit = true;
    try {
      for (std::uint32_t i = unit; i < unit + claim; ++i) (*run)(i);
    } catch (...) {
      if (!failed.exchange(true)) error = std::current_exception();
    }
    inside_unit = was_inside;
    left.fetch_sub(claim, std::memory_order_acq_rel);
    return true;
  }
}

// Units of one board, one after the other, as one span. False when there was nothing to do.
bool Crew::State::work_recorded() {
  auto begin = Timeline::Clock::now();
  const char* board = work();
  if (board == nullptr) return false;
  while (board != nullptr) {
    const auto end = Timeline::Clock::now();
    const char* const next = work();
    if (next == board) continue;
    Timeline::add(board, -1, begin, end);
    begin = end;
    board = next;
  }
  return true;
}

void Crew::State::worker(int index) {
  if (!processors.empty()) {
    const auto at = static_cast<std::size_t>(index) % processors.size();
    if (bind_this_thread(processors[at])) bound.fetch_add(1);
  }
  check_float_mode();
  arrived.fetch_add(1);
  Timeline::name_thread("crew", index);
  while (!stop.load(std::memory_order_acquire)) {
    if (Timeline::on() ? work_recorded() : work() != nullptr) continue;
    for (int spin = 0; spin < kSpins && !has_work(); ++spin) _mm_pause();
    const auto asleep_at = std::chrono::steady_clock::now() + kAwake;
    while (!has_work() && !stop.load(std::memory_order_acquire) && std::chrono::steady_clock::now() < asleep_at)
      sched_yield();
    if (has_work()) continue;
    const std::uint32_t seen = wake.load();
    sleepers.fetch_add(1);
    if (!has_work() && !stop.load()) wake.wait(seen);
    sleepers.fetch_sub(1);
  }
}

// The task that makes a oneTBB thread a worker. The race detector does not see how oneTBB hands a task over; what is
// read on the way in is in a function of its own (tests/tsan.supp names it), and ends with a hand-over that it does
// see.
struct Crew::Start {
  std::shared_ptr<State> state;
  int index;

  [[gnu::noinline]] void arrive() const {
    while (!state->complete.load(std::memory_order_acquire)) sched_yield();
  }
  void operator()() const {
    arrive();
    state->worker(index);
    state->gone.fetch_add(1);
  }
};

Crew::Crew(const CrewOptions& options) : workers_(options.workers), state_(std::make_shared<State>()) {
  CHECK(options.workers >= 1, "{} workers", options.workers);
  check_float_mode();
  state_->processors = options.processors;
  const int threads = workers_ - 1;
  if (threads == 0) return;
  allow_many_threads();
  state_->arena.initialize(threads, 0);
  for (int i = 0; i < threads; ++i) state_->arena.enqueue(Start{state_, i + 1});
  state_->complete.store(true, std::memory_order_release);
  // A worker that comes late loses nothing: whoever waits does the work. But nobody should be missing for good.
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  while (state_->arrived.load() < threads && std::chrono::steady_clock::now() < patience) std::this_thread::yield();
  const int arrived = state_->arrived.load();
  if (arrived < threads)
    warning_ = fmt::format("{} of {} CPU workers could be started, so experts off the card will be slower", arrived + 1,
                           workers_);
  else if (!options.processors.empty() && bound_workers() < threads)
    warning_ = fmt::format(
        "{} of {} CPU workers could not be bound to their core (a container may forbid it); the system may move them, "
        "which costs a few percent",
        threads - bound_workers(), threads);
}

Crew::~Crew() {
  state_->stop.store(true);
  state_->wake_all();
  // Only those that have started can still use the boards; the rest find `stop` set.
  while (state_->gone.load() < state_->arrived.load()) std::this_thread::yield();
}

int Crew::bound_workers() const {
  return state_->bound.load();
}

void Crew::publish(Board& board, std::size_t n, const Body& body) {
  CHECK(n < Board::kClosed, "{} units", n);
  CHECK(board.left.load(std::memory_order_acquire) == 0, "a job of {} units is still on the board", board.left.load());
  const std::uint64_t epoch = (board.ticket.load(std::memory_order_relaxed) >> 32) + 1;
  board.ticket.store(epoch << 32 | Board::kClosed, std::memory_order_release);
  board.count.store(static_cast<std::uint32_t>(n), std::memory_order_release);
  // Neighbouring units of experts are neighbours in memory, so that a longer claim reads better than two short ones.
  const auto claims = (&board == &state_->experts ? 2U : 4U) * static_cast<std::uint32_t>(workers_);
  board.share.store(claims, std::memory_order_release);
  board.body.store(&body, std::memory_order_release);
  board.left.store(static_cast<std::uint32_t>(n), std::memory_order_relaxed);
  board.ticket.store(epoch << 32, std::memory_order_release);
  if (workers_ > 1) state_->wake_all();
}

// Takes part until nothing is left to take, then waits for what others are still doing.
void Crew::finish(Board& board) {
  while (board.take()) {
  }
  for (int spin = 0; board.left.load(std::memory_order_acquire) != 0; ++spin) {
    if (spin < kSpins)
      _mm_pause();
    else
      sched_yield();
  }
  if (board.failed.exchange(false)) std::rethrow_exception(std::exchange(board.error, nullptr));
}

void Crew::loop(std::size_t n, Body body) {
  if (workers_ == 1 || n <= 1 || inside_unit || state_->looping.exchange(true)) {
    for (std::size_t i = 0; i < n; ++i) body(i);
    return;
  }
  struct Release {
    std::atomic<bool>& flag;
    ~Release() { flag.store(false); }
  } release{state_->looping};
  publish(state_->loop, n, body);
  finish(state_->loop);
}

void Crew::start_experts(std::size_t n, const Body& body) {
  publish(state_->experts, n, body);
}
void Crew::wait_experts() {
  finish(state_->experts);
}
void Crew::start_copies(std::size_t n, const Body& body) {
  publish(state_->copies, n, body);
}
void Crew::wait_copies() {
  finish(state_->copies);
}

}  // namespace tandem
