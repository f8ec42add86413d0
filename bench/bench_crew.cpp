// The worker crew: how long a published job waits for its first unit, what a loop costs, what more workers than cores
// do to a fixed piece of work, and (--lists) how long the list of a layer's experts takes from cold memory, or
// (--hints) after some of it was read ahead.
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>
#include <thread>

#include "bench/bench.h"
#include "bench/block_pool.h"
#include "bench/expert_kernels.h"
#include "bench/machine.h"
#include "bench/noise.h"
#include "cpu/crew.h"
#include "cpu/expert_run.h"
#include "cpu/topology.h"
#include "runtime/output.h"
#include "runtime/tile.h"

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

// Experts of the real shape in cold memory, some different ones again and again; their down matrices are IQ4_NL.
class ColdExperts {
 public:
  static constexpr std::size_t kHidden = 2560, kFf = 640;

  ColdExperts(DType gate_up, std::size_t cold, TileIsa isa) : stride_(0), buffer_(cold) {
    const std::size_t gate = kFf / kTileRows * tile_bytes(gate_up, kHidden);
    const std::size_t down = kHidden / kTileRows * tile_bytes(DType::IQ4_NL, kFf);
    bytes_ = 2 * gate + down;
    stride_ = (bytes_ + 4095) / 4096 * 4096;
    count_ = buffer_.size() / stride_;
    const BlockPool wide(gate_up, 0.02, 1), narrow(DType::IQ4_NL, 0.02, 2);
    for (std::size_t e = 0; e < count_; ++e) {
      std::uint8_t* at = buffer_.data() + e * stride_;
      if (e < kKinds) {
        pack(wide, kFf, kHidden, 2 * e, at);
        pack(wide, kFf, kHidden, 2 * e + 1, at + gate);
        pack(narrow, kHidden, kFf, e, at + 2 * gate);
      } else {
        std::copy_n(buffer_.data() + e % kKinds * stride_, bytes_, at);
      }
    }
    const auto tiles = [isa](DType type, std::size_t rows, std::size_t cols) {
      return PackedTiles{tile_function(isa, type), rows, cols, tile_bytes(type, cols), nullptr, 1.0F};
    };
    shape_ = {tiles(gate_up, kFf, kHidden), tiles(gate_up, kFf, kHidden), tiles(DType::IQ4_NL, kHidden, kFf)};
  }
  std::size_t count() const { return count_; }
  std::size_t bytes() const { return bytes_; }
  const std::uint8_t* blob(std::size_t e) const { return buffer_.data() + e * stride_; }
  std::size_t gate_up_bytes() const { return 2 * shape_.gate.count() * shape_.gate.tile_bytes; }
  PackedExpert at(std::size_t e) const {
    PackedExpert out = shape_;
    out.gate.data = buffer_.data() + e * stride_;
    out.up.data = out.gate.data + out.gate.count() * out.gate.tile_bytes;
    out.down.data = out.up.data + out.up.count() * out.up.tile_bytes;
    return out;
  }

 private:
  static constexpr std::size_t kKinds = 8;
  static void pack(const BlockPool& pool, std::size_t rows, std::size_t cols, std::uint64_t seed, std::uint8_t* out) {
    const std::size_t row = row_bytes(pool.type(), cols), tile = tile_bytes(pool.type(), cols);
    std::vector<std::uint8_t> file(rows * row);
    pool.fill(seed, file.data(), file.size());
    for (std::size_t first = 0; first < rows; first += kTileRows)
      pack_tile(pool.type(), file.data() + first * row, kTileRows, cols, out + first / kTileRows * tile);
  }
  std::size_t stride_, bytes_ = 0, count_ = 0;
  HugeBuffer buffer_;
  PackedExpert shape_;
};

// A list of `experts` experts of `width` rows each, published and waited for on a crew that has nothing to do for `gap`
// before, as between two layers of a round: any experts, rows just written by somebody else.
std::vector<double> expert_lists(Crew& crew, const ColdExperts& pool, std::size_t experts, std::size_t width,
                                 std::chrono::microseconds gap, int repeats) {
  ActivationRows x(width, ColdExperts::kHidden, 3);
  const Activation a{{}, {x.q.data(), x.d.data(), x.s.data(), width, ColdExperts::kHidden}};
  std::vector<float> y(experts * width * ColdExperts::kHidden);
  ExpertRun list;
  std::uint64_t drawn = 0;
  const auto unit = [&](std::size_t u) { list.run(u); };
  const Crew::Body body(unit);
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    for (const auto until = Clock::now() + gap; Clock::now() < until;) __builtin_ia32_pause();
    for (auto& code : x.q) code = static_cast<std::int8_t>(-code);
    const auto start = Clock::now();
    list.begin(a);
    for (std::size_t e = 0; e < experts; ++e) {
      list.add_expert(pool.at(mix_bits(++drawn) % pool.count()), {});
      for (std::size_t r = 0; r < width; ++r) list.add_row(r, &y[(e * width + r) * ColdExperts::kHidden]);
    }
    list.finish(crew.workers());
    crew.start_experts(list.units(), body);
    crew.wait_experts();
    times.push_back(microseconds(Clock::now() - start));
  }
  return times;
}

struct ListOptions {
  std::vector<std::string> types;
  std::string hints;  // how workers read ahead: loads, t1; or nothing
  std::chrono::microseconds gap, rest{20};
  TileIsa isa;
  int repeats;
};

// What a worker reads ahead in one go.
struct Part {
  const std::uint8_t* from;
  std::size_t bytes;
};

void read_ahead(const Part& part, bool loads) {
  std::uint64_t sum = 0;
  for (std::size_t b = 0; b < part.bytes; b += 64)
    if (loads)
      sum += part.from[b];
    else
      __builtin_prefetch(part.from + b, 0, 2);
  asm volatile("" ::"r"(sum));
}

// Lists after hints: before each one, workers read `right` of its experts and as many others as `wrong` says into their
// caches; then there is a rest, and rows are written by somebody else. Either workers read, and then compute, whatever
// is next; or each worker reads of an even strip of the list (own), and computes that, then what others have left.
class HintedLists {
 public:
  struct Kind {
    double right = 0, wrong = 0;  // as parts of the list's experts
    bool own = false;
  };
  HintedLists(Crew& crew, const ColdExperts& pool, std::size_t experts, std::size_t width, const ListOptions& options)
      : crew_(crew),
        pool_(pool),
        options_(options),
        chosen_(experts),
        x_(width, ColdExperts::kHidden, 3),
        y_(experts * width * ColdExperts::kHidden),
        taken_(2 * static_cast<std::size_t>(crew.workers())) {
    std::atomic<std::size_t> here{0};
    meet(here, [&](std::size_t arrival) { self() = arrival; });
  }
  // Microseconds of the list and, before, of reading.
  std::pair<double, double> time(const Kind& kind) {
    const std::size_t experts = chosen_.size();
    for (std::size_t& e : chosen_) e = any_expert();
    hinted_.assign(experts, false);
    const std::size_t shift = mix_bits(++drawn_) % experts;
    for (std::size_t i = 0; i < share(kind.right); ++i) hinted_[(shift + i) % experts] = true;
    wait(options_.gap);
    const auto start = Clock::now();
    if (kind.right + kind.wrong > 0) read(kind);
    const double fetch = microseconds(Clock::now() - start);
    wait(options_.rest);
    for (auto& code : x_.q) code = static_cast<std::int8_t>(-code);
    return {compute(kind.own), fetch};
  }

 private:
  static std::size_t& self() {
    static thread_local std::size_t seat = 0;
    return seat;
  }
  static void wait(std::chrono::microseconds time) {
    for (const auto until = Clock::now() + time; Clock::now() < until;) __builtin_ia32_pause();
  }
  std::size_t any_expert() { return mix_bits(++drawn_) % pool_.count(); }
  std::size_t share(double part) const {
    return static_cast<std::size_t>(std::ceil(part * static_cast<double>(chosen_.size())));
  }
  // Every worker runs the body once.
  template <typename F>
  void meet(std::atomic<std::size_t>& here, F&& body) {
    const auto workers = static_cast<std::size_t>(crew_.workers());
    crew_.loop(workers, [&](std::size_t) {
      body(here.fetch_add(1));
      while (here.load() < workers) __builtin_ia32_pause();
    });
  }
  // The part of a phase of the list, `bytes` of each expert from `offset` on, that is in the caller's strip.
  template <typename F>
  void own_parts(std::size_t offset, std::size_t bytes, F&& part) const {
    const auto workers = static_cast<std::size_t>(crew_.workers());
    const std::size_t all = bytes * chosen_.size();
    const std::size_t begin = self() * all / workers, end = (self() + 1) * all / workers;
    for (std::size_t i = begin / bytes; i * bytes < end; ++i) {
      const std::size_t from = std::max(begin, i * bytes) - i * bytes, to = std::min(end - i * bytes, bytes);
      if (hinted_[i]) part({pool_.blob(chosen_[i]) + offset + from, to - from});
    }
  }
  void read(const Kind& kind) {
    constexpr std::size_t kPart = 4096;
    std::vector<Part> wrong, parts;
    const auto cut = [&](std::size_t e, std::vector<Part>& to) {
      for (std::size_t at = 0; at < pool_.bytes(); at += kPart)
        to.push_back({pool_.blob(e) + at, std::min(kPart, pool_.bytes() - at)});
    };
    for (std::size_t i = 0; i < share(kind.wrong); ++i) cut(any_expert(), wrong);
    const bool loads = options_.hints == "loads";
    if (kind.own) {
      std::atomic<std::size_t> here{0};
      const auto part = [&](const Part& p) { read_ahead(p, loads); };
      meet(here, [&](std::size_t) {
        own_parts(0, pool_.gate_up_bytes(), part);
        own_parts(pool_.gate_up_bytes(), pool_.bytes() - pool_.gate_up_bytes(), part);
      });
    } else {
      for (std::size_t i = 0; i < chosen_.size(); ++i)
        if (hinted_[i]) cut(chosen_[i], parts);
    }
    parts.insert(parts.end(), wrong.begin(), wrong.end());
    crew_.loop(parts.size(), [&](std::size_t p) { read_ahead(parts[p], loads); });
  }
  double compute(bool own) {
    const auto start = Clock::now();
    const std::size_t width = y_.size() / (chosen_.size() * ColdExperts::kHidden);
    list_.begin({{}, {x_.q.data(), x_.d.data(), x_.s.data(), width, ColdExperts::kHidden}});
    for (std::size_t i = 0; i < chosen_.size(); ++i) {
      list_.add_expert(pool_.at(chosen_[i]), {});
      for (std::size_t r = 0; r < width; ++r) list_.add_row(r, &y_[(i * width + r) * ColdExperts::kHidden]);
    }
    list_.finish(crew_.workers());
    const auto any = [&](std::size_t unit) { list_.run(unit); };
    const auto own_strips = [&](std::size_t) { run_strips(); };
    const Crew::Body body = own ? Crew::Body(own_strips) : Crew::Body(any);
    for (Taken& taken : taken_) taken.units.store(0, std::memory_order_relaxed);
    crew_.start_experts(own ? static_cast<std::size_t>(crew_.workers()) : list_.units(), body);
    crew_.wait_experts();
    return microseconds(Clock::now() - start);
  }
  // The caller's strip of each phase, and then what others have left of theirs.
  void run_strips() {
    const auto workers = static_cast<std::size_t>(crew_.workers());
    for (const bool second : {false, true}) {
      const std::size_t from = second ? list_.first_units() : 0,
                        n = (second ? list_.units() : list_.first_units()) - from;
      for (std::size_t k = 0; k < workers; ++k) {
        const std::size_t seat = (self() + k) % workers;
        const std::size_t begin = seat * n / workers, size = (seat + 1) * n / workers - begin;
        std::atomic<std::size_t>& taken = taken_[(second ? workers : 0) + seat].units;
        while (taken.load(std::memory_order_relaxed) < size)
          if (const std::size_t i = taken.fetch_add(1); i < size) list_.run(from + begin + i);
      }
    }
  }

  Crew& crew_;
  const ColdExperts& pool_;
  const ListOptions& options_;
  std::vector<std::size_t> chosen_;
  std::vector<bool> hinted_;
  ActivationRows x_;
  std::vector<float> y_;
  ExpertRun list_;
  struct alignas(64) Taken {
    std::atomic<std::size_t> units{0};
  };
  std::vector<Taken> taken_;  // of each strip
  std::uint64_t drawn_ = std::uint64_t{1} << 32;
};

void time_hints(Crew& crew, const ColdExperts& pool, const std::string& name, const ListOptions& options) {
  constexpr HintedLists::Kind kKinds[] = {{},           {0, 0, true},     {0.5, 0},    {1, 0}, {1, 1}, {0.5, 0, true},
                                          {1, 0, true}, {0.5, 0.5, true}, {1, 1, true}};
  for (const std::size_t width : {1UL, 2UL, 4UL})
    for (const std::size_t experts : {1UL, 2UL, 4UL, 8UL}) {
      HintedLists lists(crew, pool, experts, width, options);
      std::vector<double> times[std::size(kKinds)], fetches[std::size(kKinds)];
      for (int i = 0; i < options.repeats; ++i)  // in turns: what else the machine does meets all alike
        for (std::size_t k = 0; k < std::size(kKinds); ++k) {
          const auto [list, fetch] = lists.time(kKinds[k]);
          times[k].push_back(list);
          fetches[k].push_back(fetch);
        }
      fmt::print("{} {} experts, {} rows each:", name, experts, width);
      for (std::size_t k = 0; k < std::size(kKinds); ++k) {
        std::sort(times[k].begin(), times[k].end());
        std::sort(fetches[k].begin(), fetches[k].end());
        const HintedLists::Kind& kind = kKinds[k];
        fmt::print(" {}{:.0f}/{:.0f} {:.1f}", kind.own ? "own " : "any ", kind.right * 100, kind.wrong * 100,
                   times[k][times[k].size() / 2]);
        if (kind.right == 1 && kind.wrong == 0) fmt::print(" ({:.0f})", fetches[k][fetches[k].size() / 2]);
      }
      fmt::print("\n");
    }
}

void time_lists(Crew& crew, std::size_t bytes, const ListOptions& options) {
  for (const std::string& name : options.types) {
    const DTypeInfo* info = nullptr;
    for (std::uint32_t id = 0; id < 64; ++id)
      if (const DTypeInfo* found = find_dtype(id); found != nullptr && found->name == name) info = found;
    if (info == nullptr || !has_tile_layout(info->type)) fail_input("--lists: {} has no tiles", name);
    const ColdExperts pool(info->type, bytes, options.isa);
    if (!options.hints.empty()) {
      time_hints(crew, pool, name, options);
      continue;
    }
    for (const std::size_t width : {1UL, 2UL, 4UL})
      for (const std::size_t experts : {1UL, 2UL, 3UL, 4UL, 8UL, 12UL}) {
        std::vector<double> times = expert_lists(crew, pool, experts, width, options.gap, options.repeats);
        std::sort(times.begin(), times.end());
        const double median = times[times.size() / 2];
        fmt::print("{:8} {:2} experts, {} rows each, {} workers: median {:7.1f} us, least {:7.1f}, {:6.1f} GB/s\n",
                   name, experts, width, crew.workers(), median, times[0],
                   static_cast<double>(experts * pool.bytes()) / median / 1e3);
      }
  }
}

int run(int argc, char** argv) {
  CLI::App app("Latency and throughput of the worker crew", "bench_crew");
  int repeats = 2000;
  double seconds = 1.0;
  app.add_option("--repeats", repeats, "of each latency")->check(CLI::PositiveNumber);
  app.add_option("--seconds", seconds, "of each throughput")->check(CLI::PositiveNumber);
  std::vector<std::string> lists;
  int workers_of_lists = 0, spinners = 0, gap_us = 100;
  std::size_t buffer_mib = 0;
  app.add_option("--lists", lists, "time lists of experts with gate and up of these types instead")->delimiter(',');
  app.add_option("--workers", workers_of_lists, "for --lists; default all cores")->check(CLI::PositiveNumber);
  app.add_option("--buffer", buffer_mib, "for --lists: MiB of experts; default several times the caches")
      ->check(CLI::PositiveNumber);
  app.add_option("--gap", gap_us, "for --lists: microseconds between two of them")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--spinners", spinners, "for --lists: threads that spin beside, as those that launch and wait do")
      ->check(CLI::NonNegativeNumber);
  std::string hints, isa(tile_isa_name(best_tile_isa()));
  int writers = 0;
  app.add_option("--hints", hints,
                 "for --lists: what lists take after some of their experts were read ahead, and how those are read")
      ->check(CLI::IsMember({"loads", "t1"}));
  app.add_option("--isa", isa, "for --lists: the instruction set of the kernels")->capture_default_str();
  app.add_option("--writers", writers, "for --lists: threads that write memory beside, so that less of it is left")
      ->check(CLI::NonNegativeNumber);
  CLI11_PARSE(app, argc, argv);
  const Topology topology = read_topology();
  const std::vector<int> processors = crew_processors(topology, CrewCores::kAll);
  const int cores = static_cast<int>(processors.size());
  fmt::print("{} cores, load {:.1f}\n", cores, machine_info().load);
  if (!lists.empty()) {
    const std::optional<TileIsa> found = find_tile_isa(isa);
    if (!found || !tile_isa_supported(*found)) fail_input("--isa: {} is not one of this processor", isa);
    Crew crew({workers_of_lists > 0 ? workers_of_lists : cores, processors});
    std::atomic<bool> stop{false};
    std::deque<HugeBuffer> written;
    std::vector<std::jthread> beside;
    for (int i = 0; i < spinners; ++i)
      beside.emplace_back([&stop] {
        while (!stop.load(std::memory_order_relaxed)) __builtin_ia32_pause();
      });
    constexpr std::size_t kWritten = std::size_t{256} << 20;
    for (int i = 0; i < writers; ++i) written.emplace_back(kWritten);
    for (HugeBuffer& buffer : written)
      beside.emplace_back([&] {
        constexpr std::size_t kStep = 65536;
        for (std::size_t at = 0; !stop.load(std::memory_order_relaxed); at = (at + kStep) % kWritten)
          std::fill_n(buffer.data() + at, kStep, static_cast<std::uint8_t>(at));
      });
    time_lists(crew, buffer_mib == 0 ? cold_bytes(machine_info()) : buffer_mib << 20,
               {lists, hints, std::chrono::microseconds(gap_us), std::chrono::microseconds(20), *found, repeats});
    stop.store(true);
    return 0;
  }
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
