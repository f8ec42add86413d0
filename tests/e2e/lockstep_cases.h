// What the tests of the two sides of a round share (test_lockstep.cpp, test_lockstep_lending.cpp).
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "cpu/cpu_ops.h"
#include "runtime/expert_store.h"
#include "runtime/workspace.h"
#include "tests/e2e/model_machine.h"
#include "tests/e2e/nano_prompts.h"

namespace tandem::testing {

// Under the race detector a run takes a hundred times as long: one of each kind is enough there.
#ifdef __SANITIZE_THREAD__
inline constexpr bool kRaceDetector = true;
#else
inline constexpr bool kRaceDetector = false;
#endif

inline int bank_count() {
  return nano().shape.layers + nano().shape.mtp_layers;
}
inline int expert_count() {
  return nano().shape.experts;
}

// `share` of all experts on the card, drawn at random, and `disk` of them in the file only.
inline ExpertPlacement random_placement(double share, double disk, std::uint32_t seed) {
  ExpertPlacement placement = all_in_ram(bank_count(), expert_count());
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> draw(0.0, 1.0);
  for (Place& place : placement.place) {
    const double x = draw(random);
    place = x < share ? Place::kCard : x < share + disk ? Place::kDisk : Place::kRam;
  }
  return placement;
}

inline const std::string& expected() {
  static const std::string hash = [] {
    const auto ops = make_cpu_ops(1);
    Pipeline pipeline(nano(), *ops, 512);
    return chunked(pipeline, 512);
  }();
  return hash;
}

// Memory for passes of more than 16 rows, a little too small for the work memory of 64, lent three experts at a time.
inline Lending some_lending() {
  Lending lending;
  lending.rows = static_cast<int>(kMaxWindow);
  lending.bytes = workspace_bytes(nano().shape, 64, nano().shape.max_positions, 0) - (64 << 10);
  lending.bytes_per_round = 100 << 10;
  lending.expected.resize(static_cast<std::size_t>(bank_count() * expert_count()));
  for (std::size_t i = 0; i < lending.expected.size(); ++i) lending.expected[i] = static_cast<double>(i % 7) / 256.0;
  return lending;
}

// The same, and caches of kContext positions: three experts in an area, from its end down.
inline Lending some_lending_with_cache() {
  Lending lending = some_lending();
  StateLayout layout;
  layout.context = kContext;
  lending.cache = cache_areas(nano().shape, layout);
  lending.cache_ahead = 8;
  return lending;
}
inline SequenceState new_state(const Pipeline& pipeline, Ops& ops) {
  return SequenceState(nano().shape, {kContext, KvType::kF16}, ops.memory(), pipeline.experts()->lease_cache());
}

// A fifth of the experts on the card, and memory that is lent, so many bytes a round; 0: as `lending` says.
inline LoadOptions fifth_on_card(const Lending& lending, std::int64_t bytes_per_round = 0) {
  LoadOptions load;
  load.placement = random_placement(0.2, 0, 8);
  load.lending = lending;
  if (bytes_per_round > 0) load.lending.bytes_per_round = bytes_per_round;
  return load;
}

}  // namespace tandem::testing
