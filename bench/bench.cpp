#include "bench/bench.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/isa.h"
#include "placement/check.h"
#include "runtime/output.h"

namespace tandem::bench {
namespace {

void pin_to(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(static_cast<std::size_t>(cpu), &set);
  CHECK(sched_setaffinity(0, sizeof set, &set) == 0, "{} processors", cpus.size());
}

std::vector<int> present_affinity() {
  return machine_info("-").cpus;
}

}  // namespace

// ---- workers --------------------------------------------------------------------------------------------------------

WorkerTeam::WorkerTeam(std::size_t workers, const std::vector<int>& cpus)
    : spans_(workers), saved_cpus_(present_affinity()) {
  CHECK(workers > 0 && workers <= cpus.size(), "{} workers on {} processors", workers, cpus.size());
  for (std::size_t w = 1; w < workers; ++w) threads_.emplace_back([this, w, cpu = cpus[w]] { thread_main(w, cpu); });
  pin_to({cpus[0]});
}

WorkerTeam::~WorkerTeam() {
  stop_ = true;
  ++round_;
  round_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  pin_to(saved_cpus_);
}

void WorkerTeam::thread_main(std::size_t worker, int cpu) {
  // Samples follow each other within microseconds: a worker that slept between them would be late for each.
  constexpr int kSpins = 20000;
  pin_to({cpu});
  for (std::uint32_t seen = 0;;) {
    for (int spin = 0; spin < kSpins && round_.load(std::memory_order_acquire) == seen; ++spin) __builtin_ia32_pause();
    round_.wait(seen);
    if (stop_) return;
    seen = round_.load(std::memory_order_acquire);
    work(worker);
    finished_.fetch_add(1, std::memory_order_release);
  }
}

void WorkerTeam::work(std::size_t worker) {
  spans_[worker].begin = Clock::now();
  for (std::size_t unit = next_++; unit < units_; unit = next_++) (*body_)(worker, unit);
  spans_[worker].end = Clock::now();
}

double WorkerTeam::run(std::size_t units, const std::function<void(std::size_t, std::size_t)>& body) {
  body_ = &body;
  units_ = units;
  next_ = 0;
  finished_ = 0;
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  work(0);
  while (finished_.load(std::memory_order_acquire) < threads_.size()) __builtin_ia32_pause();
  Span all = spans_[0];
  for (const Span& span : spans_) all = {std::min(all.begin, span.begin), std::max(all.end, span.end)};
  return std::chrono::duration<double>(all.end - all.begin).count();
}

// ---- memory ---------------------------------------------------------------------------------------------------------

HugeBuffer::HugeBuffer(std::size_t bytes) : bytes_(bytes) {
  constexpr std::size_t kPage = 2U << 20;
  map_bytes_ = bytes + kPage;
  map_ = mmap(nullptr, map_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map_ == MAP_FAILED)
    fail_input("memory: expected {} MiB for cold data, found too little. Fix: a smaller --buffer", bytes >> 20);
  const auto start = (reinterpret_cast<std::uintptr_t>(map_) + kPage - 1) / kPage * kPage;
  data_ = reinterpret_cast<std::uint8_t*>(start);
  madvise(data_, bytes, MADV_HUGEPAGE);  // advice: small pages cost a few percent, and the roof pays the same
}

HugeBuffer::~HugeBuffer() {
  munmap(map_, map_bytes_);
}

std::size_t cold_bytes(const MachineInfo& machine) {
  constexpr std::size_t kLeast = 512U << 20, kMost = 2048U << 20;
  return std::clamp(4 * machine.l3_bytes, kLeast, kMost);
}

// ---- timing ---------------------------------------------------------------------------------------------------------

Summary summarise(std::vector<double> seconds) {
  CHECK(!seconds.empty());
  std::sort(seconds.begin(), seconds.end());
  const std::size_t n = seconds.size();
  const auto rank = static_cast<std::size_t>(std::ceil(0.95 * static_cast<double>(n)));
  return {(seconds[(n - 1) / 2] + seconds[n / 2]) / 2, seconds[rank - 1], seconds[0]};
}

Timing measure(const SamplePlan& plan, std::size_t at_least, std::size_t at_most,
               const std::function<double(std::size_t)>& run) {
  CHECK(plan.samples > 0 && at_least > 0 && at_least <= at_most, "{} to {} units", at_least, at_most);
  // The first pass pays for page faults and waking up; it only says how many units fill a sample.
  std::size_t units = at_least;
  for (int step = 0; step < 3; ++step) {
    const double seconds = std::max(std::min(run(units), run(units)), 1e-9);
    if (seconds > 0.7 * plan.seconds) break;
    const double wanted = static_cast<double>(units) * plan.seconds / seconds;
    // Whole rounds of the workers: otherwise some of them idle at the end of every sample.
    const std::size_t most = std::min(at_most, static_cast<std::size_t>(wanted));
    units = std::max<std::size_t>(1, most / at_least) * at_least;
  }
  for (std::size_t i = 0; i < plan.warm_ups; ++i) run(units);
  std::vector<double> per_unit;
  for (std::size_t i = 0; i < plan.samples; ++i) per_unit.push_back(run(units) / static_cast<double>(units));
  return {summarise(per_unit), plan.samples};
}

// ---- results --------------------------------------------------------------------------------------------------------

std::string busy_warning(const MachineInfo& machine) {
  if (machine.load < 0.5 * static_cast<double>(machine.cpus.size())) return {};
  return fmt::format("warning: load average {:.1f} on {} processors: other programs are running, figures are too low\n",
                     machine.load, machine.cpus.size());
}

std::string csv_line(std::span<const std::string> values) {
  std::string line;
  for (const std::string& value : values) {
    if (&value != values.data()) line += ',';
    if (value.find_first_of(",\"\n") == std::string::npos) {
      line += value;
      continue;
    }
    line += '"';
    for (const char c : value) line += c == '"' ? std::string("\"\"") : std::string(1, c);
    line += '"';
  }
  return line;
}

CsvFile::CsvFile(const std::filesystem::path& path, const MachineInfo& machine, std::vector<std::string> columns)
    : path_(path),
      common_{today(), build_commit(), machine.name, machine.cpu, fmt::format("{:.2f}", machine.load)},
      columns_(std::move(columns)) {
  if (path.empty()) return;
  std::vector<std::string> header{"date", "commit", "machine", "cpu", "load"};
  header.insert(header.end(), columns_.begin(), columns_.end());
  std::string present;
  std::getline(std::ifstream(path), present);
  if (!present.empty() && present != csv_line(header))
    fail_input("{}: expected the columns {}, found {}. Fix: another file name", path.string(), csv_line(header),
               present);
  file_.open(path, std::ios::app);
  if (!file_) fail_input("{}: cannot write the file: {}", path.string(), std::strerror(errno));
  if (present.empty()) file_ << csv_line(header) << std::endl;
}

void CsvFile::row(std::vector<std::string> values) {
  CHECK(values.size() == columns_.size(), "{} values for {} columns", values.size(), columns_.size());
  if (path_.empty()) return;
  values.insert(values.begin(), common_.begin(), common_.end());
  file_ << csv_line(values) << std::endl;
  if (!file_) fail_input("{}: cannot write the file: {}", path_.string(), std::strerror(errno));
}

int guarded_main(const char* name, const std::function<int()>& program) {
  try {
    ignore_broken_pipes();
    if (const std::string missing = missing_cpu_features(); !missing.empty())
      fail_input("processor: expected AVX2, FMA and F16C, found one without {}", missing);
    return program();
  } catch (const OutputClosed&) {
    return 0;
  } catch (const InputError& error) {
    write_stderr(fmt::format("{}: error: {}\n", name, error.what()));
    return 2;
  } catch (const std::exception& error) {
    write_stderr(fmt::format("{}: error: {}\n", name, error.what()));
    return 1;
  }
}

}  // namespace tandem::bench
