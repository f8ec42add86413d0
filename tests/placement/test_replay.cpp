// The replay against hits counted by hand and against an Adapter driven directly, as the running machine drives it; the
// figures of a census by hand.
#include "placement/replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "placement/census_stats.h"
#include "tests/placement/plan_cases.h"

namespace tandem {
namespace {

ReplayCase make_case(AdaptMode mode, int banks, int experts, const std::vector<std::pair<int, int>>& card) {
  const auto all = static_cast<std::size_t>(banks * experts);
  ReplayCase c{"case", {}, {banks, experts, std::vector<Place>(all, Place::kRam)}, {}, std::vector<bool>(all, true)};
  c.settings.mode = mode;
  for (const auto& [b, e] : card) c.start.at(b, e) = Place::kCard;
  c.expert_bytes.assign(static_cast<std::size_t>(banks), 10);
  return c;
}

std::function<bool(TraceRound&)> feed(const std::vector<TraceRound>& rounds, std::size_t& at) {
  return [&rounds, &at](TraceRound& round) {
    if (at == rounds.size()) return false;
    round = rounds[at++];
    return true;
  };
}

TEST(Replay, CountsByHand) {
  const std::vector<TraceRound> rounds{
      {Phase::kPrefill, "code", {{0, 2, {0, 1, 0, 2}}, {1, 2, {3, 1, 3, 2}}}},
      {Phase::kDecode, "code", {{0, 1, {1, 2}}, {1, 1, {1, 0}}}},
      {Phase::kDecode, "chat", {{0, 1, {0, 2}}, {1, 1, {3, 0}}}},
  };
  ReplayCase a = make_case(AdaptMode::kOff, 2, 4, {{0, 0}, {1, 3}}), b = make_case(AdaptMode::kLru, 2, 4, {{0, 3}});
  a.name = "a";
  b.name = "b";
  b.expert_bytes = {10, 40};
  std::size_t at = 0;
  const std::vector<ReplayResult> results = replay(feed(rounds, at), std::vector{a, b}, 2);
  ASSERT_EQ(results.size(), 2U);
  const ReplayResult& x = results[0];
  EXPECT_EQ(x.name, "a");
  EXPECT_EQ(x.slots, 2);
  EXPECT_EQ(x.counts.routes, 16U);
  EXPECT_EQ(x.counts.hits, 6U);  // 0 0 | 3 3 in round 1, 0 | 3 in round 3
  EXPECT_EQ(x.counts.bytes, 140U);
  EXPECT_EQ(x.counts.hit_bytes, 40U);
  EXPECT_EQ(x.counts.misses, 4U + 4U + 2U);
  EXPECT_EQ(x.decode_routes, 8U);
  EXPECT_EQ(x.decode_hits, 2U);
  EXPECT_EQ(x.decode_rounds, 2U);
  EXPECT_EQ(x.decode_misses, 6U);
  ASSERT_EQ(x.curve.size(), 2U);
  EXPECT_EQ(x.curve[0].first_round, 0U);
  EXPECT_EQ(x.curve[0].rounds, 2U);
  EXPECT_EQ(x.curve[0].routes, 12U);
  EXPECT_EQ(x.curve[0].hits, 4U);
  EXPECT_EQ(x.curve[0].misses, 8U);
  EXPECT_EQ(x.curve[0].domain, "code");
  EXPECT_EQ(x.curve[1].first_round, 2U);
  EXPECT_EQ(x.curve[1].rounds, 1U);
  EXPECT_EQ(x.curve[1].hits, 2U);
  EXPECT_EQ(x.curve[1].domain, "chat");
  EXPECT_DOUBLE_EQ(x.curve[1].hit_rate(), 0.5);
  // b: expert 0 of bank 0 enters after round 1 and is there in round 3. Round 2's misses: 1 and 2, one slot: 1 enters,
  // and is there from round 4 on, so in round 3 only 0 is hit.
  const ReplayResult& y = results[1];
  EXPECT_EQ(y.slots, 1);
  EXPECT_EQ(y.counts.hits, 1U);
  EXPECT_EQ(y.counts.hit_bytes, 10U);
  EXPECT_EQ(y.curve[0].swaps + y.curve[1].swaps, y.counts.swaps);
}

TEST(Replay, AgreesWithAnAdapterThatRunsLive) {
  std::mt19937 random(5);
  std::vector<TraceRound> rounds;
  for (int r = 0; r < 300; ++r) {
    TraceRound round{r % 7 == 0 ? Phase::kPrefill : Phase::kDecode, "x", {}};
    for (int b = 0; b < 3; ++b) {
      TraceBlock block{b, r % 7 == 0 ? 9u : 2u, {}};
      for (std::size_t i = 0; i < block.rows * 2; ++i)
        block.ids.push_back(static_cast<std::int32_t>((random() % 5 + static_cast<unsigned>(r / 60) * 4) % 16));
      round.blocks.push_back(block);
    }
    rounds.push_back(round);
  }
  std::vector<ReplayCase> cases;
  for (const AdaptMode mode : {AdaptMode::kOff, AdaptMode::kLru, AdaptMode::kLfu, AdaptMode::kSwaps})
    cases.push_back(make_case(mode, 3, 16, {{0, 0}, {0, 1}, {0, 5}, {1, 2}, {1, 3}, {2, 0}, {2, 9}}));
  for (ReplayCase& c : cases) c.settings.half_life_rows = 50;
  std::size_t at = 0;
  const auto results = replay(feed(rounds, at), cases, 7);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    Adapter live(cases[i].settings, cases[i].start, cases[i].expert_bytes, cases[i].movable);
    for (const TraceRound& round : rounds) {
      for (const TraceBlock& block : round.blocks) live.observe(block.bank, block.ids, block.rows);
      live.end_round();
    }
    EXPECT_EQ(results[i].counts.hits, live.counts().hits);
    EXPECT_EQ(results[i].counts.misses, live.counts().misses);
    EXPECT_EQ(results[i].counts.swaps, live.counts().swaps);
    EXPECT_EQ(results[i].counts.rows, 43 * 9 + 257 * 2u);
    std::uint64_t routes = 0, hits = 0, sum_rounds = 0, misses = 0;
    for (const ReplayWindow& w : results[i].curve) {
      EXPECT_EQ(w.first_round, sum_rounds);
      routes += w.routes;
      hits += w.hits;
      misses += w.misses;
      sum_rounds += w.rounds;
    }
    EXPECT_EQ(sum_rounds, 300U);
    EXPECT_EQ(routes, live.counts().routes);
    EXPECT_EQ(hits, live.counts().hits);
    EXPECT_EQ(misses, live.counts().misses);
  }
  EXPECT_GT(results[3].counts.hits, results[0].counts.hits);  // the hot experts move; following them pays
}

// Passes of the trunk say how far the sequence is; a round of the draft block alone, wherever it is, takes nothing
// back.
TEST(Replay, TheCacheIsLentByThePositionsOfTheTrunk) {
  const auto hits = [](int bank, std::uint64_t position) {
    std::vector<TraceRound> rounds;
    for (int r = 0; r < 4; ++r) rounds.push_back({Phase::kDecode, "x", {{0, 1, {1}}, {1, 1, {1}}}, 0});
    rounds.push_back({Phase::kDecode, "x", {{bank, 1, {1}}}, position});
    ReplayCase c = make_case(AdaptMode::kOff, 2, 2, {{0, 0}});
    c.lending.cache = {2, 512, 512, 4};
    c.lending.cache_ahead = 0;
    std::size_t at = 0;
    return replay(feed(rounds, at), std::vector{c}, 0)[0].counts.hits;
  };
  // Loans hold from the third round on. That of bank 0 begins at byte 448 of its area: 112 rows, 32 of them ahead.
  EXPECT_EQ(hits(0, 0), 5U);
  EXPECT_EQ(hits(0, 80), 5U);
  EXPECT_EQ(hits(0, 81), 4U);
  EXPECT_EQ(hits(1, 0), 5U);
  EXPECT_EQ(hits(1, 1000), 5U);
}

std::string card_of(const ExpertPlacement& placement) {
  std::string text;
  for (const Place place : placement.place) text += place == Place::kCard ? '1' : '0';
  return text;
}

TEST(Replay, FillsTheCardWithTheHottest) {
  const RouteShares shares{2, 4, 2, {.4, .3, .2, .1, .25, .25, .45, .05}};
  const auto fill = [&](std::int64_t slots, int floor, std::vector<std::int64_t> bytes = {1, 1}) {
    return card_of(hottest_on_card(shares, bytes, slots, floor));
  };
  EXPECT_EQ(fill(0, 0), "00000000");
  EXPECT_EQ(fill(1, 0), "00000010");
  EXPECT_EQ(fill(4, 0), "11001010");  // of the two 0.25 the lower index
  EXPECT_EQ(fill(8, 0), "11111111");
  EXPECT_EQ(fill(3, 0, {1, 10}), "11100000");  // ten times the bytes: a tenth of the worth
  EXPECT_EQ(fill(3, 1, {1, 10}), "11000010");  // a floor comes first
  EXPECT_EQ(fill(4, 2, {1, 10}), "11001010");
  EXPECT_EQ(fill(1, 3), "00000010");
}

// The files that ship: all can be read, are of one model, and show what adaptation is for. The card is filled for code;
// the text turns to chat and back.
TEST(Replay, ShippedTracesOverASwitchOfDomain) {
  const std::string folder = TANDEM_SOURCE_DIR "/configs/census/nano-";
  std::vector<TraceRound> rounds;
  const Census code = load_census(folder + "code.census.csv");
  for (const std::string domain : {"code", "prose", "chat"}) {
    const Census census = load_census(folder + domain + ".census.csv");
    check_same_shape(code, census, domain);
    EXPECT_EQ(census.fingerprint, code.fingerprint);
    EXPECT_GT(census.domains.at(domain).prefill.rows, 10000U);
    EXPECT_GT(census.domains.at(domain).decode.rows, 100U);
  }
  for (const std::string domain : {"prose", "code", "chat", "code"}) {
    TraceReader reader(folder + domain + ".trace");
    EXPECT_EQ(reader.header().fingerprint, code.fingerprint);
    TraceRound round;
    std::size_t decode = 0;
    if (domain == "prose") rounds.clear();
    while (reader.next(round)) {
      decode += round.phase == Phase::kDecode ? 1 : 0;
      EXPECT_EQ(round.domain, domain);
      if (domain != "prose") rounds.push_back(round);
    }
    EXPECT_GT(decode, 500U);
  }
  const CensusPart part{&code, "code", 1.0};
  const RouteShares shares = mix_shares({&part, 1});
  for (const double residency : {.2, .4, .6}) {
    std::vector<ReplayCase> cases;
    for (const AdaptMode mode : {AdaptMode::kOff, AdaptMode::kLru, AdaptMode::kSwaps}) {
      ReplayCase c = make_case(mode, code.banks, code.experts, {});
      c.start = hottest_on_card(shares, c.expert_bytes, std::lround(residency * code.banks * code.experts), 0);
      c.settings.half_life_rows = 50;
      cases.push_back(c);
    }
    std::size_t at = 0;
    const auto results = replay(feed(rounds, at), cases, 0);
    EXPECT_GT(results[2].counts.hits, results[0].counts.hits) << residency;
    EXPECT_GT(results[2].counts.hits, results[1].counts.hits) << residency;
    EXPECT_LT(results[2].counts.swaps * 10, results[1].counts.swaps) << residency;  // a tenth of the copies
    EXPECT_LE(results[2].counts.swaps, 2 * results[2].counts.rounds);
  }
}

// Routes drawn so that every expert is met as often as the cost model expects: the replay predicts the model's own
// round. Rows meet experts independently; within a row exactly `used` are drawn (systematic sampling in random order).
TEST(Replay, PredictsTheRoundThatTheCostModelExpects) {
  PlanInput input = testing::real_input();
  input.row_likeness = 0;
  const ExpertPlacement start = make_plan(input).placement;
  const CostModel model(input);
  ASSERT_TRUE(model.known());
  std::mt19937 random(3);
  for (const int rows : {1, 3}) {
    std::vector<int> order(512);
    std::iota(order.begin(), order.end(), 0);
    const auto draw = [&](int bank, std::vector<std::int32_t>& ids) {
      std::shuffle(order.begin(), order.end(), random);
      double sum = 0, next = std::uniform_real_distribution<double>(0, 1)(random);
      const std::size_t before = ids.size();
      for (const int e : order) {
        sum += model.inclusion(bank, e);
        for (; sum > next && ids.size() < before + 10; next += 1) ids.push_back(e);
      }
      while (ids.size() < before + 10) ids.push_back(order.back());  // rounding at the very end
    };
    int left = 300;
    const auto next = [&](TraceRound& round) {
      round = {Phase::kDecode, "x", {}};
      for (int b = 0; b < 48; ++b) {
        TraceBlock block{b, static_cast<std::uint32_t>(rows), {}};
        for (int r = 0; r < rows; ++r) draw(b, block.ids);
        round.blocks.push_back(std::move(block));
      }
      return left-- > 0;
    };
    ReplayCase c{"plan", {}, start, input.model.expert_bytes, std::vector<bool>(start.place.size(), true)};
    const ReplayResult result = replay(next, {&c, 1}, 0)[0];
    const double expected = model.round(start, rows - 1).total;
    EXPECT_NEAR(replayed_round_seconds(model, input, start, result), expected, 0.005 * expected) << rows;

    // The same rounds with every hit a miss take longer, by the crew's time for them.
    ReplayResult cold = result;
    double more = 0;
    for (std::size_t b = 0; b < 48; ++b) {
      BankMet& met = cold.decode_banks[b];
      EXPECT_EQ(met.passes, 300U);
      EXPECT_EQ(met.rows, 300U * static_cast<unsigned>(rows));
      const auto stage = [&](const BankMet& m) {
        const double q = static_cast<double>(m.misses) / 300, routes = static_cast<double>(m.missed_routes) / 300;
        return model.stage_seconds(static_cast<int>(b),
                                   {static_cast<double>(m.hits) / 300, q, q + 0.2 * (routes - q), 0, 0});
      };
      const double warm = stage(met);
      met.misses += met.hits;
      met.hits = 0;
      met.missed_routes = 300U * 10 * static_cast<unsigned>(rows);
      more += stage(met) - warm;
    }
    EXPECT_GT(more, 0.01);
    EXPECT_NEAR(replayed_round_seconds(model, input, start, cold),
                replayed_round_seconds(model, input, start, result) + more, 1e-9);
  }
}

TEST(Replay, ExpertsOnDiskAreCountedApart) {
  ReplayCase c = make_case(AdaptMode::kOff, 1, 4, {{0, 0}});
  c.start.at(0, 3) = Place::kDisk;
  const std::vector<TraceRound> rounds{{Phase::kDecode, "x", {{0, 2, {0, 3, 1, 3}}}},
                                       {Phase::kPrefill, "x", {{0, 2, {0, 3, 1, 3}}}},
                                       {Phase::kDecode, "x", {{0, 2, {2, 1, 1, 0}}, {0, 1, {1, 2}}}}};
  std::size_t at = 0;
  const BankMet met = replay(feed(rounds, at), {&c, 1}, 0)[0].decode_banks[0];
  EXPECT_EQ(met.passes, 3U);
  EXPECT_EQ(met.rows, 5U);
  EXPECT_EQ(met.hits, 2U);
  EXPECT_EQ(met.misses, 1U + 2 + 2);
  EXPECT_EQ(met.missed_routes, 1U + 3 + 2);
  EXPECT_EQ(met.disk, 1U);
  EXPECT_EQ(met.disk_routes, 2U);
}

// ---- figures of a census ----

const RouteShares kA{2, 5, 1, {.5, .2, .1, .1, .1, .2, .2, .2, .2, .2}};
const RouteShares kB{2, 5, 1, {.1, .2, .5, .1, .1, 0, 0, 0, 0, 1}};

TEST(CensusStats, CoverageOverlapVariation) {
  EXPECT_EQ(hottest_count(512, .1), 51);
  EXPECT_EQ(hottest_count(5, .3), 2);
  EXPECT_EQ(hottest_count(5, .05), 1);
  EXPECT_EQ(hottest_count(5, 7), 5);
  EXPECT_EQ(hottest_first(kA, 0), (std::vector<int>{0, 1, 2, 3, 4}));
  EXPECT_EQ(hottest_first(kB, 0), (std::vector<int>{2, 1, 0, 3, 4}));
  EXPECT_EQ(hottest_first(kB, 1), (std::vector<int>{4, 0, 1, 2, 3}));
  EXPECT_NEAR(coverage(kA, 0, .2), .5, 1e-15);
  EXPECT_NEAR(coverage(kA, 0, .6), .8, 1e-15);
  EXPECT_NEAR(coverage(kB, 1, .2), 1, 1e-15);
  EXPECT_NEAR(hot_overlap(kA, kB, 0, .2), 0, 1e-15);
  EXPECT_NEAR(hot_overlap(kA, kB, 0, .4), .5, 1e-15);
  EXPECT_NEAR(hot_overlap(kA, kB, 0, .6), 1, 1e-15);
  EXPECT_NEAR(total_variation(kA, kB, 0), .4, 1e-15);
  EXPECT_NEAR(total_variation(kA, kB, 1), .8, 1e-15);
  EXPECT_NEAR(total_variation(kA, kA, 1), 0, 1e-15);
}

TEST(CensusStats, HitCurves) {
  const auto close = [](const std::vector<double>& found, const std::vector<double>& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-12) << i;
  };
  const int both[] = {0, 1}, first[] = {0};
  close(hit_curve(kA, first), {0, .5, .7, .8, .9, 1});
  close(hit_curve(kB, both), {0, .5, .75, .85, .9, .95, 1, 1, 1, 1, 1});
  close(hit_curve(kA, kB, first), {0, .1, .3, .8, .9, 1});
  // By A the order is 0, then the six of 0.2 (index 1 of bank 0, all of bank 1), then the rest of bank 0.
  close(hit_curve(kB, kA, both), {0, .05, .15, .15, .15, .15, .15, .65, .9, .95, 1});
}

TEST(CensusStats, BanksWithCounts) {
  Census census{"m", 1, 3, 4, 1, {}};
  EXPECT_TRUE(counted_banks(census, "").empty());
  census.add("a", Phase::kPrefill, 0, std::vector<std::int32_t>{1});
  census.add("b", Phase::kDecode, 2, std::vector<std::int32_t>{3});
  EXPECT_EQ(counted_banks(census, ""), (std::vector<int>{0, 2}));
  EXPECT_EQ(counted_banks(census, "a"), (std::vector<int>{0}));
  EXPECT_EQ(counted_banks(census, "b"), (std::vector<int>{2}));
}

}  // namespace
}  // namespace tandem
