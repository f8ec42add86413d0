// The planner at the real shape: where every byte goes, what limits, what does not fit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "placement/cost_model.h"
#include "placement/lending.h"
#include "placement/plan.h"
#include "tests/placement/plan_cases.h"

namespace tandem::testing {
namespace {

TEST(Planner, EveryExpertOfTheRealModelOnce) {
  PlanInput input = real_input();
  for (const Objective what : {Objective::kRoundTime, Objective::kHitRate}) {
    input.policy.objective = what;
    const Plan plan = make_plan(input);
    check_plan(input, plan);
    EXPECT_TRUE(plan.fits());
    EXPECT_EQ(plan.placement.place.size(), 25088U);  // 49 banks of 512
    EXPECT_EQ(std::accumulate(plan.slots_by_bank.begin(), plan.slots_by_bank.begin() + 48, 0) +
                  std::count(plan.placement.place.begin(), plan.placement.place.begin() + 24576, Place::kRam),
              24576);
    EXPECT_EQ(plan.limit, "VRAM: the card is full");
    EXPECT_EQ(plan.rows, 4);
    EXPECT_EQ(plan.rounds.size(), 5U);
    // What is left is less than one expert.
    EXPECT_LT(plan.vram_budget - plan.vram_used, 1900 * 1024);
    EXPECT_EQ(plan.vram_budget, 23 * kGiB - 512 * kMiB);
    EXPECT_EQ(plan.ram_budget, 56 * kGiB);  // 60 available, a sixteenth of 64 left alone
    EXPECT_EQ(item_bytes(plan, Memory::kVram, "KV cache"), 13LL * 32768 * 2 * 2 * 256 * 2);
    EXPECT_EQ(item_bytes(plan, Memory::kVram, "recurrent states") > 113246208, true);
    EXPECT_EQ(item_bytes(plan, Memory::kVram, "swap buffers"), 2 * 1900 * 1024);
    EXPECT_EQ(item_bytes(plan, Memory::kRam, "n-gram table"), 28800000000);  // just fits beside the arena
  }
}

TEST(Planner, FiguresOfThePlanAreSumsOverTheShares) {
  PlanInput input = real_input();
  input.model.expert_bytes[3] = 2500 * 1024;
  const Plan plan = make_plan(input);
  const ExpertPlacement generating = plan.generating();
  const std::vector<double> p = inclusion_probabilities(input.shares);
  double hits = 0, bytes = 0, all_bytes = 0;
  for (int i = 0; i < 49 * 512; ++i) {
    const double size = i / 512 == 3 ? 2500 : 1900;
    const auto at = static_cast<std::size_t>(i);
    all_bytes += p[at] * size;
    if (generating.place[at] != Place::kCard) continue;
    hits += p[at];
    bytes += p[at] * size;
  }
  EXPECT_NEAR(plan.hit_rate, hits / 490, 1e-9);
  EXPECT_NEAR(plan.hit_rate_bytes, bytes / all_bytes, 1e-9);
  EXPECT_NEAR(plan.misses_per_row, 490 - hits, 1e-7);
  EXPECT_EQ(plan.disk_per_row, 0.0);
  const RoundTime* best = plan.best_round();
  ASSERT_NE(best, nullptr);
  for (const RoundTime& round : plan.rounds) EXPECT_LE(round.tokens / round.total, best->tokens / best->total);
}

TEST(Planner, OneMoreGibibyteIsThePlanOfALargerCard) {
  PlanInput input = real_input();
  input.model.prefill_rows = 4096;
  const Plan plan = make_plan(input);
  EXPECT_FALSE(plan.lent.empty());
  input.hardware.gpu->vram_free += kGiB;
  input.hardware.gpu->vram_total += kGiB;
  const Plan larger = make_plan(input);
  ASSERT_TRUE(plan.more_vram.has_value());
  EXPECT_EQ(plan.more_vram->hit_rate, larger.hit_rate);
  EXPECT_EQ(plan.more_vram->tokens_per_second, larger.best_round()->tokens_per_second());
  EXPECT_GT(plan.more_vram->hit_rate, plan.hit_rate);
  EXPECT_FALSE(plan.more_ram.has_value());  // everything fits: nothing to gain
}

TEST(Planner, LittleRamSendsTheColdestToDisk) {
  PlanInput input = real_input();
  input.policy.memory.ram = 20 * kGiB;
  const Plan plan = make_plan(input);
  check_plan(input, plan);
  ASSERT_TRUE(plan.fits());
  EXPECT_EQ(plan.ram_budget, 20 * kGiB);
  EXPECT_LT(plan.ram_budget - plan.ram_used, 1900 * 1024);  // no more on disk than needed
  double coldest_ram = 1, hottest_disk = 0, on_disk = 0;
  const std::vector<double> inclusion = inclusion_probabilities(input.shares);
  for (int i = 0; i < 49 * 512; ++i) {
    const double p = inclusion[static_cast<std::size_t>(i)];
    const Place place = plan.placement.place[static_cast<std::size_t>(i)];
    if (place == Place::kRam) coldest_ram = std::min(coldest_ram, p);
    if (place == Place::kDisk) hottest_disk = std::max(hottest_disk, p);
  }
  EXPECT_LE(hottest_disk, coldest_ram);
  const CostModel costs(input);
  for (int b = 0; b < 49; ++b)
    for (int e = 0; e < 512; ++e)
      if (plan.placement.at(b, e) == Place::kDisk) on_disk += costs.inclusion(b, e);
  EXPECT_NEAR(plan.disk_per_row, on_disk, 1e-9);
  ASSERT_EQ(plan.warnings.size(), 1U);
  EXPECT_NE(plan.warnings[0].find("fit neither on the card nor in RAM and are read from disk"), std::string::npos);
  EXPECT_NE(plan.warnings[0].find(fmt::format("{:.2f} a token, {:.1f} ms", on_disk, on_disk * 1900 * 1024 / 3e6)),
            std::string::npos)
      << plan.warnings[0];
  ASSERT_TRUE(plan.more_ram.has_value());
  EXPECT_GT(plan.more_ram->tokens_per_second, plan.best_round()->tokens_per_second());

  input.hardware.disk.large_read_gbps = 0;
  const Plan unknown = make_plan(input);
  EXPECT_TRUE(unknown.rounds.empty());
  EXPECT_EQ(unknown.unknown, "the disk's read rate");
}

// A card in balance still takes experts that would otherwise be on disk.
TEST(Planner, BalanceGivesWayToTheDisk) {
  PlanInput input = real_input();
  input.hardware.ram.read_gbps = {{8, 5000.0}};  // a crew faster than the card: nothing to gain from slots
  const Plan balanced = make_plan(input);
  EXPECT_EQ(balanced.limit, "balance: with more experts the card would take longer than the crew");
  EXPECT_GT(balanced.vram_budget - balanced.vram_used, kGiB);
  input.policy.memory.ram = 36 * kGiB;
  const Plan plan = make_plan(input);
  check_plan(input, plan);
  EXPECT_GT(plan.slots, balanced.slots);
  EXPECT_EQ(plan.placement.count(Place::kDisk), 0);
}

TEST(Planner, NgramTablePlaces) {
  PlanInput input = real_input();
  input.hardware.ram.total = input.hardware.ram.available = 128 * kGiB;
  const auto in_ram = [&] { return item_bytes(make_plan(input), Memory::kRam, "n-gram table"); };
  EXPECT_EQ(in_ram(), 28800000000);  // auto: it fits
  input.hardware.ram.available = 56 * kGiB;
  EXPECT_EQ(in_ram(), 0);
  EXPECT_EQ(item_bytes(make_plan(input), Memory::kDisk, "n-gram table"), 28800000000);
  input.hardware.ram.available = 128 * kGiB;
  input.policy.ngram_place = NgramPlace::kDisk;
  EXPECT_EQ(in_ram(), 0);
  input.policy.ngram_place = NgramPlace::kRam;
  EXPECT_EQ(in_ram(), 28800000000);
  input.policy.memory.ram = 20 * kGiB;
  const Plan plan = make_plan(input);
  EXPECT_EQ(plan.shortfall,
            "RAM: 27.43 GiB needed without a single expert in RAM, 20.00 GiB allowed after the reserve: 7.43 GiB "
            "short. Fix: ngram_place: disk");
}

TEST(Planner, ShortfallsSayByHowMuchAndWhatToDo) {
  PlanInput input = real_input();
  input.policy.memory.vram = 6 * kGiB;
  input.state.context = 262144;
  Plan plan = make_plan(input);
  const std::int64_t needed = plan.vram_used;
  EXPECT_GT(needed, plan.vram_budget);
  EXPECT_EQ(plan.vram_budget, 6 * kGiB - 512 * kMiB);
  EXPECT_TRUE(plan.shortfall.starts_with("VRAM: ")) << plan.shortfall;
  EXPECT_TRUE(plan.shortfall.ends_with("Fix: --context 16384")) << plan.shortfall;
  EXPECT_TRUE(plan.rounds.empty());
  EXPECT_EQ(plan.slots, 0);
  // The advice holds, and twice the context would not have fitted.
  input.state.context = 16384;
  EXPECT_TRUE(make_plan(input).fits());
  input.state.context = 32768;
  EXPECT_FALSE(make_plan(input).fits());
  input.policy.memory.vram = 3 * kGiB;
  EXPECT_TRUE(make_plan(input).shortfall.ends_with("Fix: --device cpu, or a smaller model file"));

  input.policy.memory.vram.reset();
  input.policy.floor_per_layer = 400;
  plan = make_plan(input);
  EXPECT_TRUE(plan.shortfall.starts_with("expert slots: pins and floor_per_layer of the policy ask for 19,600 experts"))
      << plan.shortfall;
  input.policy.floor_per_layer = 0;
  input.policy.pins = {{0, 0, 0, 9}};
  input.policy.memory.slots = 4;
  EXPECT_NE(make_plan(input).shortfall.find("found room for 4 slots"), std::string::npos);
  EXPECT_NE(make_plan(input).shortfall.find(": 6 slots short."), std::string::npos);
}

TEST(Planner, LimitsInWords) {
  PlanInput input = real_input();
  input.policy.memory.slots = 100;
  EXPECT_EQ(make_plan(input).limit, "slots: the policy allows 100");
  EXPECT_EQ(make_plan(input).slots, 100);
  EXPECT_FALSE(make_plan(input).more_vram.has_value());  // more would not be used
  input.policy.memory.slots.reset();
  input.hardware.gpu->vram_total = input.hardware.gpu->vram_free = 96 * kGiB;
  input.policy.objective = Objective::kHitRate;
  Plan plan = make_plan(input);
  EXPECT_EQ(plan.limit, "nothing: every expert is on the card");
  EXPECT_DOUBLE_EQ(plan.hit_rate, 1.0);
  EXPECT_EQ(plan.misses_per_row, 0.0);
  EXPECT_FALSE(plan.more_vram.has_value());
  input.policy.bans = {{0, 1, 0, 511}};
  plan = make_plan(input);
  EXPECT_EQ(plan.limit, "bans: every other expert is on the card");
  EXPECT_NEAR(plan.hit_rate, 47.0 / 49, 1e-12);
  input.card = false;
  plan = make_plan(input);
  EXPECT_EQ(plan.limit, "no card: every expert is computed from RAM");
  EXPECT_EQ(plan.vram_budget, 0);
  EXPECT_EQ(item_bytes(plan, Memory::kVram), 0);
  EXPECT_EQ(item_bytes(plan, Memory::kRam, "dense weights"), 4000000000);
}

// The CPU plays the card: the size counts slots only, and they are part of the RAM.
TEST(Planner, ThePlayedCard) {
  PlanInput input = real_input();
  input.card = false;
  input.plays_card = true;
  input.hardware.gpu.reset();
  input.policy.memory.vram = 10 * 1900 * 1024 + 5;
  Plan plan = make_plan(input);
  EXPECT_EQ(plan.slots, 10);
  EXPECT_EQ(plan.limit, "the played card's memory: its slots are full");
  EXPECT_EQ(item_bytes(plan, Memory::kVram), 10 * 1900 * 1024);
  EXPECT_EQ(item_bytes(plan, Memory::kRam, "expert slots"), 10 * 1900 * 1024);
  EXPECT_EQ(item_bytes(plan, Memory::kRam, "expert arena"), 25078LL * 1900 * 1024);
  input.policy.memory.vram.reset();
  input.policy.memory.slots = 77;
  plan = make_plan(input);
  EXPECT_EQ(plan.slots, 77);
  check_plan(input, plan);
}

TEST(Planner, WithoutBandwidthsBytesOnly) {
  PlanInput input = real_input();
  input.hardware.ram.read_gbps.clear();
  const Plan plan = make_plan(input);
  check_plan(input, plan);
  EXPECT_TRUE(plan.rounds.empty());
  EXPECT_EQ(plan.unknown, "RAM bandwidth");
  EXPECT_EQ(plan.warnings,
            (std::vector<std::string>{"objective round_time needs RAM bandwidth: experts are chosen by hit rate"}));
  input.policy.objective = Objective::kHitRate;
  EXPECT_EQ(make_plan(input).placement.place, plan.placement.place);
}

TEST(Planner, AnExplicitLimitIsNoMoreThanTheMachineHas) {
  PlanInput input = real_input();
  input.policy.memory.vram = 48 * kGiB;
  input.policy.memory.ram = 128 * kGiB;
  const Plan plan = make_plan(input);
  EXPECT_EQ(plan.vram_budget, 24 * kGiB - 512 * kMiB);
  EXPECT_EQ(plan.ram_budget, 64 * kGiB);
  EXPECT_EQ(plan.warnings.size(), 2U);
  input.policy.memory.vram_reserve = kGiB;
  input.policy.memory.ram_reserve = 2 * kGiB;
  EXPECT_EQ(make_plan(input).vram_budget, 23 * kGiB);
  EXPECT_EQ(make_plan(input).ram_budget, 62 * kGiB);
}

// The hand-off and crew buffers, counted from the shapes: 16 rows, 10 experts, 2560 wide, hidden 640.
TEST(Planner, BuffersOfCardAndCrew) {
  const Plan plan = make_plan(real_input());
  const std::int64_t row_in = 2560 + 80 * 4 + 160 * 4, row_out = 10 * (2560 * 4 + 8);
  EXPECT_EQ(item_bytes(plan, Memory::kVram, "hand-off buffers"), 2 * 16 * (row_in + row_out));
  EXPECT_EQ(item_bytes(plan, Memory::kRam, "hand-off buffers"), 2 * 16 * (row_in + row_out));
  EXPECT_EQ(item_bytes(plan, Memory::kRam, "crew buffers"), 16 * 10 * (640 * 4 + 640 + 20 * 4 + 40 * 4));
}

// A machine that is only described gets a range: everything a quarter slower or faster changes all times alike.
TEST(Planner, ADescribedMachineGetsARange) {
  PlanInput input = real_input();
  input.model.prefill_rows = 4096;
  const Plan measured = make_plan(input);
  ASSERT_TRUE(measured.fits());
  EXPECT_FALSE(measured.lent.empty());
  EXPECT_TRUE(measured.slowest.empty() && measured.fastest.empty());
  input.hardware.spread = 0.25;
  const Plan plan = make_plan(input);
  ASSERT_EQ(plan.slowest.size(), plan.rounds.size());
  ASSERT_EQ(plan.fastest.size(), plan.rounds.size());
  for (std::size_t i = 0; i < plan.rounds.size(); ++i) {
    EXPECT_NEAR(plan.slowest[i], 0.75 * plan.rounds[i].tokens_per_second(), 1e-9);
    EXPECT_NEAR(plan.fastest[i], 1.25 * plan.rounds[i].tokens_per_second(), 1e-9);
  }
  EXPECT_EQ(plan.slots, measured.slots);
}

// Rows of the head's vocabulary lie packed beside the rest, and as they are in the file in RAM.
TEST(Planner, ADraftVocabularyIsCounted) {
  for (const bool card : {true, false}) {
    PlanInput whole = real_input();
    whole.card = card;
    PlanInput few = whole;
    few.model.draft_tokens = 32768;
    few.model.draft_head_packed = 69 * 1000 * 1000LL;
    few.model.draft_head_rows = 68 * 1000 * 1000LL;
    std::vector<std::string> found;
    for (const PlanItem& item : make_plan(few).items)
      if (item.what == "draft vocabulary")
        found.push_back(fmt::format("{} {} {}", item.memory == Memory::kVram, item.bytes, item.note));
    EXPECT_EQ(found, (std::vector<std::string>{fmt::format("{} 69000000 32,768 of 248,320 tokens", card),
                                               "false 68000000 its rows of the file"}));
    for (const PlanItem& item : make_plan(whole).items) EXPECT_NE(item.what, "draft vocabulary");
  }
}

// A card that is full lends what prompts need: the hottest experts off it, hits and rounds as with them on it. Limits
// that are not the card's keep lent experts out as well.
TEST(Planner, LendsThePromptsMemory) {
  PlanInput input = real_input();
  input.policy.memory.lend_kv_cache = false;
  input.model.prefill_rows = 4096;
  const Plan plan = make_plan(input);
  check_plan(input, plan);
  // 290 MiB of work memory, 512 MiB on their way, the draft block's residuals: some 500 experts.
  const std::int64_t wide = input.model.shape.wide() * 4;
  EXPECT_EQ(plan.lent_bytes, 290 * kMiB + 512 * kMiB + 4096 * wide + 64 * kKiB);
  EXPECT_EQ(std::ssize(plan.lent), plan.lent_bytes / input.model.expert_bytes[0]);
  double coldest = 1;
  for (const std::int32_t i : plan.lent) coldest = std::min(coldest, plan.expected[static_cast<std::size_t>(i)]);
  for (std::size_t i = 0; i < plan.placement.place.size(); ++i) {
    if (plan.generating().place[i] != Place::kCard) {
      EXPECT_LE(plan.expected[i], coldest);
    }
  }
  EXPECT_EQ(item_bytes(plan, Memory::kVram, "work memory"),
            40 * kMiB + kShortRows * wide + long_pass_bytes(input.model.shape, 4096) + input.model.shape.vocab * 4);
  const CostModel costs(input);
  for (const RoundTime& round : plan.rounds)
    EXPECT_EQ(round.total, costs.round(plan.generating(), round.rows - 1).total);

  PlanInput keeps = input;
  keeps.policy.memory.lend_prompt_memory = false;
  const Plan kept = make_plan(keeps);
  EXPECT_TRUE(kept.lent.empty());
  EXPECT_EQ(kept.lent_bytes, 0);
  EXPECT_EQ(item_bytes(kept, Memory::kVram, "work memory"), 300 * kMiB + 4096 * wide);
  EXPECT_EQ(item_bytes(kept, Memory::kVram, "prompt experts"), 512 * kMiB + long_pass_bytes(input.model.shape, 4096));
  EXPECT_GT(plan.hit_rate, kept.hit_rate + 0.005);
  EXPECT_GT(plan.best_round()->tokens_per_second(), kept.best_round()->tokens_per_second());
  EXPECT_GE(kept.slots, plan.slots);  // the work memory of short passes is besides

  PlanInput few = input;
  few.policy.memory.slots = 1000;
  EXPECT_TRUE(make_plan(few).lent.empty());
  PlanInput all = input;
  all.hardware.gpu->vram_total = all.hardware.gpu->vram_free = 200 * kGiB;
  EXPECT_TRUE(make_plan(all).lent.empty());
}

// Near the balance of card and crew the card has fewer experts than it would hold, and lent ones take it past that:
// what the objective asks for decides.
TEST(Planner, LendsOnlyWhatIsBetter) {
  for (const auto& [copy_gbps, ram_gbps, vram_gib] : {std::array{150, 100, 14}, {300, 100, 24}, {300, 200, 14}}) {
    PlanInput input = real_input();
    input.policy.memory.lend_kv_cache = false;
    input.model.prefill_rows = 4096;
    input.hardware.gpu->copy_gbps = copy_gbps;
    input.hardware.ram.read_gbps = {{1, 12.0}, {8, static_cast<double>(ram_gbps)}};
    input.hardware.gpu->vram_free = vram_gib * kGiB;
    for (const Objective what : {Objective::kRoundTime, Objective::kHitRate}) {
      input.policy.objective = what;
      input.policy.memory.lend_prompt_memory = false;
      const Plan plain = make_plan(input);
      ASSERT_EQ(plain.limit, "VRAM: the card is full");
      input.policy.memory.lend_prompt_memory = true;
      const Plan plan = make_plan(input);
      check_plan(input, plan);
      EXPECT_EQ(plan.lent.empty(), what == Objective::kRoundTime) << vram_gib;
      if (what == Objective::kHitRate) {
        EXPECT_GT(plan.hit_rate, plain.hit_rate);
        EXPECT_LT(plan.best_round()->tokens_per_second(), plain.best_round()->tokens_per_second());
      } else {
        EXPECT_EQ(plan.slots, plain.slots);
      }
    }
  }
}

// What a conversation has not reached of its cache holds experts as well: as many as fit into the half of each area,
// less what stays free ahead, and after them those of the prompt memory. Beside that nothing of the plan changes.
TEST(Planner, LendsTheCache) {
  PlanInput input = real_input();
  input.model.prefill_rows = 4096;
  const Plan plan = make_plan(input);
  check_plan(input, plan);
  PlanInput keeps = input;
  keeps.policy.memory.lend_kv_cache = false;
  const Plan kept = make_plan(keeps);
  EXPECT_EQ(plan.placement.place, kept.placement.place);
  EXPECT_EQ(plan.vram_used, kept.vram_used);
  EXPECT_EQ(plan.lent_bytes, kept.lent_bytes);
  EXPECT_EQ(kept.lent_in_cache, 0);
  EXPECT_FALSE(kept.cache_empty || kept.cache_full);

  const CacheAreas areas = cache_areas(input.model.shape, input.state);
  const std::int64_t expert = input.model.expert_bytes[0];
  const auto fit = [&](std::int64_t used) {  // into one area
    const std::int64_t first = (used + Lending{}.cache_ahead) * areas.position_bytes;
    std::int64_t count = 0;
    for (std::int64_t at = areas.bytes / 64 * 64; (at = (at - expert) / 64 * 64) >= first;) ++count;
    return areas.count * count;
  };
  EXPECT_GT(fit(16384), 100);
  EXPECT_EQ(plan.lent_in_cache, fit(16384));
  EXPECT_EQ(std::ssize(plan.lent), fit(16384) + std::ssize(kept.lent));
  ASSERT_TRUE(plan.cache_empty && plan.cache_full);
  EXPECT_EQ(plan.cache_full->hit_rate, kept.hit_rate);
  EXPECT_EQ(plan.cache_full->tokens_per_second, kept.best_round()->tokens_per_second());
  EXPECT_GT(plan.hit_rate, kept.hit_rate);
  EXPECT_GT(plan.cache_empty->hit_rate, plan.hit_rate);
  EXPECT_GT(plan.cache_empty->tokens_per_second, plan.best_round()->tokens_per_second());
  for (const PlanItem& item : plan.items) {
    if (item.what == "KV cache") {
      EXPECT_EQ(item.note, fmt::format("32,768 positions, 16 bits; half of it lent to {} experts", fit(16384)));
    } else if (item.what == "prompt memory") {
      EXPECT_EQ(item.note, fmt::format("passes of 4,096; lent to {} experts", kept.lent.size()));
    }
  }

  // By itself; without rates; and not where the card is not full, or the CPU plays it.
  PlanInput alone = input;
  alone.policy.memory.lend_prompt_memory = false;
  const Plan cache_only = make_plan(alone);
  check_plan(alone, cache_only);
  EXPECT_EQ(std::ssize(cache_only.lent), fit(16384));
  EXPECT_EQ(cache_only.lent_bytes, 0);
  PlanInput unknown = input;
  unknown.hardware.ram.read_gbps.clear();
  EXPECT_EQ(make_plan(unknown).lent_in_cache, fit(16384));
  EXPECT_EQ(make_plan(unknown).cache_empty->tokens_per_second, 0.0);
  PlanInput few = input;
  few.policy.memory.slots = 1000;
  EXPECT_EQ(make_plan(few).lent_in_cache, 0);
  PlanInput half = input;  // one expert fits into an area while it is empty, none when half of it is in use
  half.state.context = 4096;
  const Plan at_first = make_plan(half);
  check_plan(half, at_first);
  EXPECT_EQ(at_first.lent_in_cache, 0);
  EXPECT_EQ(at_first.lent_cache.count, 26);
  ASSERT_TRUE(at_first.cache_empty && at_first.cache_full);
  EXPECT_GT(at_first.cache_empty->hit_rate, at_first.hit_rate);
  EXPECT_EQ(at_first.cache_full->hit_rate, at_first.hit_rate);
  PlanInput tiny = input;
  tiny.state.context = 2048;
  EXPECT_EQ(make_plan(tiny).lent_in_cache, 0);
}

// Near the balance of card and crew the objective decides about the cache too.
TEST(Planner, LendsTheCacheOnlyWhereItIsBetter) {
  for (const auto& [ram_gbps, vram_gib] : {std::array{100, 14}, {150, 12}}) {
    PlanInput input = real_input();
    input.hardware.gpu->copy_gbps = 150;
    input.hardware.ram.read_gbps = {{1, 12.0}, {8, static_cast<double>(ram_gbps)}};
    input.hardware.gpu->vram_free = vram_gib * kGiB;
    input.state.context = 131072;
    const bool slower = vram_gib == 12;
    for (const Objective what : {Objective::kRoundTime, Objective::kHitRate}) {
      SCOPED_TRACE(fmt::format("{} GiB, {}", vram_gib, what == Objective::kHitRate ? "hits" : "time"));
      input.policy.objective = what;
      input.policy.memory.lend_kv_cache = false;
      const Plan kept = make_plan(input);
      ASSERT_EQ(kept.limit, "VRAM: the card is full");
      input.policy.memory.lend_kv_cache = true;
      const Plan plan = make_plan(input);
      check_plan(input, plan);
      if (what == Objective::kRoundTime && slower) {
        EXPECT_EQ(plan.lent_in_cache, 0);
        EXPECT_EQ(plan.best_round()->tokens_per_second(), kept.best_round()->tokens_per_second());
        continue;
      }
      EXPECT_GT(plan.lent_in_cache, 100);
      EXPECT_GT(plan.hit_rate, kept.hit_rate);
      EXPECT_EQ(plan.best_round()->tokens_per_second() < kept.best_round()->tokens_per_second(), slower);
    }
  }
}

}  // namespace
}  // namespace tandem::testing
