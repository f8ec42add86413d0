// The adapter against a model of the same rules that scans everything every time, and the rules that hold for any
// input.
#include "placement/adapt.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <new>
#include <optional>
#include <random>

#include "tests/placement/adapt_rules.h"

// Every allocation of this program is counted, for the test that a round makes none.
static std::size_t allocations = 0;
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
// std::stable_sort asks this one.
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace tandem::testing {
namespace {

// Random routes whose hot experts drift, over random sizes, pins, disks and floors.
struct World {
  explicit World(unsigned seed) : random(seed) {
    banks = pick(1, 6);
    experts = pick(4, 24);
    used = pick(1, std::min(experts, 5));
    constexpr AdaptMode kModes[] = {AdaptMode::kOff, AdaptMode::kLru, AdaptMode::kLfu, AdaptMode::kSwaps};
    setup = make_setup(kModes[seed % 4], banks, experts, {});
    setup.settings.swaps_per_round = pick(0, 4);
    setup.settings.margin = 1.0 + 0.25 * pick(0, 3);
    setup.settings.floor_per_bank = pick(0, 3);
    for (auto& bytes : setup.bytes) bytes = pick(0, 2) == 0 ? 250 : 100;
    for (std::size_t i = 0; i < setup.movable.size(); ++i) {
      const int roll = pick(0, 19);
      setup.start.place[i] = roll < 7 ? Place::kCard : roll < 18 ? Place::kRam : Place::kDisk;
      setup.movable[i] = pick(0, 9) != 0;
    }
    hot.resize(static_cast<std::size_t>(banks));
    if (pick(0, 2) == 0) return;
    if (pick(0, 3) != 0) setup.lending.bytes = 50 * pick(1, 30);
    if (pick(0, 1) == 0) {
      const std::int64_t row = pick(1, 9), bytes = row * pick(100, 500);
      setup.lending.cache = {pick(1, 4), bytes, (bytes + 255) / 256 * 256, row};
      setup.lending.cache_ahead = pick(0, 20);
    }
    setup.lending.bytes_per_round = 50 * pick(1, 8);
    if (pick(0, 1) == 0) return;
    for (std::size_t i = 0; i < setup.movable.size(); ++i) setup.lending.expected.push_back(pick(0, 8) / 1024.0);
  }
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); }
  std::vector<std::int32_t> routes(int bank, std::size_t rows) {
    if (pick(0, 9) == 0) hot[static_cast<std::size_t>(bank)] = pick(0, experts - 1);
    std::vector<std::int32_t> ids;
    for (std::size_t r = 0; r < rows; ++r) {
      std::vector<std::int32_t> row;
      while (static_cast<int>(row.size()) < used) {
        const int id = pick(0, 2) == 0 ? pick(0, experts - 1)
                                       : (hot[static_cast<std::size_t>(bank)] + pick(0, used + 1)) % experts;
        if (std::find(row.begin(), row.end(), id) == row.end()) row.push_back(id);
      }
      ids.insert(ids.end(), row.begin(), row.end());
    }
    return ids;
  }
  std::mt19937 random;
  int banks = 0, experts = 0, used = 0;
  std::vector<int> hot;
  Rig setup;
};

// Half-lives that divide the rows of every round keep both sides' counts equal to the last bit.
TEST(Adapt, FollowsTheModelOfItsRules) {
  std::map<AdaptMode, std::uint64_t> swaps, loans, lent_swaps, cache_loans;
  for (unsigned seed = 0; seed < 400; ++seed) {
    World world(seed);
    const std::size_t unit = static_cast<std::size_t>(world.pick(1, 3));
    world.setup.settings.half_life_rows = static_cast<double>(unit);
    if (world.pick(0, 2) == 0) world.setup.settings.half_life_rows = static_cast<double>(unit) / 8;  // rescales often
    Adapter adapter = make_adapter(world.setup);
    Model model(world.setup);
    std::int64_t position = 0;
    for (int round = 0; round < 60; ++round) {
      // A conversation grows, or begins anew.
      position = world.pick(0, 14) == 0 ? world.pick(0, 100) : position + world.pick(0, 5);
      if (world.pick(0, 4) != 0) {
        adapter.need_cache(position);
        model.need_cache(position);
      }
      const std::size_t rows = unit * static_cast<std::size_t>(world.pick(0, 9) == 0 ? 8 : 1);
      std::vector<int> uses(world.setup.movable.size());
      // Within a round as well: the draft block may run a long pass in one.
      const int reclaimed = world.pick(0, 11);
      for (int b = 0; b < world.banks; ++b) {
        if (b == reclaimed) {
          adapter.reclaim();
          model.reclaim();
        }
        const auto ids = world.routes(b, rows);
        adapter.observe(b, ids, rows);
        for (const std::int32_t id : ids) ++uses[world.setup.index(b, id)];
      }
      const bool decode = world.pick(0, 3) != 0;
      const std::vector<Swap> expected = model.end_round(uses, rows, decode);
      ASSERT_EQ(adapter.end_round(decode), expected) << "seed " << seed << " round " << round;
      ASSERT_EQ(adapter.loans(), model.loans()) << "seed " << seed << " round " << round;
      for (int b = 0; b < world.banks; ++b)
        for (int e = 0; e < world.experts; ++e) {
          ASSERT_EQ(adapter.on_card(b, e), model.on_card(world.setup.index(b, e))) << "seed " << seed;
          ASSERT_EQ(adapter.lent(b, e), model.lent(world.setup.index(b, e))) << "seed " << seed;
        }
      const AdaptMode mode = world.setup.settings.mode;
      swaps[mode] += expected.size();
      loans[mode] += adapter.loans().size();
      for (const Swap& swap : expected) lent_swaps[mode] += swap.lent ? 1 : 0;
      for (const Loan& loan : adapter.loans()) cache_loans[mode] += loan.in_cache ? 1 : 0;
    }
  }
  for (const AdaptMode mode : {AdaptMode::kOff, AdaptMode::kLru, AdaptMode::kLfu, AdaptMode::kSwaps})
    EXPECT_GT(loans[mode] - cache_loans[mode], 400U);
  for (const auto& [mode, count] : cache_loans) EXPECT_GT(count, 300U);
  for (const AdaptMode mode : {AdaptMode::kLru, AdaptMode::kLfu, AdaptMode::kSwaps}) EXPECT_GT(lent_swaps[mode], 100U);
  EXPECT_EQ(swaps[AdaptMode::kOff], 0U);
  for (const AdaptMode mode : {AdaptMode::kLru, AdaptMode::kLfu, AdaptMode::kSwaps}) EXPECT_GT(swaps[mode], 1000U);
}

TEST(Adapt, KeepsFloorsPinsSizesAndBudget) {
  for (unsigned seed = 1000; seed < 1200; ++seed) {
    World world(seed);
    const Rig& setup = world.setup;
    world.setup.settings.half_life_rows = 7.3;
    world.setup.lending = {};
    Adapter adapter = make_adapter(setup);
    const auto per_size = [&] {
      std::map<std::int64_t, int> n;
      for (int b = 0; b < world.banks; ++b)
        for (int e = 0; e < world.experts; ++e) n[setup.bytes[static_cast<std::size_t>(b)]] += adapter.on_card(b, e);
      return n;
    };
    const auto per_bank = [&](int b) {
      int n = 0;
      for (int e = 0; e < world.experts; ++e) n += adapter.on_card(b, e) ? 1 : 0;
      return n;
    };
    const auto slots = per_size();
    std::vector<int> floors;
    for (int b = 0; b < world.banks; ++b) floors.push_back(std::min(setup.settings.floor_per_bank, per_bank(b)));
    for (int round = 0; round < 50; ++round) {
      std::vector<int> uses(setup.movable.size());
      for (int b = 0; b < world.banks; ++b) {
        const auto ids = world.routes(b, 2);
        adapter.observe(b, ids, 2);
        for (const std::int32_t id : ids) ++uses[setup.index(b, id)];
      }
      const std::vector<Swap> swaps = adapter.end_round();
      if (setup.settings.mode == AdaptMode::kSwaps) {
        ASSERT_LE(static_cast<int>(swaps.size()), setup.settings.swaps_per_round);
      }
      std::vector<int> part(setup.movable.size());
      for (const Swap& swap : swaps) {
        const std::size_t in = setup.index(swap.in_bank, swap.in_expert),
                          out = setup.index(swap.out_bank, swap.out_expert);
        ASSERT_EQ(++part[in], 1);
        ASSERT_EQ(++part[out], 1);
        ASSERT_GE(uses[in], uses[out]);
        ASSERT_FALSE(adapter.on_card(swap.in_bank, swap.in_expert));
        ASSERT_TRUE(adapter.on_card(swap.out_bank, swap.out_expert));
      }
      ASSERT_EQ(per_size(), slots);
      for (int b = 0; b < world.banks; ++b) ASSERT_GE(per_bank(b), floors[static_cast<std::size_t>(b)]);
      for (int b = 0; b < world.banks; ++b)
        for (int e = 0; e < world.experts; ++e) {
          const Place start = setup.start.at(b, e);
          if (!setup.movable[setup.index(b, e)] || start == Place::kDisk) {
            ASSERT_EQ(adapter.on_card(b, e), start == Place::kCard);
          }
        }
    }
  }
}

// One bank, one slot: decided at the end of round 1, copied in round 2, in use from round 3 on.
TEST(Adapt, ASwapHoldsAfterTheRoundThatCopiesIt) {
  Adapter adapter = make_adapter(make_setup(AdaptMode::kLru, 1, 4, {{0, 0}}));
  const std::vector<std::int32_t> three{3};
  adapter.observe(0, three, 1);
  EXPECT_EQ(adapter.end_round(), (std::vector<Swap>{{0, 3, 0, 0}}));
  EXPECT_TRUE(adapter.on_card(0, 0));
  EXPECT_FALSE(adapter.on_card(0, 3));
  adapter.observe(0, three, 1);
  EXPECT_EQ(adapter.end_round(), std::vector<Swap>{});
  EXPECT_FALSE(adapter.on_card(0, 0));
  EXPECT_TRUE(adapter.on_card(0, 3));
  adapter.observe(0, three, 1);
  EXPECT_EQ(adapter.end_round(), std::vector<Swap>{});
  EXPECT_EQ(adapter.counts().hits, 1U);
  EXPECT_EQ(adapter.counts().misses, 2U);
}

TEST(Adapt, CountsRoutesBytesAndRows) {
  Rig setup = make_setup(AdaptMode::kOff, 2, 4, {{0, 1}, {1, 2}});
  setup.bytes = {100, 1000};
  Adapter adapter = make_adapter(setup);
  adapter.observe(0, std::vector<std::int32_t>{1, 0, 1, 3, 1, 0}, 3);
  adapter.observe(1, std::vector<std::int32_t>{2, 3}, 1);
  adapter.end_round();
  adapter.observe(0, std::vector<std::int32_t>{1, 0}, 1);
  adapter.end_round();
  const Adapter::Counts& counts = adapter.counts();
  EXPECT_EQ(counts.routes, 10U);
  EXPECT_EQ(counts.hits, 5U);
  EXPECT_EQ(counts.bytes, 3 * 100U + 2 * 1000U + 2 * 100U);
  EXPECT_EQ(counts.hit_bytes, 100U + 1000U + 100U);
  EXPECT_EQ(counts.misses, 2U + 1U + 1U);
  EXPECT_EQ(counts.rounds, 2U);
  EXPECT_EQ(counts.rows, 4U);
  EXPECT_EQ(counts.swaps, 0U);
  EXPECT_DOUBLE_EQ(counts.hit_rate(), 0.5);
}

// Expert 0 gets 12 routes in one round and none later; expert 1 one route a round of 3 rows. At a half-life of 30 rows
// the count of 0 after k more rounds is 12 * 2^(-k/10), that of 1 is the sum of 2^(-j/10), j = 0 .. k-1.
TEST(Adapt, CountsDecayByHalfLife) {
  Rig setup = make_setup(AdaptMode::kLfu, 1, 2, {{0, 0}});
  setup.settings.half_life_rows = 30;
  Adapter adapter = make_adapter(setup);
  adapter.observe(0, std::vector<std::int32_t>(12, 0), 3);
  ASSERT_TRUE(adapter.end_round().empty());
  int expected = 0;
  for (double sum = 0; sum <= 12 * std::exp2(-expected / 10.0);) {
    sum += std::exp2(-expected / 10.0);
    ++expected;
  }
  int rounds = 0;
  do {
    adapter.observe(0, std::vector<std::int32_t>{1}, 3);
    ++rounds;
  } while (adapter.end_round().empty() && rounds < 100);
  EXPECT_EQ(rounds, expected);
}

// Counts so old that nothing is left of them are equal: the lower index leaves, however they stood before.
TEST(Adapt, VanishedCountsAreEqual) {
  Rig rig = make_setup(AdaptMode::kLfu, 1, 5, {{0, 0}, {0, 1}, {0, 2}, {0, 3}});
  rig.settings.half_life_rows = 1;
  Adapter adapter = make_adapter(rig);
  adapter.observe(0, std::vector<std::int32_t>{0, 0, 0, 0, 1, 1, 1, 2, 2, 3}, 1);
  adapter.end_round();
  for (int i = 0; i < 40; ++i) {
    adapter.observe(0, {}, 300);
    EXPECT_TRUE(adapter.end_round().empty());
  }
  adapter.observe(0, std::vector<std::int32_t>{4}, 1);
  EXPECT_EQ(adapter.end_round(), (std::vector<Swap>{{0, 4, 0, 0}}));
}

// Two experts in turn for one slot: a cache would follow every change; ours stays with one of them.
TEST(Adapt, SwapsDoNotThrash) {
  Rig setup = make_setup(AdaptMode::kSwaps, 1, 3, {{0, 2}});
  Adapter adapter = make_adapter(setup);
  for (int round = 0; round < 1000; ++round) {
    adapter.observe(0, std::vector<std::int32_t>{round / 2 % 2}, 1);
    adapter.end_round();
  }
  EXPECT_EQ(adapter.counts().swaps, 1U);
  EXPECT_NEAR(adapter.counts().hit_rate(), 0.5, 0.01);
}

TEST(Adapt, OneRouteDoesNotMoveAnExpertAndTheMarginHolds) {
  Rig setup = make_setup(AdaptMode::kSwaps, 1, 4, {{0, 0}});
  setup.settings.half_life_rows = 1e30;
  setup.settings.margin = 2;
  Adapter adapter = make_adapter(setup);
  const auto use = [&](std::int32_t id) {
    adapter.observe(0, std::vector<std::int32_t>{id}, 1);
    return adapter.end_round();
  };
  EXPECT_TRUE(use(1).empty());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(use(0).empty());
  for (int count = 2; count <= 7; ++count) EXPECT_TRUE(use(1).empty()) << count;  // 7 = 2 * 3 + 1 is not enough
  EXPECT_EQ(use(1), (std::vector<Swap>{{0, 1, 0, 0}}));
}

// A switch of domain: what is left over from one round's budget comes in the next rounds, the largest gain first.
TEST(Adapt, TheBacklogOfAChangeComesInOverLaterRounds) {
  Rig setup = make_setup(AdaptMode::kSwaps, 2, 8, {{0, 0}, {0, 1}, {1, 0}, {1, 1}});
  setup.settings.swaps_per_round = 1;
  Adapter adapter = make_adapter(setup);
  adapter.observe(0, std::vector<std::int32_t>{4, 5, 4, 5, 4, 5, 5}, 4);
  adapter.observe(1, std::vector<std::int32_t>{6, 7, 6, 7, 6, 7, 6, 7, 6}, 4);
  EXPECT_EQ(adapter.end_round(), (std::vector<Swap>{{1, 6, 0, 0}}));
  EXPECT_EQ(adapter.end_round(), (std::vector<Swap>{{0, 5, 0, 1}}));
  EXPECT_EQ(adapter.end_round(), (std::vector<Swap>{{1, 7, 1, 0}}));
  EXPECT_EQ(adapter.end_round(), (std::vector<Swap>{{0, 4, 1, 1}}));
  EXPECT_TRUE(adapter.end_round().empty());
  for (const int e : {4, 5}) EXPECT_TRUE(adapter.on_card(0, e));
  for (const int e : {6, 7}) EXPECT_TRUE(adapter.on_card(1, e));
}

// What is left of a budget of one meets an expert that is in use again: it stays while it is used more than the
// newcomer.
TEST(Adapt, AnExpertInUseStays) {
  Rig rig = make_setup(AdaptMode::kSwaps, 1, 4, {{0, 0}, {0, 1}});
  rig.settings.swaps_per_round = 1;
  Adapter adapter = make_adapter(rig);
  adapter.observe(0, std::vector<std::int32_t>{2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3}, 9);
  EXPECT_EQ(adapter.end_round(), (std::vector<Swap>{{0, 2, 0, 0}}));
  adapter.observe(0, std::vector<std::int32_t>{1, 1, 3}, 2);
  EXPECT_TRUE(adapter.end_round().empty());
  adapter.observe(0, std::vector<std::int32_t>{1, 3}, 2);
  EXPECT_EQ(adapter.end_round(), (std::vector<Swap>{{0, 3, 0, 1}}));
}

// Gains are counted in bytes: fewer routes to larger experts come first.
TEST(Adapt, LargerExpertsFirst) {
  Rig setup = make_setup(AdaptMode::kSwaps, 2, 4, {{0, 0}, {1, 0}});
  setup.bytes = {100, 300};
  setup.settings.swaps_per_round = 1;
  Adapter adapter = make_adapter(setup);
  adapter.observe(0, std::vector<std::int32_t>(6, 1), 6);
  adapter.observe(1, std::vector<std::int32_t>(4, 2), 6);
  EXPECT_EQ(adapter.end_round(), (std::vector<Swap>{{1, 2, 1, 0}}));
  EXPECT_EQ(adapter.counts().swap_bytes, 300U);
}

// The full model's shape, all modes: a round allocates nothing, from the first one on.
TEST(Adapt, ARoundAllocatesNothing) {
  for (const AdaptMode mode : {AdaptMode::kOff, AdaptMode::kLru, AdaptMode::kLfu, AdaptMode::kSwaps}) {
    Rig rig = make_setup(mode, 49, 512, {});
    for (std::size_t i = 0; i < rig.start.place.size(); i += 3) rig.start.place[i] = Place::kCard;
    Adapter adapter = make_adapter(rig);
    std::mt19937 random(1);
    std::vector<std::int32_t> ids(40);
    const std::size_t before = allocations;
    for (int round = 0; round < 100; ++round) {
      for (int b = 0; b < 49; ++b) {
        for (auto& id : ids)
          id = static_cast<std::int32_t>((random() % 64 * (random() % 8) + static_cast<unsigned>(round / 50) * 50) %
                                         512);
        adapter.observe(b, ids, 4);
      }
      adapter.end_round();
    }
    EXPECT_EQ(allocations, before);
    EXPECT_EQ(adapter.counts().swaps > 0, mode != AdaptMode::kOff);
  }
}

}  // namespace
}  // namespace tandem::testing
