// The parts every benchmark shares: pinned workers, cold memory, timing with median and 95th percentile, CSV lines.
//
// Memory is cold by construction: units of work lie one after the other in a buffer much larger than the last-level
// cache, and every sample goes on where the last one stopped (Cursor), so that a unit comes round again only after the
// whole buffer was read.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/machine.h"

namespace tandem::bench {

// Threads pinned to one processor each, the calling thread being worker 0 (its own affinity comes back at the end).
class WorkerTeam {
 public:
  // REQUIRES 0 < workers <= cpus.size().
  WorkerTeam(std::size_t workers, const std::vector<int>& cpus);
  ~WorkerTeam();
  WorkerTeam(const WorkerTeam&) = delete;
  WorkerTeam& operator=(const WorkerTeam&) = delete;

  std::size_t workers() const { return threads_.size() + 1; }

  // body(worker, unit) for 0 <= unit < units; a free worker takes the next unit. Returns the seconds from the first
  // worker's start to the last one's end.
  double run(std::size_t units, const std::function<void(std::size_t worker, std::size_t unit)>& body);

 private:
  using Clock = std::chrono::steady_clock;
  struct Span {
    Clock::time_point begin, end;
  };
  void work(std::size_t worker);
  void thread_main(std::size_t worker, int cpu);

  std::vector<std::thread> threads_;
  std::vector<Span> spans_;
  std::vector<int> saved_cpus_;
  const std::function<void(std::size_t, std::size_t)>* body_ = nullptr;
  std::size_t units_ = 0;
  std::atomic<std::size_t> next_{0}, finished_{0};
  std::atomic<std::uint32_t> round_{0};
  std::atomic<bool> stop_{false};
};

// Zeroed memory on 2 MB pages where the system grants them. Throws InputError when there is not enough.
class HugeBuffer {
 public:
  explicit HugeBuffer(std::size_t bytes);
  ~HugeBuffer();
  HugeBuffer(const HugeBuffer&) = delete;
  HugeBuffer& operator=(const HugeBuffer&) = delete;
  std::uint8_t* data() const { return data_; }
  std::size_t size() const { return bytes_; }

 private:
  void* map_ = nullptr;
  std::size_t map_bytes_ = 0, bytes_ = 0;
  std::uint8_t* data_ = nullptr;
};

// Four times the last-level cache, at least 512 MiB and at most 2 GiB.
std::size_t cold_bytes(const MachineInfo& machine);

// Units 0 .. count - 1 in turn, for ever.
class Cursor {
 public:
  explicit Cursor(std::size_t count) : count_(count) {}
  // The place of the next `units` units; unit i of them is at(first, i).
  std::size_t take(std::size_t units) { return std::exchange(next_, (next_ + units) % count_); }
  std::size_t at(std::size_t first, std::size_t i) const { return (first + i) % count_; }

 private:
  std::size_t count_, next_ = 0;
};

struct Summary {
  double median = 0, p95 = 0, best = 0;  // seconds; p95 by nearest rank
};
// REQUIRES at least one sample.
Summary summarise(std::vector<double> seconds);

// Many short samples: one that the system interrupts is far from the median.
struct SamplePlan {
  double seconds = 0.005;  // of one sample
  std::size_t samples = 11;
  std::size_t warm_ups = 1;  // samples thrown away
};

struct Timing {
  Summary per_unit;  // seconds
  std::size_t samples = 0;
  double rate(double bytes_per_unit) const { return bytes_per_unit / per_unit.median; }  // bytes per second
  double slow_rate(double bytes_per_unit) const { return bytes_per_unit / per_unit.p95; }
};

// Times run(units), which returns the seconds it took. A sample has the units that fill plan.seconds: a multiple of
// `at_least` (one per worker), at most `at_most`.
Timing measure(const SamplePlan& plan, std::size_t at_least, std::size_t at_most,
               const std::function<double(std::size_t units)>& run);

// One CSV file. The columns date, commit, machine, cpu and load come first in every line.
class CsvFile {
 public:
  // An empty path writes nothing. An existing file is appended to; throws InputError when its columns are others.
  CsvFile(const std::filesystem::path& path, const MachineInfo& machine, std::vector<std::string> columns);
  void row(std::vector<std::string> values);  // REQUIRES one value per column

 private:
  std::filesystem::path path_;
  std::vector<std::string> common_, columns_;
  std::ofstream file_;
};

// A warning when other programs keep the processors busy, which makes every figure too low; else empty.
std::string busy_warning(const MachineInfo& machine);

// Values joined by commas; quoted where needed.
std::string csv_line(std::span<const std::string> values);

// Calls `program` and turns errors into a line on standard error: 2 for wrong input, 1 for anything else. Refuses
// processors without AVX2, FMA and F16C.
int guarded_main(const char* name, const std::function<int()>& program);

}  // namespace tandem::bench
