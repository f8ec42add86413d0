// Memory that a decode round asks the allocator for: this program counts every call of operator new.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <new>

#include "cpu/cpu_ops.h"
#include "runtime/expert_store.h"
#include "tests/e2e/nano_prompts.h"

namespace {
std::atomic<std::size_t> calls{0};
std::atomic<bool> trap{false};

void* counted(std::size_t bytes, std::size_t alignment) {
  calls.fetch_add(1);
  if (trap.load()) std::abort();  // under a debugger: who is it
  void* memory = alignment <= alignof(std::max_align_t)
                     ? std::malloc(bytes == 0 ? 1 : bytes)
                     : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
}  // namespace

void* operator new(std::size_t bytes) {
  return counted(bytes, 1);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return counted(bytes, 1);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace tandem::testing {
namespace {

// Calls in each of 15 decode passes, after a prompt that fills the attention's lists and some passes more.
std::vector<std::size_t> calls_per_round(double share, AdaptMode mode, PassMode pass, int workers) {
  CpuOps ops(workers);
  LoadOptions load;
  load.placement = all_in_ram(nano().shape.layers + nano().shape.mtp_layers, nano().shape.experts);
  for (std::size_t i = 0; i < load.placement->place.size(); ++i)
    if (static_cast<double>(i % 10) < 10 * share) load.placement->place[i] = Place::kCard;
  load.adapt.mode = mode;
  Pipeline pipeline(nano(), ops, 64, load);
  SequenceState state(nano().shape, {kContext, KvType::kF16});
  const Prompt& tokens = prompts()[2];
  pipeline.prefill(state, std::span(tokens).first(420), 60, LogitRows::kLast, {});
  const std::size_t width = pass == PassMode::kWindow ? 4 : 1;
  std::vector<std::size_t> result;
  result.reserve(64);
  for (int round = 0; round < 40; ++round) {
    const std::size_t before = calls.load();
    const auto window = std::span(tokens).subspan(state.position(), width);
    trap = std::getenv("TANDEM_TRAP_NEW") != nullptr && round == 39;
    pipeline.forward(state, window, pass, LogitRows::kAll);
    if (pass == PassMode::kWindow) state.keep(2);
    trap = false;
    result.push_back(calls.load() - before);
  }
  return {result.begin() + 25, result.end()};
}

TEST(DecodeMemory, ARoundAsksForNone) {
  for (const double share : {0.0, 0.4, 1.0})
    for (const AdaptMode mode : {AdaptMode::kOff, AdaptMode::kLru, AdaptMode::kSwaps})
      for (const PassMode pass : {PassMode::kCommit, PassMode::kWindow})
        for (const int workers : {1, 2}) {
          // A worker's scratch grows when it first takes a unit of a kind, which on a busy machine may be late: then
          // once more. A round that asks every time does so in all of them.
          std::vector<std::size_t> found;
          for (int attempt = 0; attempt < (workers == 1 ? 1 : 3); ++attempt) {
            found = calls_per_round(share, mode, pass, workers);
            if (std::count(found.begin(), found.end(), 0U) == static_cast<std::ptrdiff_t>(found.size())) break;
          }
          EXPECT_EQ(found, std::vector<std::size_t>(found.size()))
              << share << " on the card, mode " << static_cast<int>(mode) << ", window " << (pass == PassMode::kWindow)
              << ", " << workers << " workers";
        }
}

}  // namespace
}  // namespace tandem::testing
