// Experts fetched ahead: whether it pays, what it needs, and what the cost model says of it.
#include "placement/fetch_ahead.h"

#include <gtest/gtest.h>

#include <cmath>

#include "placement/cost_model.h"
#include "placement/planner.h"
#include "tests/placement/plan_cases.h"

namespace tandem::testing {
namespace {

// A pass with 40 copies, of which so many were right, while the crew needs `us` for an expert.
void pass(FetchJudge& judge, std::uint64_t right, double us) {
  constexpr std::uint64_t kCopies = 40, kExperts = 100;
  judge.count(judge.on() ? FetchCounts{kCopies, right} : FetchCounts{}, kExperts, 100 * us * 1e-6);
}
int passes_until(FetchJudge& judge, bool on, std::uint64_t right, double us) {
  for (int passes = 0; passes < 1000; ++passes) {
    if (judge.on() == on) return passes;
    pass(judge, right, us);
  }
  return -1;
}

TEST(FetchJudge, LeavesOffWhatDoesNotPay) {
  FetchJudge judge(FetchAhead::kAuto);
  EXPECT_TRUE(judge.on());
  EXPECT_EQ(judge.gain(), 0.0);
  // Half of them right: 9 us a copy, which costs 12. Not before some hundred copies.
  EXPECT_EQ(passes_until(judge, false, 20, 18), 13);
  EXPECT_NEAR(judge.gain(), 9e-6, 1e-12);
  EXPECT_EQ(judge.counts().copies, 13U * 40);
  EXPECT_EQ(judge.counts().asked, 13U * 20);
}

TEST(FetchJudge, GoesOnWithWhatPays) {
  FetchJudge judge(FetchAhead::kAuto);
  EXPECT_EQ(passes_until(judge, false, 30, 40), -1);  // 30 us a copy
  // What is neither clearly dear nor clearly cheap changes nothing, either way: 300 passes are too few for a trial.
  FetchJudge near(FetchAhead::kAuto);
  EXPECT_EQ(passes_until(near, false, 20, 2 * 1e6 * kFetchSeconds / 1.15), -1);
  FetchJudge left(FetchAhead::kAuto);
  ASSERT_GT(passes_until(left, false, 20, 10), 0);
  for (int i = 0; i < 300; ++i) pass(left, 20, 2 * 1e6 * kFetchSeconds * 1.15);
  EXPECT_FALSE(left.on());
  // By what a copy costs on this machine.
  FetchJudge cheap(FetchAhead::kAuto, 2e-6), dear(FetchAhead::kAuto, 100e-6);
  EXPECT_EQ(passes_until(cheap, false, 20, 10), -1);
  EXPECT_EQ(passes_until(dear, false, 30, 40), 13);
  // Nothing is known of a crew that has nothing to do.
  FetchJudge all(FetchAhead::kAuto);
  for (int i = 0; i < 100; ++i) all.count({40, 40}, 0, 0);
  EXPECT_TRUE(all.on());
}

// The crew may become slower, as where other programs take the RAM: then it begins again, and leaves off again.
TEST(FetchJudge, ChangesItsMind) {
  FetchJudge judge(FetchAhead::kAuto);
  for (int turn = 0; turn < 3; ++turn) {
    const int off = passes_until(judge, false, 20, 10), on = passes_until(judge, true, 20, 80);
    EXPECT_GE(off, 13) << turn;
    EXPECT_GE(on, 6) << turn;
    EXPECT_LE(off, 400) << turn;
    EXPECT_LE(on, 100) << turn;
  }
}

// How many are asked for is not seen while nothing is fetched: trials, after twice the time each.
TEST(FetchJudge, TriesAgain) {
  FetchJudge judge(FetchAhead::kAuto);
  for (const int passes : {328, 656, 1311}) {
    EXPECT_EQ(passes_until(judge, false, 0, 40), 13);  // none came in time
    int waited = 0;
    for (; !judge.on() && waited < 10'000; ++waited) pass(judge, 0, 40);
    EXPECT_EQ(waited, passes);
  }
  // The bus is free again; the trial counts alone, and when it has lasted, the next one would come as early as the
  // first.
  EXPECT_EQ(passes_until(judge, false, 30, 40), -1);
  EXPECT_NEAR(judge.gain(), 30e-6, 1e-9);
  ASSERT_GT(passes_until(judge, false, 0, 40), 0);
  int waited = 0;
  for (; !judge.on() && waited < 10'000; ++waited) pass(judge, 0, 40);
  EXPECT_EQ(waited, 328);
}

TEST(FetchJudge, DoesAsItIsTold) {
  FetchJudge on(FetchAhead::kOn), off(FetchAhead::kOff), none;
  for (int i = 0; i < 200; ++i) pass(on, 0, 1), pass(off, 40, 1000), pass(none, 40, 1000);
  EXPECT_TRUE(on.on());
  EXPECT_FALSE(off.on());
  EXPECT_FALSE(none.on());
  EXPECT_EQ(on.counts().copies, 8000U);
  EXPECT_EQ(off.counts().copies, 0U);
}

// What is forgotten is forgotten on both sides of a ratio; and it is forgotten.
TEST(FetchJudge, OldPassesCountLess) {
  FetchJudge judge(FetchAhead::kOn);
  for (int i = 0; i < 500; ++i) {
    pass(judge, 20, 40);
    ASSERT_NEAR(judge.gain(), 20e-6, 1e-12) << i;
  }
  for (int i = 0; i < 300; ++i) pass(judge, 30, 80);
  EXPECT_NEAR(judge.gain(), 60e-6, 2e-6);
}
TEST(FetchJudge, KnowsNothingWithoutTheCrew) {
  FetchJudge judge(FetchAhead::kOn);
  judge.count({40, 40}, 0, 0);
  EXPECT_EQ(judge.gain(), 0.0);
}

TEST(FetchAhead, BytesOfItsPlaces) {
  EXPECT_EQ(fetch_bytes(2'000'128, 512), 8 * 2'000'128 + 16 * 512 * 4 + 4096);
  EXPECT_EQ(fetch_bytes(2'000'129, 512), 8 * 2'000'384 + 16 * 512 * 4 + 4096);
}

TEST(FetchAhead, APlanHasRoomForThem) {
  PlanInput input = real_input();
  const auto bytes = [](const Plan& plan, Memory memory) {
    std::int64_t sum = 0;
    for (const PlanItem& item : plan.items)
      if (item.what == "fetch buffers" && item.memory == memory) sum += item.bytes;
    return sum;
  };
  for (const FetchAhead how : {FetchAhead::kAuto, FetchAhead::kOn, FetchAhead::kOff}) {
    input.policy.adapt.fetch_ahead = how;
    const Plan plan = make_plan(input);
    EXPECT_EQ(bytes(plan, Memory::kVram), how == FetchAhead::kOff ? 0 : fetch_bytes(1900 * 1024, 512));
    EXPECT_EQ(bytes(plan, Memory::kRam), 0);
  }
  input.policy.adapt.fetch_ahead = FetchAhead::kOn;
  PlanInput uneven = input;  // a place is as large as the largest expert of any layer
  uneven.model.expert_bytes[30] = 2500 * 1024;
  EXPECT_EQ(bytes(make_plan(uneven), Memory::kVram), fetch_bytes(2500 * 1024, 512));
  input.card = false;
  input.plays_card = true;
  input.policy.memory.slots = 100;
  EXPECT_EQ(bytes(make_plan(input), Memory::kVram) + bytes(make_plan(input), Memory::kRam), 0);
}

TEST(CostModel, ExpectedLeast) {
  EXPECT_EQ(expected_least(0, 3), 0.0);
  EXPECT_EQ(expected_least(2, 0), 0.0);
  EXPECT_NEAR(expected_least(0.9, 1), 1 - std::exp(-0.9), 1e-12);
  EXPECT_NEAR(expected_least(0.9, 100), 0.9, 1e-12);
  EXPECT_NEAR(expected_least(2, 1.25), 2 * std::exp(-2.0) + 1.25 * (1 - 3 * std::exp(-2.0)), 1e-12);
}

// What is copied, and what it leaves the crew: by the experts that are missed, and by the time for copies.
TEST(CostModel, FetchesWhatItHasTimeFor) {
  PlanInput input = real_input();
  const double blob = 1900 * 1024, copy = blob / (input.hardware.gpu->pcie_to_card_gbps * 1e9);
  const CostModel costs(input);
  const BankLoad load{.card = 7, .misses = 2, .work = 2.5, .disk_misses = 0.5, .disk_work = 0.6};
  const auto time_for = [](double mean, double most) {
    double sum = 0;
    for (int m = 0; m < 200; ++m)
      sum += std::exp(m * std::log(mean) - mean - std::lgamma(m + 1.0)) * std::min<double>(m, most);
    return sum;
  };
  for (const auto& [window, most] : {std::pair{2 * copy, 1.0}, {3 * copy, 1.5}, {40 * copy, 4.0}, {0.0, 0.0}}) {
    const double copies = time_for(2, most);
    const CostModel::Fetched fetched = costs.fetched(7, load, window);
    EXPECT_NEAR(fetched.copies, copies, 1e-12);
    EXPECT_NEAR(fetched.right, kNamedRight * copies, 1e-12);
    EXPECT_NEAR(fetched.load.card, 7 + kNamedRight * copies, 1e-12);
    EXPECT_NEAR(fetched.load.misses, 2 - kNamedRight * copies, 1e-12);
    EXPECT_NEAR(fetched.load.work, 2.5 * (1 - kNamedRight * copies / 2), 1e-12);
    EXPECT_EQ(fetched.load.disk_misses, 0.5);  // only RAM is copied from
    EXPECT_EQ(fetched.load.disk_work, 0.6);
  }
  EXPECT_NEAR(costs.fetched(7, {.card = 1, .misses = 60, .work = 60}, 40 * copy).copies, 4.0, 1e-9);
  for (const int bank : {0, 48}) EXPECT_EQ(costs.fetched(bank, load, 1.0).copies, 0.0) << bank;
  EXPECT_EQ(costs.fetched(7, {.card = 10}, 1.0).copies, 0.0);
  input.hardware.gpu->pcie_to_card_gbps = 0;  // not known
  EXPECT_EQ(CostModel(input).fetched(7, load, 1.0).copies, 0.0);
}

TEST(CostModel, ARoundFetchesWhereItIsFaster) {
  PlanInput input = real_input();
  ExpertPlacement placement = all_in_ram(49, 512);
  for (int b = 0; b < 49; ++b)
    for (int e = 0; e < 512; ++e)
      if (e % 10 != 0) placement.at(b, e) = Place::kCard;
  const auto round = [&](FetchAhead how, int drafts) {
    input.policy.adapt.fetch_ahead = how;
    return CostModel(input).round(placement, drafts);
  };
  int fetched = 0, left = 0;
  for (const double ram : {20.0, 50.0, 200.0, 2000.0})
    for (const double fetch_us : {0.0, 12.0, 100.0})
      for (const int drafts : {0, 2}) {
        input.hardware.ram.read_gbps = {{8, ram}};
        input.hardware.gpu->fetch_us = fetch_us;
        const RoundTime off = round(FetchAhead::kOff, drafts), on = round(FetchAhead::kOn, drafts),
                        chosen = round(FetchAhead::kAuto, drafts);
        EXPECT_EQ(off.fetched, 0.0);
        EXPECT_GT(on.fetched, 0.0);
        EXPECT_LT(on.crew, off.crew);
        EXPECT_NEAR(on.dense - off.dense, on.fetched / kNamedRight * fetch_us * 1e-6, 1e-12);
        EXPECT_NEAR(on.total - off.total, on.dense - off.dense + on.experts - off.experts, 1e-12);
        EXPECT_EQ(on.draft, off.draft);
        EXPECT_EQ(chosen.total, std::min(on.total, off.total));
        (chosen.fetched > 0 ? fetched : left) += 1;
      }
  EXPECT_GT(fetched, 5);
  EXPECT_GT(left, 5);
  // Term by term, where the first layer has nothing fetched for it.
  input.hardware.ram.read_gbps = {{8, 50.0}};
  input.hardware.gpu->fetch_us = 12;
  const RoundTime off = round(FetchAhead::kOff, 2), on = round(FetchAhead::kOn, 2);
  const CostModel costs(input);
  const std::vector<BankLoad> loads = costs.loads(placement, 2);
  double experts = 0, copies = 0;
  for (int b = 0; b < 48; ++b) {
    const CostModel::Fetched one = costs.fetched(b, loads[static_cast<std::size_t>(b)], off.dense / 48);
    experts += costs.stage_seconds(b, one.load);
    copies += one.copies;
  }
  EXPECT_NEAR(on.experts, experts, 1e-12);
  EXPECT_NEAR(on.fetched, kNamedRight * copies, 1e-12);
}

}  // namespace
}  // namespace tandem::testing
