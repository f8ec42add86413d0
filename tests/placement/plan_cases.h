// Inputs of the planner for tests: the real shape on the reference machine, and small random ones.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "placement/plan.h"
#include "placement/units.h"
#include "tests/real_shape.h"

namespace tandem::testing {

using Random = std::mt19937_64;

inline double uniform(Random& random, double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(random);
}
inline int pick(Random& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

// A machine in round figures; rates are those of its kind, not measured here.
inline Hardware test_machine() {
  Hardware hardware;
  hardware.cpu.performance_cores = 8;
  hardware.cpu.expert_efficiency = 0.8;
  hardware.cpu.row_cost = 0.2;
  hardware.cpu.start_us = 0;  // with larger hand-offs curves are not convex, and a plan is best but for a little
  hardware.ram.total = 64 * kGiB;
  hardware.ram.available = 60 * kGiB;
  hardware.ram.read_gbps = {{1, 12.0}, {8, 50.0}};
  hardware.disk.large_read_gbps = 3.0;
  Hardware::Gpu gpu;
  gpu.vram_total = 24 * kGiB;
  gpu.vram_free = 23 * kGiB;
  gpu.copy_gbps = 900;
  gpu.pcie_to_card_gbps = gpu.pcie_from_card_gbps = 25;
  gpu.handoff_us = 2;
  gpu.kernel_us = 1;
  gpu.row_us = 0.25;
  gpu.efficiency = 0.8;
  hardware.gpu = gpu;
  return hardware;
}

// Shares that fall with a power of the rank, the ranks shuffled in every bank.
inline RouteShares power_shares(int banks, int experts, int used, double exponent, std::uint64_t seed) {
  RouteShares shares{banks, experts, used, {}};
  Random random(seed);
  for (int b = 0; b < banks; ++b) {
    std::vector<double> bank;
    double sum = 0;
    for (int e = 0; e < experts; ++e) sum += bank.emplace_back(std::pow(e + 1.0, -exponent));
    std::shuffle(bank.begin(), bank.end(), random);
    for (const double share : bank) shares.share.push_back(share / sum);
  }
  return shares;
}

// The real model at about three bits a weight, with a draft block.
inline PlanInput real_input() {
  PlanInput input;
  input.model.shape = real_shape();
  input.model.weights.embedding = 640 * 1000 * 1000LL;
  input.model.weights.ngram_table = 28800 * 1000 * 1000LL;
  input.model.expert_bytes.assign(49, 1900 * 1024);
  input.model.dense_packed = 4000 * 1000 * 1000LL;
  input.model.shared_packed = 250 * 1000 * 1000LL;
  input.model.head_packed = 520 * 1000 * 1000LL;
  input.model.draft_packed = 80 * 1000 * 1000LL;
  input.model.draft_head_packed = input.model.head_packed;
  input.model.workspace = 300 * kMiB;
  input.model.short_workspace = 40 * kMiB;
  input.model.long_workspace = 290 * kMiB;
  input.hardware = test_machine();
  input.shares = power_shares(49, 512, 10, 0.9, 5);
  input.state.context = 32768;
  input.card = true;
  return input;
}

// Two to four banks of a few experts; rates chosen so that card and crew are of one order. Sizes are equal or not.
inline PlanInput small_input(Random& random, bool equal_sizes, int max_experts = 12) {
  PlanInput input;
  ModelShape& shape = input.model.shape;
  shape.layers = pick(random, 1, 3);
  shape.mtp_layers = pick(random, 0, 1);
  shape.is_gdn.assign(static_cast<std::size_t>(shape.layers), true);
  shape.experts = pick(random, 2, max_experts);
  shape.experts_used = pick(random, 1, std::min(3, shape.experts));
  shape.hidden = 64;
  shape.expert_ff = 64;
  shape.vocab = 320;
  shape.indexer_ratio = 4;
  const int banks = shape.layers + shape.mtp_layers;
  for (int b = 0; b < banks; ++b)
    input.model.expert_bytes.push_back(equal_sizes ? kMiB : pick(random, 1, 9) * kMiB / 4);
  input.model.dense_packed = pick(random, 1, 20) * kMiB;
  input.model.shared_packed = input.model.dense_packed / 4;
  input.model.head_packed = kMiB;
  input.model.draft_packed = shape.mtp_layers * kMiB;
  input.model.draft_head_packed = shape.mtp_layers * kMiB;
  input.model.weights.embedding = kMiB;
  input.model.weights.ngram_table = pick(random, 0, 20) * kMiB;
  input.state.context = 1024;
  input.hardware = test_machine();
  input.hardware.ram.total = input.hardware.ram.available = 2 * kGiB;
  input.policy.memory.vram_reserve = 0;
  input.policy.memory.ram_reserve = kMiB;
  input.policy.adapt.mode = pick(random, 0, 1) == 0 ? AdaptMode::kOff : AdaptMode::kSwaps;
  input.policy.adapt.fetch_ahead = FetchAhead::kOff;  // the choice of experts does not know of it
  input.card = true;
  const std::int64_t all = 16 * kMiB * banks * shape.experts / 8;
  input.hardware.gpu->vram_total = 0;
  input.hardware.gpu->vram_free =
      input.model.dense_packed + 3 * kMiB + static_cast<std::int64_t>(uniform(random, 0, 1) * static_cast<double>(all));
  input.shares = power_shares(banks, shape.experts, shape.experts_used, uniform(random, 0, 2), random());
  return input;
}

// ---- what plans are asked

inline bool in_ranges(const std::vector<ExpertRange>& ranges, int bank, int expert) {
  for (const ExpertRange& r : ranges)
    if (bank >= r.first_layer && bank <= r.last_layer && expert >= r.first_expert && expert <= r.last_expert)
      return true;
  return false;
}

inline std::int64_t bytes_at(const PlanInput& input, const ExpertPlacement& placement, Place where) {
  std::int64_t bytes = 0;
  for (int b = 0; b < placement.banks; ++b)
    for (int e = 0; e < placement.experts; ++e)
      if (placement.at(b, e) == where) bytes += input.model.expert_bytes[static_cast<std::size_t>(b)];
  return bytes;
}

inline std::int64_t item_bytes(const Plan& plan, Memory memory, std::string_view what = {}) {
  std::int64_t bytes = 0;
  for (const PlanItem& item : plan.items)
    if (item.memory == memory && (what.empty() || item.what == what)) bytes += item.bytes;
  return bytes;
}

// What every plan must satisfy.
inline void check_plan(const PlanInput& input, const Plan& plan) {
  const ExpertPlacement& placement = plan.placement;
  const int banks = static_cast<int>(input.model.expert_bytes.size()), experts = input.model.shape.experts;
  ASSERT_EQ(placement.place.size(), static_cast<std::size_t>(banks * experts));
  ASSERT_EQ(placement.count(Place::kCard) + placement.count(Place::kRam) + placement.count(Place::kDisk),
            banks * experts);
  EXPECT_EQ(placement.count(Place::kCard), plan.slots);
  EXPECT_EQ(std::accumulate(plan.slots_by_bank.begin(), plan.slots_by_bank.end(), 0), plan.slots);
  // Every byte is in the list, and the list is what the sums say.
  EXPECT_EQ(item_bytes(plan, Memory::kVram, "expert slots"), bytes_at(input, placement, Place::kCard));
  EXPECT_EQ(item_bytes(plan, Memory::kVram), plan.vram_used + plan.vram_reserve);
  EXPECT_EQ(item_bytes(plan, Memory::kRam), plan.ram_used + plan.ram_reserve);
  std::int64_t table = 0;
  for (const Memory memory : {Memory::kVram, Memory::kRam, Memory::kDisk})
    table += item_bytes(plan, memory, "n-gram table");
  EXPECT_EQ(table, input.model.weights.ngram_table);
  EXPECT_GE(plan.hit_rate, 0.0);
  EXPECT_LE(plan.hit_rate, 1.0);
  if (!plan.fits()) {
    EXPECT_NE(plan.shortfall.find("short. Fix: "), std::string::npos) << plan.shortfall;
    return;
  }
  // Who is lent memory is in RAM, may go to the card, and fits; all others have their place.
  std::int64_t lent = 0;
  for (const std::int32_t i : plan.lent) {
    EXPECT_EQ(placement.place[static_cast<std::size_t>(i)], Place::kRam) << i;
    EXPECT_FALSE(in_ranges(input.policy.bans, i / experts, i % experts)) << i;
    lent += input.model.expert_bytes[static_cast<std::size_t>(i / experts)];
  }
  EXPECT_LE(lent, plan.lent_bytes + plan.lent_cache.total());
  EXPECT_LE(plan.lent_in_cache, std::ssize(plan.lent));
  EXPECT_EQ(plan.lent_cache.count > 0, plan.cache_empty.has_value());
  // Memory is set apart for prompts only where it is lent.
  EXPECT_EQ(plan.lent_bytes > 0, std::ssize(plan.lent) > plan.lent_in_cache);
  EXPECT_EQ(plan.generating().count(Place::kCard), plan.slots + std::ssize(plan.lent));
  EXPECT_EQ(item_bytes(plan, Memory::kVram, "prompt memory"), plan.lent_bytes);
  if (!plan.lent.empty()) {
    const Policy::Memory& memory = input.policy.memory;
    EXPECT_TRUE(input.card && plan.limit.starts_with("VRAM"));
    EXPECT_TRUE(memory.lend_kv_cache || plan.lent_in_cache == 0);
    const bool in_prompt = std::ssize(plan.lent) > plan.lent_in_cache;
    EXPECT_TRUE(memory.lend_prompt_memory || !in_prompt);
    EXPECT_TRUE(!in_prompt || plan.stream_rows == 0 || plan.stream_rows > kShortRows);
  }
  EXPECT_EQ(item_bytes(plan, Memory::kRam, "expert arena"), bytes_at(input, placement, Place::kRam));
  EXPECT_EQ(item_bytes(plan, Memory::kDisk, "experts"), bytes_at(input, placement, Place::kDisk));
  EXPECT_LE(plan.vram_used, plan.vram_budget);
  EXPECT_LE(plan.ram_used, plan.ram_budget);
  EXPECT_FALSE(plan.limit.empty());
  EXPECT_LE(plan.slots, input.policy.memory.slots.value_or(banks * experts));
  const bool slots = input.card || input.plays_card;
  for (int b = 0; b < banks; ++b) {
    int on_card = 0, allowed = 0;
    for (int e = 0; e < experts; ++e) {
      const bool card = placement.at(b, e) == Place::kCard;
      const bool pin = in_ranges(input.policy.pins, b, e), ban = in_ranges(input.policy.bans, b, e);
      on_card += card ? 1 : 0;
      allowed += pin || !ban ? 1 : 0;
      EXPECT_TRUE(card || !pin || !slots) << b << " " << e;
      EXPECT_FALSE(card && ban && !pin) << b << " " << e;
    }
    EXPECT_TRUE(!slots || on_card >= std::min(allowed, input.policy.floor_per_layer)) << b;
    EXPECT_EQ(on_card, plan.slots_by_bank[static_cast<std::size_t>(b)]);
  }
}

}  // namespace tandem::testing
