#include "cpu/memory_read.h"

#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "cpu/isa.h"
#include "placement/check.h"

namespace tandem {
namespace {

// Eight independent chains, so that the loads and not the xors are in the way.
__attribute__((target("avx512f"))) std::uint32_t read_avx512(const std::uint8_t* data, std::size_t bytes) {
  __m512i acc[8];
  for (__m512i& a : acc) a = _mm512_setzero_si512();
  for (std::size_t at = 0; at < bytes; at += 512)
    for (std::size_t i = 0; i < 8; ++i) acc[i] = _mm512_xor_si512(acc[i], _mm512_load_si512(data + at + 64 * i));
  for (std::size_t i = 1; i < 8; ++i) acc[0] = _mm512_xor_si512(acc[0], acc[i]);
  alignas(64) std::uint32_t words[16];
  _mm512_store_si512(words, acc[0]);
  std::uint32_t all = 0;
  for (const std::uint32_t word : words) all ^= word;
  return all;
}

__attribute__((target("avx2"))) std::uint32_t read_avx2(const std::uint8_t* data, std::size_t bytes) {
  __m256i acc[8];
  for (__m256i& a : acc) a = _mm256_setzero_si256();
  for (std::size_t at = 0; at < bytes; at += 256)
    for (std::size_t i = 0; i < 8; ++i)
      acc[i] = _mm256_xor_si256(acc[i], _mm256_load_si256(reinterpret_cast<const __m256i*>(data + at + 32 * i)));
  for (std::size_t i = 1; i < 8; ++i) acc[0] = _mm256_xor_si256(acc[0], acc[i]);
  alignas(32) std::uint32_t words[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(words), acc[0]);
  std::uint32_t all = 0;
  for (const std::uint32_t word : words) all ^= word;
  return all;
}

using ReadFunction = std::uint32_t (*)(const std::uint8_t*, std::size_t);

ReadFunction read_function() {
  static const ReadFunction function = cpu_has("avx512f") ? read_avx512 : read_avx2;
  return function;
}

using Clock = std::chrono::steady_clock;
constexpr std::size_t kPiece = 1U << 20;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Memory on 2 MiB pages where the system grants them.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes) : bytes_(bytes) {
    constexpr std::size_t kPage = 2U << 20;
    map_ = mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map_ == MAP_FAILED)
      fail_input("memory: expected {} MiB to read from, found less. Fix: close other programs", bytes >> 20);
    const auto start = (reinterpret_cast<std::uintptr_t>(map_) + kPage - 1) / kPage * kPage;
    data_ = reinterpret_cast<std::uint8_t*>(start);
    madvise(data_, bytes, MADV_HUGEPAGE);  // advice: small pages cost a few percent
  }
  ~Buffer() { munmap(map_, bytes_ + (2U << 20)); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::uint8_t* piece(std::size_t index) const { return data_ + index * kPiece; }
  std::size_t pieces() const { return bytes_ / kPiece; }

 private:
  std::size_t bytes_;
  void* map_ = nullptr;
  std::uint8_t* data_ = nullptr;
};

// Runs body(worker) on one pinned thread for each processor.
template <typename Body>
void run_pinned(const std::vector<int>& processors, const Body& body) {
  std::vector<std::thread> threads;
  threads.reserve(processors.size());
  for (std::size_t w = 0; w < processors.size(); ++w) {
    threads.emplace_back([&, w] {
      bind_this_thread(processors[w]);  // a system that refuses gets figures of unpinned threads
      body(w);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Bytes per second of all workers together, one value per sample.
std::vector<double> sample(const std::vector<int>& processors, const Buffer& buffer, const ReadPlan& plan) {
  const std::size_t workers = processors.size();
  std::vector<double> rates;
  std::atomic<std::size_t> next{0};
  std::atomic<std::uint32_t> sink{0};
  std::vector<std::size_t> read(workers);
  std::vector<Clock::time_point> ends(workers);
  Clock::time_point start;
  std::barrier line(static_cast<std::ptrdiff_t>(workers));
  run_pinned(processors, [&](std::size_t w) {
    for (int i = 0; i <= plan.samples; ++i) {  // the first one warms up
      line.arrive_and_wait();
      if (w == 0) start = Clock::now();
      line.arrive_and_wait();
      std::size_t bytes = 0;
      while (seconds_since(start) < plan.seconds) {
        // Pieces come round again after the whole buffer only.
        sink.fetch_xor(read_all(buffer.piece(next.fetch_add(1) % buffer.pieces()), kPiece), std::memory_order_relaxed);
        bytes += kPiece;
      }
      read[w] = bytes;
      ends[w] = Clock::now();
      line.arrive_and_wait();
      if (w != 0 || i == 0) continue;
      std::size_t all = 0;
      for (const std::size_t part : read) all += part;
      const Clock::time_point end = *std::max_element(ends.begin(), ends.end());
      rates.push_back(static_cast<double>(all) / std::chrono::duration<double>(end - start).count());
    }
  });
  return rates;
}

}  // namespace

std::uint32_t read_all(const std::uint8_t* data, std::size_t bytes) {
  CHECK(reinterpret_cast<std::uintptr_t>(data) % 64 == 0 && bytes % 512 == 0, "{} bytes", bytes);
  return read_function()(data, bytes);
}

std::string read_isa() {
  return read_function() == read_avx512 ? "avx512" : "avx2";
}

std::vector<int> read_worker_counts(int performance, int most) {
  CHECK(most >= 1 && performance <= most, "{} of {}", performance, most);
  std::set<int> counts{most};
  if (performance > 0) counts.insert(performance);
  for (int n = 1; n < most; n *= 2) counts.insert(n);
  if (most > 8) counts.insert(most * 3 / 4);  // memory is often fastest below the full count
  return {counts.begin(), counts.end()};
}

std::map<int, double> measure_read_gbps(const Topology& topology, const ReadPlan& plan,
                                        const std::function<void(std::size_t, std::size_t)>& step) {
  CHECK(plan.samples > 0 && plan.seconds > 0);
  const std::vector<int> processors = crew_processors(topology, CrewCores::kAll);
  const Buffer buffer(std::max<std::size_t>(1, (plan.buffer_bytes + kPiece - 1) / kPiece) * kPiece);
  // Memory that was never written is one page of zeros, read from a cache. Each worker writes what its node then holds.
  run_pinned(processors, [&](std::size_t w) {
    for (std::size_t i = w; i < buffer.pieces(); i += processors.size())
      std::memset(buffer.piece(i), static_cast<int>(i % 255 + 1), kPiece);
  });
  const std::vector<int> counts = read_worker_counts(topology.performance_cores(), static_cast<int>(processors.size()));
  std::map<int, double> gbps;
  for (const int workers : counts) {
    std::vector<double> rates = sample({processors.begin(), processors.begin() + workers}, buffer, plan);
    std::nth_element(rates.begin(), rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2), rates.end());
    gbps[workers] = rates[rates.size() / 2] / 1e9;
    step(gbps.size(), counts.size());
  }
  return gbps;
}

}  // namespace tandem
