// The cost model against sums written out a second time: probabilities by bisection, stages by summing over all counts
// of misses, a whole round term by term.
#include "placement/cost_model.h"

#include <gtest/gtest.h>

#include "tests/placement/plan_cases.h"

namespace tandem::testing {
namespace {

TEST(CostModel, InclusionSolvesTheCappedSum) {
  Random random(1);
  for (int trial = 0; trial < 300; ++trial) {
    const int experts = pick(random, 1, 40), used = pick(random, 1, experts);
    const RouteShares shares = power_shares(2, experts, used, uniform(random, 0, 3), random());
    const std::vector<double> p = inclusion_probabilities(shares);
    for (int bank = 0; bank < 2; ++bank) {
      const auto value = [&](double scale, int e) { return std::min(1.0, scale * shares.at(bank, e)); };
      double low = 0, high = 1e15;  // the scale at which the capped values sum to `used`
      for (int step = 0; step < 200; ++step) {
        const double middle = (low + high) / 2;
        double sum = 0;
        for (int e = 0; e < experts; ++e) sum += value(middle, e);
        (sum < used ? low : high) = middle;
      }
      for (int e = 0; e < experts; ++e)
        EXPECT_NEAR(p[static_cast<std::size_t>(bank * experts + e)], value(high, e), 1e-9) << trial;
    }
  }
}

TEST(CostModel, InclusionWithFewerSharesThanUsed) {
  const std::vector<double> p = inclusion_probabilities({1, 4, 3, {0.5, 0.5, 0.0, 0.0}});
  EXPECT_EQ(p, (std::vector<double>{1.0, 1.0, 0.5, 0.5}));
  EXPECT_EQ(inclusion_probabilities({1, 2, 2, {1.0, 0.0}}), (std::vector<double>{1.0, 1.0}));
}

// The published figures for 512 equally likely experts, 10 used: 19.8, 38.8, 48.1 and 74.7 distinct ones.
TEST(CostModel, DistinctExpertsOfUniformRouting) {
  PlanInput input = real_input();
  input.shares = uniform_shares(49, 512, 10);
  input.row_likeness = 0;
  const CostModel costs(input);
  const std::pair<int, double> published[] = {{1, 10.0}, {2, 19.8}, {4, 38.8}, {5, 48.1}, {8, 74.7}};
  for (const auto& [rows, distinct] : published) {
    double sum = 0, work = 0;
    for (int e = 0; e < 512; ++e) {
      sum += costs.met(7, e, rows);
      work += costs.work(7, e, rows);
    }
    EXPECT_NEAR(sum, distinct, 0.05);
    EXPECT_NEAR(work, sum + 0.2 * (10.0 * rows - sum), 1e-9);  // every row beyond an expert's first costs row_cost
  }
}

// The chance is that of an urn: p is the mean of a beta distribution, and integrating over it must give the same.
TEST(CostModel, RowsOfAPassAreAlike) {
  Random random(4);
  for (int trial = 0; trial < 60; ++trial) {
    const double likeness = uniform(random, 0.01, 0.3), p = uniform(random, 0.05, 0.9), a = p / likeness,
                 b = (1 - p) / likeness;
    const int rows = pick(random, 1, kLikeRows);
    // With x = t^3 (10 - 15 t + 6 t^2) both ends are flat, whatever the density does there.
    double mass = 0, met = 0;
    constexpr int kSteps = 200000;
    for (int i = 0; i < kSteps; ++i) {
      const double t = (i + 0.5) / kSteps, x = t * t * t * (10 - 15 * t + 6 * t * t),
                   y = (1 - t) * (1 - t) * (1 - t) * (1 + 3 * t + 6 * t * t);
      const double weight = std::exp((a - 1) * std::log(x) + (b - 1) * std::log(y)) * t * t * (1 - t) * (1 - t);
      mass += weight;
      met += weight * (1 - std::exp(rows * std::log(y)));
    }
    EXPECT_NEAR(chance_met(p, rows, likeness), met / mass, 2e-3) << p << " " << likeness << " " << rows;
  }
  for (const int rows : {1, 2, 5, 15, 16, 100}) {
    EXPECT_NEAR(chance_met(0.1, rows, 0), 1 - std::pow(0.9, rows), 1e-12);
    EXPECT_EQ(chance_met(1.0, rows, 0.3), 1.0);
    EXPECT_EQ(chance_met(0.0, rows, 0.3), 0.0);
    EXPECT_LE(chance_met(0.1, rows, 0.2), chance_met(0.1, rows, 0.1));
    EXPECT_LT(chance_met(0.1, rows, 0.2), chance_met(0.1, rows + 1, 0.2));
  }
  EXPECT_DOUBLE_EQ(chance_met(0.1, 1, 0.2), 0.1);
  // Rows that are far apart are no more alike than those of a window.
  EXPECT_NEAR(1 - chance_met(0.1, 40, 0.2), (1 - chance_met(0.1, 15, 0.2)) * std::pow(1 - 0.1 / 4, 25), 1e-12);
}

// Uniform routing, so that every expert meets q and k of the same formula: the least number of rows, found one by one.
TEST(CostModel, StreamRowsIsWherePcieOvertakesTheCrew) {
  Random random(9);
  for (int trial = 0; trial < 40; ++trial) {
    PlanInput input = real_input();
    input.shares = uniform_shares(49, 512, 10);
    input.hardware.gpu->pcie_to_card_gbps = uniform(random, 4, 60);
    input.hardware.cpu.row_cost = uniform(random, 0, 0.6);
    const CostModel costs(input);
    ExpertPlacement placement = all_in_ram(49, 512);
    int in_ram = 0;
    for (int bank = 0; bank < 48; ++bank)
      for (int e = 0; e < 512; ++e) {
        if (pick(random, 0, 2) == 0) placement.at(bank, e) = Place::kCard;
        in_ram += placement.at(bank, e) == Place::kRam ? 1 : 0;
      }
    const double sent = in_ram * 1900.0 * 1024 / (input.hardware.gpu->pcie_to_card_gbps * 1e9);
    int expected = 0;
    for (int rows = 1; rows <= kMostPrefillRows && expected == 0; ++rows) {
      const double p = 10.0 / 512, q = chance_met(p, rows, input.row_likeness);
      const double crew = in_ram * costs.crew_seconds(0) * (q + input.hardware.cpu.row_cost * (rows * p - q));
      if (sent <= crew) expected = rows;
    }
    EXPECT_EQ(costs.stream_rows(placement), expected) << trial;
  }
  PlanInput input = real_input();
  EXPECT_GT(CostModel(input).stream_rows(all_in_ram(49, 512)), 0);
  ExpertPlacement on_card = all_in_ram(49, 512);
  std::fill(on_card.place.begin(), on_card.place.end(), Place::kCard);
  EXPECT_EQ(CostModel(input).stream_rows(on_card), 0);  // nothing to send
  input.hardware.gpu->pcie_to_card_gbps = 1e-6;
  EXPECT_EQ(CostModel(input).stream_rows(all_in_ram(49, 512)), 0);  // the crew is always sooner
  input.hardware.gpu->pcie_to_card_gbps = 0;
  EXPECT_EQ(CostModel(input).stream_rows(all_in_ram(49, 512)), 0);  // not known
}

TEST(CostModel, TokensOfARound) {
  EXPECT_DOUBLE_EQ(expected_tokens(0, 0.7, 0.85), 1.0);
  EXPECT_DOUBLE_EQ(expected_tokens(1, 0.7, 0.85), 1.7);
  EXPECT_DOUBLE_EQ(expected_tokens(2, 0.7, 0.85), 1.7 + 0.7 * 0.595);
  EXPECT_NEAR(expected_tokens(3, 0.7, 0.85), 2.3271, 1e-4);
  EXPECT_NEAR(expected_tokens(4, 0.5, 1.0), 1.9375, 1e-12);
}

TEST(CostModel, StageIsTheMeanOverPoissonMisses) {
  Random random(2);
  for (int trial = 0; trial < 2000; ++trial) {
    const double card = uniform(random, 0, 10), mean = std::pow(10.0, uniform(random, -3, 2));
    const double unit = std::pow(10.0, uniform(random, -3, 1)), handoff = uniform(random, 0, 3);
    double sum = 0;
    for (int m = 0; m < 400; ++m) {
      const double probability = std::exp(m * std::log(mean) - mean - std::lgamma(m + 1.0));
      sum += probability * std::max(card, m > 0 ? m * unit + handoff : 0.0);
    }
    EXPECT_NEAR(expected_stage(card, mean, unit, handoff), sum, 1e-9 * (1 + sum)) << card << " " << mean << " " << unit;
  }
  EXPECT_EQ(expected_stage(3.0, 0.0, 1.0, 5.0), 3.0);
  EXPECT_NEAR(expected_stage(1.0, 2.0, 0.0, 5.0), std::exp(-2.0) + 5 * (1 - std::exp(-2.0)), 1e-12);
  EXPECT_EQ(expected_stage(3.0, 2.0, 0.0, 1.0), 3.0);
  EXPECT_EQ(expected_stage(1.0, 1000.0, 2.0, 1.0), 2001.0);
}

TEST(CostModel, WorkersOfTheCrew) {
  PlanInput input = real_input();
  EXPECT_EQ(CostModel(input).workers(), 8);
  input.hardware.ram.read_gbps = {{1, 12.0}, {4, 51.0}, {8, 50.0}, {16, 90.0}};
  EXPECT_EQ(CostModel(input).workers(), 4);  // more would be slower; 16 are not there
  input.hardware.cpu.efficiency_cores = 8;
  EXPECT_EQ(CostModel(input).workers(), 4);
  input.policy.crew.cores = CrewCores::kAll;
  EXPECT_EQ(CostModel(input).workers(), 16);
  input.policy.crew.workers = 6;
  EXPECT_EQ(CostModel(input).workers(), 6);
}

// A round of w rows, written out from docs/placement.md.
TEST(CostModel, ARoundTermByTerm) {
  PlanInput input = real_input();
  input.policy.adapt.fetch_ahead = FetchAhead::kOff;
  input.hardware.cpu.start_us = 3;
  ExpertPlacement placement = all_in_ram(49, 512);
  for (int b = 0; b < 49; ++b)
    for (int e = 0; e < 512; ++e)
      placement.at(b, e) = e % 3 == 0 ? Place::kCard : e % 100 == 1 ? Place::kDisk : Place::kRam;
  const CostModel costs(input);
  const double blob = 1900 * 1024, card_rate = 900e9 * 0.8, crew_rate = 50e9 * 0.8, disk_rate = 3e9;
  const std::vector<double> p = inclusion_probabilities(input.shares);
  const auto stage = [&](int bank, int rows, double shared, double* wait, double* crew) {
    double hit = 0, miss = 0, work = 0, disk = 0, disk_work = 0;
    for (int e = 0; e < 512; ++e) {
      const double chance = p[static_cast<std::size_t>(bank * 512 + e)];
      double none = 1;
      for (int i = 0; i < rows; ++i) none *= 1 - chance / (1 + 0.03 * i);
      const double q = 1 - none, k = q + 0.2 * (chance * rows - q);
      if (e % 3 == 0) {
        hit += q;
      } else if (e % 100 == 1) {
        disk += q;
        disk_work += k;
      } else {
        miss += q;
        work += k;
      }
    }
    const double card = (shared + hit * blob) / card_rate;
    const double both = expected_stage(card, miss, blob * work / miss / crew_rate, 5e-6);
    *wait += both - card;
    *crew += blob * work / crew_rate;
    return both + blob * disk / disk_rate + blob * disk_work / crew_rate;
  };
  for (const int drafts : {0, 3, 4}) {
    const int w = 1 + drafts;
    const RoundTime time = costs.round(placement, drafts);
    double experts = 0, wait = 0, crew = 0, ignored = 0;
    for (int b = 0; b < 48; ++b) experts += stage(b, w, 250e6 / 48, &wait, &crew);
    const double kv = 2052.0 * 2 * 2 * 256 * 2, pooled = 8192.0 * 128 * 4;
    const double dense = (3750e6 + 12 * (w * kv + pooled) + 2 * 113246208.0) / card_rate + (36 * (w == 1   ? 13.5
                                                                                                  : w <= 4 ? 14.3
                                                                                                           : 15.0) +
                                                                                            12 * 19) *
                                                                                               (1 + 0.25 * drafts) *
                                                                                               1e-6;
    const double logits = 248320 * 4 / 25e9;
    const double draft =
        drafts * (stage(48, 1, 0, &ignored, &ignored) + (80e6 + 520e6 + kv + pooled) / card_rate + 28e-6 + logits);
    EXPECT_EQ(time.rows, w);
    EXPECT_NEAR(time.experts, experts, 1e-9);
    EXPECT_NEAR(time.wait, wait, 1e-9);
    EXPECT_NEAR(time.crew, crew, 1e-9);
    EXPECT_NEAR(time.dense, dense, 1e-9);
    EXPECT_NEAR(time.head, 520e6 / card_rate, 1e-12);
    EXPECT_NEAR(time.sampling, w * logits, 1e-12);
    EXPECT_NEAR(time.draft, draft, 1e-9);
    EXPECT_NEAR(time.total, dense + experts + 520e6 / card_rate + w * logits + draft, 1e-9);
    EXPECT_NEAR(time.tokens, drafts == 0 ? 1.0 : drafts == 3 ? 2.3271 : 2.4177, 1e-4);
  }
}

// A draft head that chooses among few tokens reads and looks at less; nothing else changes.
TEST(CostModel, ADraftHeadWithAVocabularyOfItsOwn) {
  PlanInput whole = real_input();
  PlanInput few = whole;
  few.model.draft_tokens = 32768;
  few.model.draft_head_packed = 69 * 1000 * 1000LL;
  const ExpertPlacement placement = all_in_ram(49, 512);
  const double card_rate = 900e9 * 0.8, logits = 248320 * 4 / 25e9;
  for (const int drafts : {0, 1, 3}) {
    const RoundTime a = CostModel(whole).round(placement, drafts), b = CostModel(few).round(placement, drafts);
    const double saved = drafts * (451e6 / card_rate + logits * (1 - 32768.0 / 248320));
    EXPECT_NEAR(a.draft - b.draft, saved, 1e-9) << drafts;
    EXPECT_NEAR(a.total - b.total, saved, 1e-9) << drafts;
    EXPECT_EQ(a.head, b.head);
    EXPECT_EQ(a.sampling, b.sampling);
  }
}

// Without a card everything goes through the RAM, and its place does not matter.
TEST(CostModel, ARoundOfTheCpuAlone) {
  PlanInput input = real_input();
  input.card = false;
  input.plays_card = true;
  input.hardware.gpu.reset();
  const CostModel costs(input);
  ExpertPlacement placement = all_in_ram(49, 512);
  const RoundTime time = costs.round(placement, 1);
  const double rate = 50e9 * 0.8;
  double work = 0;
  for (int b = 0; b < 48; ++b)
    for (int e = 0; e < 512; ++e) work += costs.work(b, e, 2);
  EXPECT_NEAR(time.experts, work * 1900 * 1024 / rate, 1e-9);
  const double cache = 12 * (2 * 2052.0 * 2048 + 8192.0 * 128 * 4) + 2 * 113246208.0;
  EXPECT_NEAR(time.dense, (4000e6 * 1.2 + cache) / rate, 1e-9);
  EXPECT_NEAR(time.head, 520e6 * 1.2 / rate, 1e-12);
  EXPECT_EQ(time.wait + time.card + time.handoff, 0.0);
  for (int e = 0; e < 512; e += 2) placement.at(5, e) = Place::kCard;
  EXPECT_NEAR(costs.round(placement, 1).total, time.total, 1e-12);
}

// A type whose arithmetic is the limit is read at its own rate, by each side; the others at the rate of the memory.
TEST(CostModel, TypesHaveTheirOwnRates) {
  PlanInput input = real_input();
  input.model.expert_types.assign(49, {{"SLOW", 0.6}, {"FAST", 0.3}, {"UNKNOWN", 0.1}});
  input.hardware.cpu.expert_core_gbps = {{"SLOW", 2.0}, {"FAST", 100.0}};  // 8 cores: 16 GB/s; the RAM gives 50 * 0.8
  input.hardware.gpu->expert_gbps = {{"SLOW", 300.0}, {"FAST", 5000.0}};   // the memory gives 900 * 0.8
  input.hardware.cpu.start_us = 3;
  const double blob = 1900 * 1024;
  const CostModel costs(input);
  EXPECT_NEAR(costs.crew_seconds(0), blob * (0.6 / 16e9 + 0.4 / 40e9), 1e-12);
  EXPECT_NEAR(costs.card_seconds(0), blob * (0.6 / 300e9 + 0.4 / 720e9), 1e-12);
  const BankLoad hits{.card = 5};
  EXPECT_NEAR(costs.stage_seconds(0, hits), 250e6 / 48 / 720e9 + 5 * costs.card_seconds(0), 1e-12);
  // And the crew: so many misses that it is the later one in any case.
  const BankLoad misses{.card = 5, .misses = 600, .work = 660};
  EXPECT_NEAR(costs.stage_seconds(0, misses), 660 * costs.crew_seconds(0) + 5e-6, 1e-9);
}

// Card and crew side by side.
TEST(CostModel, TheLaterOfCardAndCrew) {
  const PlanInput input = real_input();
  const BankLoad few{.card = 40, .misses = 0.2, .work = 0.2}, many{.card = 40, .misses = 600, .work = 600};
  const CostModel costs(input);
  const double card = costs.stage_seconds(0, {.card = 40}), crew = 600 * costs.crew_seconds(0);
  EXPECT_NEAR(costs.stage_seconds(0, many), crew + 2e-6, 1e-9);
  // A layer without a miss does not wait.
  const double none = std::exp(-0.2), seconds = costs.stage_seconds(0, few);
  EXPECT_GE(seconds, card);
  EXPECT_LE(seconds, none * card + (1 - none) * (card + 2e-6) + 0.2 * costs.crew_seconds(0));
  EXPECT_EQ(CostModel(input).loads(all_in_ram(49, 512), 0).size(), 49U);
  EXPECT_EQ(CostModel(input).loads(all_in_ram(49, 512), 0)[48].misses, 0);  // no draft, no draft block
}

TEST(CostModel, SaysWhatIsMissing) {
  PlanInput input = real_input();
  EXPECT_EQ(CostModel(input).missing(), "");
  input.hardware.gpu->copy_gbps = 0;
  EXPECT_EQ(CostModel(input).missing(), "GPU memory bandwidth");
  input.hardware.ram.read_gbps.clear();
  EXPECT_EQ(CostModel(input).missing(), "RAM bandwidth and GPU memory bandwidth");
  input.card = false;
  EXPECT_EQ(CostModel(input).missing(), "RAM bandwidth");
}

}  // namespace
}  // namespace tandem::testing
