#include "runtime/memory.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

namespace tandem {

namespace {

class HostMemory : public MachineMemory {
 public:
  bool is_host() const override { return true; }
  std::shared_ptr<std::uint8_t> allocate(std::size_t bytes) override {
    // calloc leaves pages untouched until they are used (a cache of 262,144 positions costs nothing until filled), and
    // aligns to 16; the rest is for whole cache lines.
    constexpr std::size_t kLine = 64;
    auto* memory = static_cast<std::uint8_t*>(std::calloc(bytes + kLine, 1));
    if (memory == nullptr)
      fail_input("memory: expected {} bytes of it, found less. Fix: a smaller --context or model", bytes);
    const std::size_t skip = (kLine - reinterpret_cast<std::uintptr_t>(memory) % kLine) % kLine;
    return {memory + skip, [memory](std::uint8_t*) { std::free(memory); }};
  }
  std::shared_ptr<std::uint8_t> allocate_staging(std::size_t bytes) override { return allocate(bytes); }
  void copy(void* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
  void zero(void* to, std::size_t bytes) override { std::memset(to, 0, bytes); }
  void write(void* to, const void* host, std::size_t bytes) override { std::memcpy(to, host, bytes); }
  void read(void* host, const void* from, std::size_t bytes) override { std::memcpy(host, from, bytes); }
  void send(void* to, const void* staging, std::size_t bytes) override { std::memcpy(to, staging, bytes); }
  void fetch(void* staging, const void* from, std::size_t bytes) override { std::memcpy(staging, from, bytes); }

  void commit_rows(const HistoryRows& h, ConstRows x) override {
    CHECK(x.cols == h.width, "{} of {} columns", x.cols, h.width);
    const std::size_t kept = h.depth - std::min(h.depth, x.rows);
    std::memmove(h.rows, h.rows + (h.depth - kept) * h.width, kept * h.width * sizeof(float));
    for (std::size_t i = kept; i < h.depth; ++i)
      std::copy_n(x.row(x.rows - h.depth + i), h.width, h.rows + i * h.width);
  }
  void keep_rows(std::span<const HistoryRows> list, std::size_t n) override {
    for (const HistoryRows& h : list) commit_rows(h, ConstRows(h.window, n, h.width));
  }
  void log_rows(const HistoryRows& h, std::size_t at, ConstRows x) override {
    CHECK(x.cols == h.width, "{} of {} columns", x.cols, h.width);
    for (std::size_t r = 0; r < x.rows; ++r) std::copy_n(x.row(r), h.width, h.window + (at + r) * h.width);
  }
};

}  // namespace

std::uint64_t new_identity() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

MachineMemory& host_memory() {
  static HostMemory memory;
  return memory;
}

}  // namespace tandem
