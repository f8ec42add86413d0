// The lossy switches: what the tail skip drops, and what biased acceptance does to a distribution, held against
// definitions written out, against sums over all pairs, and against the sampler itself.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "runtime/biased_acceptance.h"
#include "runtime/lossy.h"
#include "runtime/lossy_eval.h"
#include "runtime/philox.h"
#include "runtime/sampler.h"

namespace tandem::testing {
namespace {

// ---- tail-route skip

TEST(TailSkip, DropsTheTailOffTheCardWithinTheBudget) {
  // Experts 0, 10, 20, ... are on the card. Weights in 64ths, so that sums are exact.
  const auto skip = [](std::vector<std::int32_t> ids, std::vector<int> parts, int budget) {
    std::vector<float> weights;
    for (const int part : parts) weights.push_back(static_cast<float>(part) / 64.0F);
    const std::vector<float> before = weights;
    TailSkip tail;
    tail.set_budget(budget / 64.0);
    tail.apply({ids.data(), weights.data(), 1, ids.size()}, [](std::int32_t e) { return e % 10 == 0; });
    EXPECT_EQ(weights, before);
    return ids;
  };
  using Ids = std::vector<std::int32_t>;
  const Ids all{1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<int> parts{20, 16, 10, 6, 5, 4, 2, 1};
  EXPECT_EQ(skip(all, parts, 7), (Ids{1, 2, 3, 4, 5, -1, -1, -1}));  // the first five ranks stay, whatever the budget
  EXPECT_EQ(skip(all, parts, 32), (Ids{1, 2, 3, 4, 5, -1, -1, -1}));
  EXPECT_EQ(skip(all, parts, 6), (Ids{1, 2, 3, 4, 5, 6, -1, -1}));
  EXPECT_EQ(skip(all, parts, 3), (Ids{1, 2, 3, 4, 5, 6, -1, -1}));  // exactly the budget
  EXPECT_EQ(skip(all, parts, 2), (Ids{1, 2, 3, 4, 5, 6, 7, -1}));
  EXPECT_EQ(skip({1, 2, 3, 4, 5, 6, 10, 8}, parts, 5), (Ids{1, 2, 3, 4, 5, -1, 10, -1}));  // the card's cost nothing
  EXPECT_EQ(skip({10, 20, 30, 40, 50, 60, 70, 80}, parts, 32), (Ids{10, 20, 30, 40, 50, 60, 70, 80}));
  EXPECT_EQ(skip({1, 2, 3}, {30, 20, 14}, 32), (Ids{1, 2, 3}));
}

TEST(TailSkip, RowsAreIndependentAndCounted) {
  std::mt19937 random(2);
  TailSkip tail;
  tail.set_budget(0.1);
  TailSkip::Counts expected;
  for (int round = 0; round < 200; ++round) {
    const std::size_t rows = 1 + random() % 5, used = 1 + random() % 10;
    std::vector<std::int32_t> ids(rows * used);
    std::vector<float> weights(rows * used);
    for (std::size_t r = 0; r < rows; ++r) {
      float sum = 0;
      for (std::size_t k = 0; k < used; ++k) {
        ids[r * used + k] = static_cast<std::int32_t>(random() % 50);
        sum += weights[r * used + k] = static_cast<float>(1 + random() % 1000);
      }
      std::sort(&weights[r * used], &weights[r * used] + used, std::greater<>());
      for (std::size_t k = 0; k < used; ++k) weights[r * used + k] /= sum;
    }
    const auto before = ids;
    tail.apply({ids.data(), weights.data(), rows, used}, [](std::int32_t e) { return e % 3 == 0; });
    for (std::size_t r = 0; r < rows; ++r) {
      double dropped = 0, next = 1;  // next: the lightest weight that could have gone as well
      bool stayed = false;
      for (std::size_t k = used; k-- > 0;) {
        const std::size_t i = r * used + k;
        if (ids[i] < 0) {
          EXPECT_GE(k, TailSkip::kProtected);
          EXPECT_NE(before[i] % 3, 0);
          EXPECT_FALSE(stayed);
          dropped += static_cast<double>(weights[i]);
          ++expected.skipped;
        } else {
          EXPECT_EQ(ids[i], before[i]);
          if (before[i] % 3 != 0 && k >= TailSkip::kProtected && !std::exchange(stayed, true))
            next = static_cast<double>(weights[i]);
        }
      }
      EXPECT_LE(dropped, 0.1);
      EXPECT_GT(dropped + next, 0.1);
      expected.weight += dropped;
    }
    expected.rows += rows;
    expected.routes += rows * used;
  }
  EXPECT_EQ(tail.counts().rows, expected.rows);
  EXPECT_EQ(tail.counts().routes, expected.routes);
  EXPECT_EQ(tail.counts().skipped, expected.skipped);
  EXPECT_NEAR(tail.counts().weight, expected.weight, 1e-9);
  EXPECT_GT(expected.skipped, 100U);
}

// ---- biased acceptance: the distribution

std::vector<double> random_distribution(std::mt19937& random, std::size_t n, double zeros, double sharp) {
  std::uniform_real_distribution<double> draw(0, 1);
  std::vector<double> p(n);
  double sum = 0;
  for (double& x : p) sum += x = draw(random) < zeros ? 0.0 : std::pow(draw(random), sharp);
  if (sum == 0) sum = p[random() % n] = 1;
  for (double& x : p) x /= sum;
  return p;
}

struct Outcome {
  std::vector<double> q;
  double kept = 0;
};

// By the sampler's own noise: what is picked, what is drafted, and what stays.
Outcome by_noise(std::span<const double> p, std::span<const double> draft, std::uint64_t draws) {
  Outcome out{std::vector<double>(p.size())};
  const auto best = [&](std::span<const double> x, std::uint64_t draw) {
    std::size_t at = 0;
    double most = -1e300;
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (x[i] <= 0) continue;
      const double value = std::log(x[i]) + static_cast<double>(gumbel_noise(3, draw, static_cast<std::uint32_t>(i)));
      if (value > most) at = i, most = value;
    }
    return at;
  };
  const double one = 1.0 / static_cast<double>(draws);
  for (std::uint64_t draw = 0; draw < draws; ++draw) {
    const std::size_t t = best(p, draw), d = best(draft, draw);
    const bool stays = t != d && p[d] > 0 && p[d] >= p[t];
    out.q[stays ? d : t] += one;
    out.kept += stays ? one : 0.0;
  }
  return out;
}

TEST(BiasedAcceptance, AgreesWithTheSamplersNoise) {
  std::mt19937 random(4);
  double most_kept = 0;
  for (int round = 0; round < 12; ++round) {
    const std::size_t n = 2 + random() % 8;
    std::vector<double> p = random_distribution(random, n, 0.2, 1.5);
    std::vector<double> draft = random_distribution(random, n, 0.3, 2.0);
    if (round % 4 == 3) draft = p;  // the head knows the model: nothing is rejected
    const DistributionChange change = biased_change(p, draft);
    constexpr std::uint64_t kDraws = 40000;
    const Outcome out = by_noise(p, draft, kDraws);
    double variation = 0;
    for (std::size_t i = 0; i < n; ++i) variation += std::fabs(out.q[i] - p[i]) / 2;
    // A frequency of 40,000 draws is off by 0.0025 at most (one sigma), a distance by a few of them.
    EXPECT_NEAR(change.kept, out.kept, 0.0125) << round;
    EXPECT_NEAR(change.total_variation, variation, 0.02) << round;
    EXPECT_LE(change.total_variation, change.kept + 1e-12);
    if (round % 4 == 3) {
      EXPECT_NEAR(change.kept, 0, 1e-12);
      EXPECT_NEAR(change.total_variation, 0, 1e-12);
      EXPECT_FALSE(change.top1_changed);
    }
    most_kept = std::max(most_kept, change.kept);
  }
  EXPECT_GT(most_kept, 0.1);
}

// The formula of the header, integrated by steps, over all pairs.
Outcome by_pairs(std::span<const double> p, std::span<const double> draft) {
  const std::size_t n = p.size();
  // With r = x / (1 - x), dr / S(r)^2 = dx / (sum_i max(p (1 - x), draft x))^2.
  constexpr int kSteps = 200000;
  std::vector<double> to(n), integral(n);
  for (std::size_t i = 0; i < n; ++i) to[i] = p[i] + draft[i] > 0 ? p[i] / (p[i] + draft[i]) : 0.0;
  for (int step = 0; step < kSteps; ++step) {
    const double x = (step + 0.5) / kSteps;
    double s = 0;
    for (std::size_t i = 0; i < n; ++i) s += std::max(p[i] * (1 - x), draft[i] * x);
    for (std::size_t i = 0; i < n; ++i) integral[i] += x < to[i] ? 1 / (s * s) / kSteps : 0.0;
  }
  Outcome out{{p.begin(), p.end()}};
  for (std::size_t a = 0; a < n; ++a)
    for (std::size_t b = 0; b < n; ++b) {
      if (a == b || p[b] <= 0 || p[a] < p[b] || draft[a] <= 0) continue;
      const double moved = p[b] * draft[a] * std::max(0.0, integral[b] - integral[a]);
      out.q[a] += moved;
      out.q[b] -= moved;
      out.kept += moved;
    }
  return out;
}

TEST(BiasedAcceptance, AgreesWithTheSumOverAllPairs) {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    const std::size_t n = 1 + random() % 12;
    std::vector<double> p = random_distribution(random, n, 0.2, 1.5);
    const std::vector<double> draft = random_distribution(random, n, 0.3, 2.0);
    if (round % 3 == 0) {  // equal probabilities: the draft is at least as likely both ways
      for (double& x : p) x = x > 0 ? 1 : 0;
      const double sum = static_cast<double>(std::count(p.begin(), p.end(), 1.0));
      for (double& x : p) x /= sum;
    }
    const DistributionChange change = biased_change(p, draft);
    const Outcome out = by_pairs(p, draft);
    double variation = 0, kl = 0;
    for (std::size_t i = 0; i < n; ++i) {
      variation += std::fabs(out.q[i] - p[i]) / 2;
      if (out.q[i] > 0 && p[i] > 0) kl += out.q[i] * std::log(out.q[i] / p[i]);
    }
    EXPECT_NEAR(change.kept, out.kept, 1e-4) << round;
    EXPECT_NEAR(change.total_variation, variation, 1e-4) << round;
    EXPECT_NEAR(change.kl, kl, 1e-3) << round;
  }
}

TEST(BiasedAcceptance, ADraftKnownBeforehand) {
  const std::vector<double> p{0.5, 0.2, 0.2, 0.1, 0.0};
  const auto change = [&](std::size_t d) { return biased_change(p, d); };
  EXPECT_DOUBLE_EQ(change(0).kept, 0.5);  // always stays
  EXPECT_DOUBLE_EQ(change(0).total_variation, 0.5);
  EXPECT_DOUBLE_EQ(change(0).kl, std::log(2.0));
  EXPECT_FALSE(change(0).top1_changed);
  EXPECT_DOUBLE_EQ(change(1).kept, 0.2 + 0.1);
  EXPECT_FALSE(change(1).top1_changed);  // 0.5 against 0.5: the lower index
  EXPECT_DOUBLE_EQ(change(2).kept, 0.2 + 0.1);
  EXPECT_DOUBLE_EQ(change(3).kept, 0.0);
  EXPECT_DOUBLE_EQ(change(4).kept, 0.0);
  EXPECT_DOUBLE_EQ(change(4).total_variation, 0.0);
  const std::vector<double> flat{0.28, 0.24, 0.24, 0.24};
  EXPECT_TRUE(biased_change(flat, std::size_t{2}).top1_changed);
}

TEST(BiasedAcceptance, LogitsByHand) {
  const std::vector<float> exact{0.0F, std::log(2.0F), std::log(1.0F)}, row{std::log(2.0F), 0.0F, 0.0F};
  const DistributionChange change = logits_change(exact, row);
  EXPECT_NEAR(change.total_variation, 0.25, 1e-6);
  EXPECT_NEAR(change.kl, 0.25 * std::log(0.5) + 0.5 * std::log(2.0), 1e-6);
  EXPECT_TRUE(change.top1_changed);
  const DistributionChange none = logits_change(row, row);
  EXPECT_EQ(none.total_variation, 0);
  EXPECT_EQ(none.kl, 0);
  EXPECT_FALSE(none.top1_changed);
}

// ---- the sampler's side

TEST(BiasedAcceptance, TheSamplerComparesWhatTheFiltersLeft) {
  const std::vector<float> logits{1.0F, 3.0F, 2.0F, 2.0F, 0.0F};
  SamplerSettings settings;
  settings.top_k = 4;
  Sampler sampler(settings);
  sampler.sample(logits, {}, 0);
  for (TokenId a = 0; a < 5; ++a)
    for (TokenId b = 0; b < 5; ++b) {
      const bool expected =
          a != 4 && b != 4 && logits[static_cast<std::size_t>(a)] >= logits[static_cast<std::size_t>(b)];
      EXPECT_EQ(sampler.at_least_as_likely(a, b), expected) << a << ", " << b;
    }
  settings.presence_penalty = 2.5F;  // 0.5, 2, 2 of the tokens that the prefix holds are left of 3
  Sampler penalised(settings);
  penalised.sample(logits, std::vector<TokenId>{1}, 0);
  EXPECT_FALSE(penalised.at_least_as_likely(1, 2));
  EXPECT_TRUE(penalised.at_least_as_likely(2, 1));
  settings = {};
  settings.temperature = 0.0F;
  Sampler greedy(settings);
  greedy.sample(logits, {}, 0);
  EXPECT_FALSE(greedy.at_least_as_likely(1, 1));
}

// ---- words

TEST(Lossy, Words) {
  Policy::Lossy lossy;
  EXPECT_EQ(lossy_status(lossy, 3, {}), "");
  EXPECT_EQ(lossy_switches(lossy), "");
  lossy.biased_acceptance = true;
  EXPECT_EQ(lossy_status(lossy, 1, {}), "lossy: 1 token kept though rejected");
  EXPECT_EQ(lossy_banner(lossy).find("LOSSY: biased acceptance. The text is not that of the model: it depends on what "
                                     "was drafted."),
            0U);
  lossy.tail_route_skip = 0.05;
  EXPECT_EQ(lossy_switches(lossy), "biased acceptance, tail-route skip 0.05");
  EXPECT_EQ(lossy_status(lossy, 12, {.rows = 200, .routes = 1200, .skipped = 10, .weight = 1.5}),
            "lossy: 12 tokens kept though rejected, 0.75 % of router weight skipped");
  EXPECT_NE(lossy_banner(lossy).find("it depends on what was drafted and which experts are on the card."),
            std::string::npos);
}

TEST(Lossy, Certificate) {
  LossyResult result;
  result.tokens = 11;
  result.windows = 1;
  result.skipped = {.rows = 100, .routes = 600, .skipped = 60, .weight = 2.0};
  for (std::size_t i = 0; i < 10; ++i) {
    LossyPosition p;
    p.position = i + 1;
    p.exact_nll = 1.0;
    p.nll = 1.5;
    p.logits = {.total_variation = 0.01 * static_cast<double>(i), .kl = 0.002, .top1_changed = i == 0};
    if (i % 2 == 0) p.head = DistributionChange{0.5, 0.25, i < 4, 0.4};
    result.positions.push_back(p);
  }
  LossyEvalOptions options;
  options.lossy = {.biased_acceptance = true, .tail_route_skip = 0.05};
  options.sampling.top_k = 20;
  EXPECT_EQ(
      lossy_certificate(result, options),
      "certificate of biased acceptance, tail-route skip 0.05: 11 tokens, 10 positions, windows of 1024: 1\n"
      "  tail-route skip, softmax of the logits against exact: 2.00 % of router weight and 10.00 % of routes "
      "skipped\n"
      "    total variation mean 4.500e-02, p99 8.910e-02, largest 9.000e-02\n"
      "    KL(exact || lossy) mean 2.000e-03, p99 2.000e-03, largest 2.000e-03\n"
      "    most likely token changed at 10.00 % of positions\n"
      "    perplexity 4.4817, exact 2.7183, ratio 1.648721\n"
      "  biased acceptance, first drafts of the head, 5 positions, temperature 1, top-k 20, top-p 1, min-p 0: kept "
      "though rejected 40.00 %\n"
      "    total variation mean 5.000e-01, p99 5.000e-01, largest 5.000e-01\n"
      "    KL(lossy || exact check) mean 2.500e-01, p99 2.500e-01, largest 2.500e-01\n"
      "    most likely token changed at 40.00 % of positions\n"
      "  biased acceptance, first drafts of the lookup: none\n");
  const std::string csv = lossy_csv(result);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 11);
  EXPECT_NE(csv.find("\n0,1,0,1.5,1,0,0.002,1,0.5,0.25,1,0.4,,,,\n"), std::string::npos);
  options.lossy.biased_acceptance = false;
  EXPECT_EQ(lossy_certificate(result, options).find("biased"), std::string::npos);
}

}  // namespace
}  // namespace tandem::testing
