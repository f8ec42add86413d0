// The planner: properties over thousands of random inputs, brute force on small ones, and the real shape.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "placement/cost_model.h"
#include "placement/plan.h"
#include "tests/placement/plan_cases.h"

namespace tandem::testing {
namespace {

bool in_ranges(const std::vector<ExpertRange>& ranges, int bank, int expert) {
  for (const ExpertRange& r : ranges)
    if (bank >= r.first_layer && bank <= r.last_layer && expert >= r.first_expert && expert <= r.last_expert)
      return true;
  return false;
}

std::int64_t bytes_at(const PlanInput& input, const ExpertPlacement& placement, Place where) {
  std::int64_t bytes = 0;
  for (int b = 0; b < placement.banks; ++b)
    for (int e = 0; e < placement.experts; ++e)
      if (placement.at(b, e) == where) bytes += input.model.expert_bytes[static_cast<std::size_t>(b)];
  return bytes;
}

std::int64_t item_bytes(const Plan& plan, Memory memory, std::string_view what = {}) {
  std::int64_t bytes = 0;
  for (const PlanItem& item : plan.items)
    if (item.memory == memory && (what.empty() || item.what == what)) bytes += item.bytes;
  return bytes;
}

// What every plan must satisfy.
void check_plan(const PlanInput& input, const Plan& plan) {
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

std::vector<ExpertRange> random_ranges(Random& random, const ModelShape& shape, int low, int high) {
  std::vector<ExpertRange> ranges;
  for (int n = pick(random, 0, 2); n > 0; --n) {
    const int first = pick(random, low, high), layer = pick(random, 0, shape.layers);
    ranges.push_back({layer, pick(random, layer, shape.layers), first, pick(random, first, high)});
  }
  return ranges;
}

PlanInput constrained_input(Random& random) {
  PlanInput input = small_input(random, pick(random, 0, 1) == 0);
  const int half = input.model.shape.experts / 2;
  Policy& policy = input.policy;
  policy.objective = pick(random, 0, 1) == 0 ? Objective::kHitRate : Objective::kRoundTime;
  if (pick(random, 0, 2) == 0) policy.pins = random_ranges(random, input.model.shape, 0, half - 1);
  if (pick(random, 0, 2) == 0)
    policy.bans = random_ranges(random, input.model.shape, half, input.model.shape.experts - 1);
  if (pick(random, 0, 2) == 0) policy.floor_per_layer = pick(random, 0, input.model.shape.experts);
  if (pick(random, 0, 2) == 0) policy.memory.slots = pick(random, 0, 40);
  if (pick(random, 0, 2) == 0) policy.memory.ram = input.model.weights.embedding + pick(random, 0, 120) * kMiB / 2;
  if (pick(random, 0, 3) == 0) input.hardware.disk.large_read_gbps = 0;
  policy.ngram_place = static_cast<NgramPlace>(pick(random, 0, 2));
  if (pick(random, 0, 3) == 0) {
    input.card = false;
    input.plays_card = pick(random, 0, 1) == 0;
    if (pick(random, 0, 1) == 0) policy.memory.vram = pick(random, 0, 30) * kMiB;
  }
  return input;
}

TEST(Planner, RandomPlansKeepTheRules) {
  Random random(1);
  int fits = 0, on_disk = 0, played = 0, full = 0;
  for (int trial = 0; trial < 6000; ++trial) {
    const PlanInput input = constrained_input(random);
    const Plan plan = make_plan(input);
    check_plan(input, plan);
    if (HasFailure()) FAIL() << "trial " << trial;
    if (!input.card && !input.plays_card) {
      EXPECT_EQ(plan.slots, 0);
      EXPECT_EQ(plan.vram_budget, 0);
    }
    fits += plan.fits() ? 1 : 0;
    on_disk += plan.fits() && plan.placement.count(Place::kDisk) > 0 ? 1 : 0;
    played += plan.fits() && input.plays_card && plan.slots > 0 ? 1 : 0;
    // A full card is full: no expert that may go there would still fit.
    if (!plan.fits() || !plan.limit.starts_with("VRAM")) continue;
    ++full;
    for (int b = 0; b < plan.placement.banks; ++b) {
      bool open = false;
      for (int e = 0; e < plan.placement.experts; ++e)
        open = open || (plan.placement.at(b, e) != Place::kCard && !in_ranges(input.policy.bans, b, e));
      EXPECT_TRUE(!open || plan.vram_used + input.model.expert_bytes[static_cast<std::size_t>(b)] > plan.vram_budget);
    }
  }
  // The inputs reach what is tested.
  EXPECT_GT(fits, 3000);
  EXPECT_LT(fits, 5900);
  EXPECT_GT(on_disk, 200);
  EXPECT_GT(played, 300);
  EXPECT_GT(full, 300);
}

TEST(Planner, SameInputSamePlan) {
  Random random(2);
  for (int trial = 0; trial < 300; ++trial) {
    const PlanInput input = constrained_input(random);
    const Plan a = make_plan(input), b = make_plan(PlanInput(input));
    EXPECT_EQ(a.placement.place, b.placement.place);
    EXPECT_EQ(std::bit_cast<std::uint64_t>(a.hit_rate), std::bit_cast<std::uint64_t>(b.hit_rate));
    ASSERT_EQ(a.rounds.size(), b.rounds.size());
    for (std::size_t i = 0; i < a.rounds.size(); ++i)
      EXPECT_EQ(std::bit_cast<std::uint64_t>(a.rounds[i].total), std::bit_cast<std::uint64_t>(b.rounds[i].total));
  }
}

double routes_hit(const CostModel& costs, const ExpertPlacement& placement) {
  double hits = 0;
  for (int b = 0; b < placement.banks; ++b)
    for (int e = 0; e < placement.experts; ++e)
      if (placement.at(b, e) == Place::kCard) hits += costs.inclusion(b, e);
  return hits;
}

// The cost that the objective minimises.
double objective(const PlanInput& input, const CostModel& costs, const ExpertPlacement& placement, int rows) {
  return input.policy.objective == Objective::kHitRate ? -routes_hit(costs, placement)
                                                       : costs.round(placement, rows - 1).total;
}

TEST(Planner, MoreVramIsNeverWorse) {
  Random random(3);
  int changed = 0;
  for (int trial = 0; trial < 400; ++trial) {
    PlanInput input = small_input(random, trial % 2 == 0);
    input.policy.objective = trial % 4 < 2 ? Objective::kHitRate : Objective::kRoundTime;
    if (trial % 5 == 0) input.policy.floor_per_layer = 1;
    if (trial % 7 == 0) input.policy.memory.slots = 9;
    const CostModel costs(input);
    double last = std::numeric_limits<double>::infinity();
    for (int step = 0; step < 24; ++step) {
      input.hardware.gpu->vram_free += kMiB * 3 / 4;
      const Plan plan = make_plan(input);
      if (!plan.fits()) continue;
      const double cost = objective(input, costs, plan.placement, plan.rows);
      EXPECT_LE(cost, last * (last < 0 ? 1 - 1e-12 : 1 + 1e-12)) << "trial " << trial << " step " << step;
      changed += cost < last ? 1 : 0;
      last = cost;
    }
  }
  EXPECT_GT(changed, 1500);
}

// No expert off the card is used more than one of the same bank on it.
bool hottest_first(const CostModel& costs, const ExpertPlacement& placement) {
  for (int b = 0; b < placement.banks; ++b) {
    double coldest_on = 2, hottest_off = -1;
    for (int e = 0; e < placement.experts; ++e) {
      const double p = costs.inclusion(b, e);
      if (placement.at(b, e) == Place::kCard)
        coldest_on = std::min(coldest_on, p);
      else
        hottest_off = std::max(hottest_off, p);
    }
    if (hottest_off > coldest_on) return false;
  }
  return true;
}

struct Best {
  double cost = std::numeric_limits<double>::infinity();
  double hottest_cost = cost;  // of placements that put the hottest first
  double largest_step = 0;     // what one expert can save at most
};

// All placements within the room for slots that the plan had.
Best brute_force(const PlanInput& input, const CostModel& costs, const Plan& plan) {
  const int experts = input.model.shape.experts, banks = plan.placement.banks, total = banks * experts;
  const std::int64_t room = plan.vram_budget - plan.vram_used + item_bytes(plan, Memory::kVram, "expert slots");
  const int slots = input.policy.memory.slots.value_or(total);
  Best best;
  for (std::uint32_t set = 0; set < (1U << total); ++set) {
    if (std::popcount(set) > slots) continue;
    ExpertPlacement placement = all_in_ram(banks, experts);
    for (int i = 0; i < total; ++i)
      if ((set >> i & 1) != 0) placement.place[static_cast<std::size_t>(i)] = Place::kCard;
    if (bytes_at(input, placement, Place::kCard) > room) continue;
    const double cost = objective(input, costs, placement, plan.rows);
    best.cost = std::min(best.cost, cost);
    if (hottest_first(costs, placement)) best.hottest_cost = std::min(best.hottest_cost, cost);
  }
  const double none = objective(input, costs, all_in_ram(banks, experts), plan.rows);
  for (int i = 0; i < total; ++i) {
    ExpertPlacement placement = all_in_ram(banks, experts);
    placement.place[static_cast<std::size_t>(i)] = Place::kCard;
    best.largest_step = std::max(best.largest_step, none - objective(input, costs, placement, plan.rows));
  }
  return best;
}

void compare_with_brute_force(Objective what, bool equal_sizes, int trials, std::uint64_t seed) {
  Random random(seed);
  int partial = 0, exact = 0, compared = 0, balanced = 0;
  for (int trial = 0; trial < trials; ++trial) {
    PlanInput input = small_input(random, equal_sizes, 4);
    input.policy.objective = what;
    if (input.model.expert_bytes.size() * static_cast<std::size_t>(input.model.shape.experts) > 12) continue;
    if (equal_sizes && trial % 6 == 0) input.policy.memory.slots = pick(random, 0, 6);
    // From a crew that hardly matters to one that is all that matters.
    input.hardware.ram.read_gbps = {{8, std::pow(10.0, uniform(random, 0, 3))}};
    const Plan plan = make_plan(input);
    if (!plan.fits()) continue;
    const CostModel costs(input);
    const Best best = brute_force(input, costs, plan);
    const double cost = objective(input, costs, plan.placement, plan.rows);
    const double tolerance = 1e-12 * std::abs(best.cost);
    EXPECT_GE(cost, best.cost - tolerance) << trial;
    // Where a layer is in balance, another set than the hottest may fill the card's time a little better: by less than
    // the card's time for one expert.
    double one_each = 0;
    for (const std::int64_t bytes : input.model.expert_bytes)
      one_each += what == Objective::kHitRate ? 0.0 : static_cast<double>(bytes) / (900e9 * 0.8);
    const double step = equal_sizes ? 0.0 : best.largest_step;
    EXPECT_LE(cost, best.hottest_cost + step + tolerance) << trial << ": " << plan.limit;
    EXPECT_LE(cost, best.cost + step + one_each + tolerance) << trial << ": " << plan.limit;
    ++compared;
    balanced += plan.limit.starts_with("balance") ? 1 : 0;
    exact += cost <= best.cost + tolerance ? 1 : 0;
    partial += plan.slots > 0 && plan.slots < static_cast<int>(plan.placement.place.size()) ? 1 : 0;
  }
  EXPECT_GT(partial, trials / 10);
  EXPECT_GT(exact, compared * (equal_sizes ? 95 : 80) / 100);
  EXPECT_TRUE(what == Objective::kHitRate || balanced > trials / 50);
}

TEST(Planner, HitRateIsOptimalForEqualSizes) {
  compare_with_brute_force(Objective::kHitRate, true, 400, 4);
}
TEST(Planner, RoundTimeIsOptimalForEqualSizes) {
  compare_with_brute_force(Objective::kRoundTime, true, 400, 5);
}
TEST(Planner, HitRateIsWithinOneExpertForUnequalSizes) {
  compare_with_brute_force(Objective::kHitRate, false, 400, 6);
}
TEST(Planner, RoundTimeIsWithinOneExpertForUnequalSizes) {
  compare_with_brute_force(Objective::kRoundTime, false, 400, 7);
}

// ---- the real shape

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
  const std::vector<double> p = inclusion_probabilities(input.shares);
  double hits = 0, bytes = 0, all_bytes = 0;
  for (int i = 0; i < 49 * 512; ++i) {
    const double size = i / 512 == 3 ? 2500 : 1900;
    const auto at = static_cast<std::size_t>(i);
    all_bytes += p[at] * size;
    if (plan.placement.place[at] != Place::kCard) continue;
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
  const Plan plan = make_plan(input);
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
            "RAM: 27.46 GiB needed without a single expert in RAM, 20.00 GiB allowed after the reserve: 7.46 GiB "
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

}  // namespace
}  // namespace tandem::testing
