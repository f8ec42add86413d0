// The measuring parts: a benchmark that is wrong prints plausible figures, so each is tried on a case with a known
// answer.
#include "bench/bench.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include "bench/noise.h"
#include "bench/read_roof.h"
#include "placement/check.h"
#include "tests/gguf_builder.h"

namespace tandem::bench {
namespace {

std::string slurp(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Summary, MedianAndNearestRank) {
  EXPECT_EQ(summarise({3.0}).median, 3.0);
  EXPECT_EQ(summarise({3.0}).p95, 3.0);
  EXPECT_EQ(summarise({4.0, 1.0, 3.0}).median, 3.0);
  EXPECT_EQ(summarise({4.0, 1.0, 2.0, 3.0}).median, 2.5);
  std::vector<double> hundred;
  for (int i = 100; i > 0; --i) hundred.push_back(i);
  const Summary summary = summarise(hundred);
  EXPECT_EQ(summary.median, 50.5);
  EXPECT_EQ(summary.p95, 95.0);
  EXPECT_EQ(summary.best, 1.0);
}

TEST(WorkerTeam, EveryUnitOnceByEveryCount) {
  const MachineInfo machine = machine_info();
  ASSERT_FALSE(machine.cpus.empty());
  for (std::size_t workers = 1; workers <= std::min<std::size_t>(4, machine.cpus.size()); ++workers) {
    WorkerTeam team(workers, machine.cpus);
    ASSERT_EQ(team.workers(), workers);
    for (const std::size_t units : {0U, 1U, 7U, 1000U}) {
      std::vector<std::atomic<int>> seen(units);
      std::atomic<bool> in_range{true};
      team.run(units, [&](std::size_t worker, std::size_t unit) {
        if (worker >= workers || unit >= units) in_range = false;
        ++seen[unit];
      });
      EXPECT_TRUE(in_range);
      EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](const auto& n) { return n == 1; })) << units;
    }
  }
}

// Before any team pinned this thread.
const std::vector<int> kCpus = machine_info().cpus;

TEST(WorkerTeam, GivesTheAffinityBack) {
  {
    WorkerTeam team(kCpus.size(), kCpus);
    EXPECT_EQ(machine_info().cpus, std::vector<int>{kCpus[0]});  // worker 0 is pinned
  }
  EXPECT_EQ(machine_info().cpus, kCpus);
}

TEST(WorkerTeam, MeasuresTheSlowestWorker) {
  const std::size_t workers = std::min<std::size_t>(2, kCpus.size());
  WorkerTeam team(workers, kCpus);
  for (std::size_t slow = 0; slow < workers; ++slow) {
    std::atomic<std::size_t> arrived{0};
    const double seconds = team.run(workers, [&](std::size_t worker, std::size_t) {
      ++arrived;
      while (arrived < workers) std::this_thread::yield();  // each takes one unit
      if (worker == slow) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    });
    EXPECT_GE(seconds, 0.02) << slow;
    EXPECT_LT(seconds, 5.0) << slow;
  }
}

TEST(WorkerTeam, WorkersAreDifferentThreads) {
  const MachineInfo machine = machine_info();
  if (machine.cpus.size() < 2) GTEST_SKIP() << "one processor";
  WorkerTeam team(2, machine.cpus);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::atomic<int> arrived{0};
  team.run(2, [&](std::size_t, std::size_t) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();  // neither ends before both have begun
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(threads.size(), 2U);
}

TEST(Measure, SizesSamplesAndDividesByUnits) {
  std::vector<std::size_t> calls;
  SamplePlan plan{.seconds = 0.1, .samples = 4, .warm_ups = 2};
  const Timing timing = measure(plan, 2, 1000, [&](std::size_t units) {
    calls.push_back(units);
    return 0.001 * static_cast<double>(units);
  });
  ASSERT_GE(calls.size(), 6U);
  EXPECT_EQ(calls.front(), 2U);   // calibration begins at the least
  EXPECT_EQ(calls.back(), 100U);  // and ends at what fills a sample
  EXPECT_EQ(std::count(calls.begin(), calls.end(), 100U) >= 6, true);
  EXPECT_EQ(timing.samples, 4U);
  EXPECT_NEAR(timing.per_unit.median, 0.001, 1e-12);
  EXPECT_NEAR(timing.rate(5000.0), 5e6, 1e-3);
}

TEST(Measure, KeepsTheBounds) {
  std::size_t largest = 0, least = 1000;
  const auto run = [&](std::size_t units) {
    largest = std::max(largest, units);
    least = std::min(least, units);
    return 1e-6 * static_cast<double>(units);
  };
  measure({.seconds = 0.1, .samples = 1}, 3, 50, run);
  EXPECT_EQ(largest, 48U);  // whole rounds of three
  EXPECT_EQ(least, 3U);
}

TEST(Cursor, ComesRoundOnlyAfterEverything) {
  Cursor cursor(5);
  std::vector<std::size_t> seen;
  for (const std::size_t units : {3U, 4U, 5U, 1U}) {
    const std::size_t first = cursor.take(units);
    for (std::size_t i = 0; i < units; ++i) seen.push_back(cursor.at(first, i));
  }
  for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], i % 5) << i;
}

TEST(ReadRoof, ReadsEveryWord) {
  const MachineInfo machine = machine_info();
  const HugeBuffer buffer(4U << 20);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % (2U << 20), 0U);
  WorkerTeam team(1, machine.cpus);
  write_noise(team, buffer, 3);
  const auto plain = [&](std::size_t bytes) {
    std::uint32_t all = 0;
    for (std::size_t at = 0; at < bytes; at += 4) {
      std::uint32_t word = 0;
      std::memcpy(&word, buffer.data() + at, 4);
      all ^= word;
    }
    return all;
  };
  for (const std::size_t bytes : {std::size_t{512}, std::size_t{5120}, buffer.size()})
    EXPECT_EQ(read_all(buffer.data(), bytes), plain(bytes)) << bytes;
  const std::uint32_t before = read_all(buffer.data(), buffer.size());
  buffer.data()[buffer.size() - 1] ^= 1;  // the last byte counts
  EXPECT_EQ(read_all(buffer.data(), buffer.size()) ^ before, 0x01000000U);
}

TEST(ReadRoof, IsPlausible) {
  const MachineInfo machine = machine_info();
  const HugeBuffer buffer(64U << 20);
  WorkerTeam team(1, machine.cpus);
  write_noise(team, buffer, 3);
  const ReadRoof roof = measure_read_roof(team, buffer, {.seconds = 0.005, .samples = 3});
  EXPECT_GT(roof.median, 1e8);  // bytes per second, not gigabytes and not seconds
  EXPECT_LT(roof.median, 5e12);
  EXPECT_GE(roof.best, roof.median);
}

TEST(Csv, HeaderOnceAndQuoting) {
  const testing::TempDir dir;
  MachineInfo machine;
  machine.name = "box";
  machine.cpu = "A \"fast\" one, 2 cores";
  machine.load = 1.5;
  const std::filesystem::path path = dir / "a.csv";
  for (int i = 0; i < 2; ++i) CsvFile(path, machine, {"w", "gbs"}).row({"4", "12.5"});
  const std::string line =
      fmt::format("{},{},box,\"A \"\"fast\"\" one, 2 cores\",1.50,4,12.5\n", today(), build_commit());
  EXPECT_EQ(slurp(path), "date,commit,machine,cpu,load,w,gbs\n" + line + line);
  EXPECT_THROW(CsvFile(path, machine, {"w", "other"}), InputError);
  EXPECT_EQ(slurp(path), "date,commit,machine,cpu,load,w,gbs\n" + line + line);
  EXPECT_THROW(CsvFile(dir / "no/such/folder.csv", machine, {"w"}), InputError);
  CsvFile({}, machine, {"w"}).row({"1"});  // no path: nothing is written
}

TEST(Machine, CacheSizes) {
  EXPECT_EQ(parse_cache_size("32768K"), std::size_t{32} << 20);
  EXPECT_EQ(parse_cache_size("300M"), std::size_t{300} << 20);
  EXPECT_EQ(parse_cache_size("512"), 512U);
  EXPECT_EQ(parse_cache_size(""), 0U);
  EXPECT_EQ(parse_cache_size("12Q"), 0U);
  MachineInfo machine;
  EXPECT_EQ(cold_bytes(machine), std::size_t{512} << 20);
  machine.l3_bytes = std::size_t{300} << 20;
  EXPECT_EQ(cold_bytes(machine), std::size_t{1200} << 20);
  machine.l3_bytes = std::size_t{4} << 30;
  EXPECT_EQ(cold_bytes(machine), std::size_t{2} << 30);
}

TEST(Machine, WarnsWhenOthersAreBusy) {
  MachineInfo machine;
  machine.cpus = {0, 1, 2, 3};
  machine.load = 1.9;
  EXPECT_EQ(busy_warning(machine), "");
  machine.load = 2.1;
  EXPECT_NE(busy_warning(machine).find("load average 2.1 on 4 processors"), std::string::npos);
}

TEST(Machine, KnowsItself) {
  const MachineInfo machine = machine_info("desk");
  EXPECT_EQ(machine.name, "desk");
  EXPECT_FALSE(machine.cpu.empty());
  EXPECT_TRUE(std::is_sorted(machine.cpus.begin(), machine.cpus.end()));
  EXPECT_FALSE(build_commit().empty());
  EXPECT_EQ(today().size(), 10U);
}

TEST(GuardedMain, ExitCodes) {
  EXPECT_EQ(guarded_main("t", [] { return 0; }), 0);
  EXPECT_EQ(guarded_main("t", [] { return 7; }), 7);
  EXPECT_EQ(guarded_main("t", []() -> int { fail_input("a: expected b, found c"); }), 2);
  EXPECT_EQ(guarded_main("t", []() -> int { throw std::runtime_error("x"); }), 1);
}

TEST(Noise, LooksRandomAndRepeats) {
  Noise a(1), b(1), c(2);
  std::array<int, 64> ones{};
  constexpr int kRounds = 500;
  for (int i = 0; i < kRounds; ++i) {
    const auto word = a.next();
    EXPECT_EQ(word, b.next());
    EXPECT_NE(word, c.next());
    for (const std::uint64_t lane : word)
      for (std::size_t bit = 0; bit < 64; ++bit) ones[bit] += static_cast<int>(lane >> bit & 1U);
  }
  // 4000 tosses per bit: 2000 +- 5 standard deviations of 32.
  for (const int n : ones) EXPECT_NEAR(n, 2000, 160);
}

}  // namespace
}  // namespace tandem::bench
