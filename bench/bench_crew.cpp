// The worker crew: how long a published job waits for its first unit, what a loop costs, and what more workers than
// cores do to a fixed piece of work.
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <thread>

#include "bench/bench.h"
#include "bench/machine.h"
#include "cpu/crew.h"
#include "cpu/topology.h"
#include "runtime/output.h"

namespace tandem::bench {
namespace {

using Clock = std::chrono::steady_clock;

double microseconds(Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

void print(const std::string& what, std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
  };
  fmt::print("{:<44} median {:8.2f} us, p95 {:8.2f}, least {:8.2f}\n", what, at(0.5), at(0.95), at(0.0));
}

// From publishing a job to the start of its first unit, on a crew that has been idle for `gap`.
std::vector<double> publish_latency(Crew& crew, std::chrono::microseconds gap, int repeats) {
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    for (const auto until = Clock::now() + gap; Clock::now() < until;) __builtin_ia32_pause();
    std::atomic<bool> ran{false};
    Clock::time_point first;
    const auto unit = [&](std::size_t) {
      first = Clock::now();
      ran.store(true, std::memory_order_release);
    };
    const Crew::Body body(unit);
    const auto start = Clock::now();
    crew.start_experts(1, body);
    while (!ran.load(std::memory_order_acquire)) __builtin_ia32_pause();  // a card does not help
    crew.wait_experts();
    times.push_back(microseconds(first - start));
  }
  return times;
}

std::vector<double> empty_loops(Crew& crew, int repeats) {
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    const auto start = Clock::now();
    crew.loop(static_cast<std::size_t>(crew.workers()), [](std::size_t) {});
    times.push_back(microseconds(Clock::now() - start));
  }
  return times;
}

// Rounds of many layers, each a loop of units of about 5 us, as in a decode round.
double rounds_per_second(Crew& crew, double seconds) {
  volatile std::uint64_t sink = 0;
  const auto unit = [&](std::size_t i) {
    std::uint64_t x = i + 1;
    for (int k = 0; k < 4000; ++k) x = x * 6364136223846793005ULL + 1442695040888963407ULL;
    sink = x;
  };
  int rounds = 0;
  const auto start = Clock::now();
  double elapsed = 0;
  while (elapsed < seconds) {
    for (int layer = 0; layer < 48; ++layer) crew.loop(64, unit);
    ++rounds;
    elapsed = microseconds(Clock::now() - start) / 1e6;
  }
  return rounds / elapsed;
}

int run(int argc, char** argv) {
  CLI::App app("Latency and throughput of the worker crew", "bench_crew");
  int repeats = 2000;
  double seconds = 1.0;
  app.add_option("--repeats", repeats, "of each latency")->check(CLI::PositiveNumber);
  app.add_option("--seconds", seconds, "of each throughput")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  const Topology topology = read_topology();
  const std::vector<int> processors = crew_processors(topology, CrewCores::kAll);
  const int cores = static_cast<int>(processors.size());
  fmt::print("{} cores, load {:.1f}\n", cores, machine_info().load);
  if (cores > 1) {
    Crew crew({cores, processors});
    for (const int gap : {10, 100, 1000, 10000})
      print(fmt::format("publish to first unit, idle for {} us", gap),
            publish_latency(crew, std::chrono::microseconds(gap), gap < 10000 ? repeats : std::min(repeats, 200)));
    print(fmt::format("a loop of {} empty units", cores), empty_loops(crew, repeats));
  }
  double one = 0;
  for (const int workers : {1, cores, 2 * cores, 4 * cores}) {
    if (workers == cores && cores == 1) continue;
    Crew crew({workers, workers <= cores ? processors : std::vector<int>{}});
    const double rate = rounds_per_second(crew, seconds);
    if (workers == 1) one = rate;
    fmt::print("{:2} workers: {:8.1f} rounds of 48 x 64 units a second, {:.2f} times one worker\n", workers, rate,
               rate / one);
  }
  return 0;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  return tandem::bench::run(argc, argv);
}
