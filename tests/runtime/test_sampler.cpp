// The sampler against: the published known answers of Philox, closed forms in double, and the softmax distribution.
#include "runtime/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "placement/check.h"
#include "runtime/philox.h"

namespace tandem {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> random_logits(std::size_t n, std::uint32_t seed, float spread) {
  std::mt19937 generator(seed);
  std::vector<float> logits(n);
  for (float& x : logits) {
    x = (static_cast<float>(generator() >> 8) * 0x1p-24F - 0.5F) * spread;
  }
  return logits;
}

std::set<TokenId> ids(std::span<const Candidate> candidates) {
  std::set<TokenId> result;
  for (const Candidate& candidate : candidates) result.insert(candidate.id);
  return result;
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

// ---- noise ----

TEST(Philox, KnownAnswers) {
  const auto expect = [](PhiloxBlock counter, std::uint32_t key0, std::uint32_t key1,
                         std::array<std::uint32_t, 4> want) {
    const PhiloxBlock got = philox4x32_10(counter, key0, key1);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(got.lane[i], want[i]) << i;
  };
  expect({{0, 0, 0, 0}}, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  expect({{~0U, ~0U, ~0U, ~0U}}, ~0U, ~0U, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  expect({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(Philox, SamplingBitsAreAddressedBySeedPositionAndToken) {
  const std::uint64_t seed = 0x0123456789abcdefULL;
  const std::uint64_t position = 0x1122334455667788ULL;
  for (const std::uint32_t token : {0U, 1U, 2U, 3U, 4U, 248319U}) {
    const PhiloxBlock block = philox4x32_10({{0x55667788U, 0x11223344U, token / 4, 0}}, 0x89abcdefU, 0x01234567U);
    EXPECT_EQ(sampling_bits(seed, position, token), block.lane[token % 4]) << token;
  }
}

TEST(Philox, GumbelFollowsItsFormulaOverAllBits) {
  std::vector<std::uint32_t> cases{0, 1, 2, 127, 128, 255, 1U << 23, 1U << 31, ~0U, ~0U - 1, ~0U - 128, ~0U - 1000};
  std::mt19937 generator(5);
  for (int i = 0; i < 20000; ++i) cases.push_back(static_cast<std::uint32_t>(generator()) >> (generator() % 32));
  for (const std::uint32_t r : cases) {
    // In double, with the same clamp of v below 1.
    const double v = std::min((static_cast<double>(r) + 0.5) * 0x1p-32, 1.0 - 0x1p-24);
    const double want = -std::log(-std::log1p(-v));
    const auto got = static_cast<double>(gumbel_from_bits(r));
    // Near v = 1 the rounding of v to binary32 moves 1 - v by up to half its last place.
    const double slack = 4e-6 + 0x1p-25 / ((1.0 - v) * -std::log1p(-v)) * 1.01;
    EXPECT_NEAR(got, want, slack) << r;
    EXPECT_LE(got, static_cast<double>(kMaxGumbel)) << r;
    EXPECT_GE(got, -2.82) << r;
  }
}

// ---- arg max ----

TEST(Argmax, TiesGoToTheLowerId) {
  EXPECT_EQ(argmax_token(std::vector<float>{-1, 3, 3, 2}), 1);
  EXPECT_EQ(argmax_token(std::vector<float>{-kInfinity, -7, -kInfinity}), 1);
}

// Wherever it stands, whole strips of lanes or not; among the k best as well.
TEST(Argmax, FindsEveryPlace) {
  SamplerSettings one;
  one.top_k = 1;
  Sampler sampler(one);
  for (const std::size_t n : {1UL, 9UL, 16UL, 17UL, 511UL, 512UL, 513UL, 530UL, 1100UL}) {
    std::vector<float> logits = random_logits(n, static_cast<std::uint32_t>(n), 2.0F);
    for (std::size_t i = 0; i < n; ++i) {
      const float before = std::exchange(logits[i], 7.0F);
      ASSERT_EQ(argmax_token(logits), static_cast<TokenId>(i)) << n;
      ASSERT_EQ(sampler.filter(logits, {}, 0)[0].id, static_cast<TokenId>(i)) << n;
      logits[i] = before;
    }
  }
}

TEST(Argmax, RefusesWhatIsNoNumber) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(message_of([&] {
              argmax_token(std::vector<float>{1, 2, nan, 4});
            }).find("nan for token 2"),
            std::string::npos);
  EXPECT_NE(message_of([&] {
              argmax_token(std::vector<float>{1, kInfinity});
            }).find("inf for token 1"),
            std::string::npos);
  EXPECT_NE(message_of([&] {
              argmax_token(std::vector<float>{-kInfinity, -kInfinity});
            }).find("every token"),
            std::string::npos);
  Sampler sampler(SamplerSettings{});
  EXPECT_NE(message_of([&] { sampler.sample(std::vector<float>{nan, 1}, {}, 0); }).find("token 0"), std::string::npos);
  EXPECT_NE(message_of([&] { sampler.sample(std::vector<float>{-kInfinity}, {}, 0); }).find("every token"),
            std::string::npos);
}

TEST(Settings, OutOfRangeNamesTheSetting) {
  const auto expect = [](auto change, const std::string& name) {
    SamplerSettings settings;
    change(settings);
    const std::string message = message_of([&] { check_settings(settings); });
    EXPECT_EQ(message.rfind(name, 0), 0U) << message;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  expect([](auto& s) { s.temperature = -1; }, "temperature");
  expect([](auto& s) { s.temperature = 1e-6F; }, "temperature");
  expect([&](auto& s) { s.temperature = nan; }, "temperature");
  expect([](auto& s) { s.top_k = -1; }, "top-k");
  expect([](auto& s) { s.top_p = 0; }, "top-p");
  expect([](auto& s) { s.top_p = 1.5F; }, "top-p");
  expect([&](auto& s) { s.top_p = nan; }, "top-p");
  expect([](auto& s) { s.min_p = -0.1F; }, "min-p");
  expect([](auto& s) { s.presence_penalty = kInfinity; }, "presence-penalty");
  expect([](auto& s) { s.repetition_penalty = 0; }, "repetition-penalty");
  EXPECT_NO_THROW(check_settings(SamplerSettings{}));
}

// ---- filters, against sorting everything in double ----

TEST(Filter, TopKKeepsTheBestWithTiesToTheLowerId) {
  for (const std::uint32_t seed : {1U, 2U, 3U}) {
    std::vector<float> logits = random_logits(500, seed, 6.0F);
    for (float& x : logits) x = std::round(x * 4.0F) / 4.0F;  // many ties
    std::vector<TokenId> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) {
      return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
    });
    for (const int k : {1, 2, 7, 20, 499, 500, 1000}) {
      SamplerSettings settings;
      settings.top_k = k;
      Sampler sampler(settings);
      const std::size_t n = std::min<std::size_t>(order.size(), static_cast<std::size_t>(k));
      EXPECT_EQ(ids(sampler.filter(logits, {}, 0)),
                std::set<TokenId>(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n)))
          << k;
    }
  }
}

TEST(Filter, TopPKeepsTheSmallestSetThatReachesIt) {
  // Probabilities 0.5, 0.25, 0.15, 0.1 in a mixed order of ids.
  const std::vector<float> logits{std::log(0.15F), std::log(0.5F), std::log(0.1F), std::log(0.25F)};
  const auto kept = [&](float top_p, int top_k) {
    SamplerSettings settings;
    settings.top_p = top_p;
    settings.top_k = top_k;
    Sampler sampler(settings);
    return ids(sampler.filter(logits, {}, 0));
  };
  EXPECT_EQ(kept(0.49F, 0), (std::set<TokenId>{1}));
  EXPECT_EQ(kept(0.51F, 0), (std::set<TokenId>{1, 3}));
  EXPECT_EQ(kept(0.74F, 0), (std::set<TokenId>{1, 3}));
  EXPECT_EQ(kept(0.76F, 0), (std::set<TokenId>{0, 1, 3}));
  EXPECT_EQ(kept(0.91F, 0), (std::set<TokenId>{0, 1, 2, 3}));
  // After top_k = 2 the two left have 2/3 and 1/3: the softmax is taken over what is left.
  EXPECT_EQ(kept(0.66F, 2), (std::set<TokenId>{1}));
  EXPECT_EQ(kept(0.67F, 2), (std::set<TokenId>{1, 3}));
}

TEST(Filter, TopPOverAWideVocabularyMatchesDouble) {
  const std::vector<float> logits = random_logits(30000, 9, 12.0F);
  std::vector<double> sorted(logits.begin(), logits.end());
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  double total = 0;
  for (const double x : sorted) total += std::exp(x - sorted[0]);
  for (const double p : {0.05, 0.3, 0.8, 0.95}) {
    std::size_t want = 0;
    for (double sum = 0; sum < p * total; ++want) sum += std::exp(sorted[want] - sorted[0]);
    SamplerSettings settings;
    settings.top_p = static_cast<float>(p);
    Sampler sampler(settings);
    const std::size_t got = sampler.filter(logits, {}, 0).size();
    // Float weights (1.2e-7 each) move the border by at most a few of thousands of nearly equal tail tokens.
    EXPECT_NEAR(static_cast<double>(got), static_cast<double>(want), 1.0 + 2e-4 * static_cast<double>(want)) << p;
  }
}

TEST(Filter, MinPIsRelativeToTheBest) {
  const std::vector<float> logits{0.0F, std::log(0.5F), std::log(0.1F), std::log(0.05F)};
  const auto kept = [&](float min_p, float temperature) {
    SamplerSettings settings;
    settings.min_p = min_p;
    settings.temperature = temperature;
    Sampler sampler(settings);
    return ids(sampler.filter(logits, {}, 0));
  };
  EXPECT_EQ(kept(0.09F, 1), (std::set<TokenId>{0, 1, 2}));
  EXPECT_EQ(kept(0.11F, 1), (std::set<TokenId>{0, 1}));
  EXPECT_EQ(kept(1.0F, 1), (std::set<TokenId>{0}));
  EXPECT_EQ(kept(0.11F, 2), (std::set<TokenId>{0, 1, 2, 3}));  // temperature comes first: ratios become square roots
}

TEST(Filter, ScoresArePenalisedLogitsOverTemperature) {
  const std::vector<float> logits{2.0F, -2.0F, 1.0F, 0.5F, -kInfinity};
  const std::vector<TokenId> prefix{0, 1, 1, 2, 2, 2};  // answer: 2, 2 (from 4 on)
  SamplerSettings settings;
  settings.temperature = 0.5F;
  settings.repetition_penalty = 4.0F;
  settings.presence_penalty = 0.125F;
  const auto scores = [&](std::size_t window) {
    settings.penalty_window = window;
    Sampler sampler(settings);
    std::vector<float> result(4, 99.0F);
    for (const Candidate& candidate : sampler.filter(logits, prefix, 4)) {
      result.at(static_cast<std::size_t>(candidate.id)) = candidate.score;
    }
    return result;
  };
  // Repetition: positive divided, negative multiplied, once per token. Presence: only tokens of the answer, once.
  EXPECT_EQ(scores(0), (std::vector<float>{1.0F, -16.0F, (0.25F - 0.125F) * 2, 1.0F}));
  EXPECT_EQ(scores(5), (std::vector<float>{4.0F, -16.0F, 0.25F, 1.0F}));
  EXPECT_EQ(scores(1), (std::vector<float>{4.0F, -4.0F, 0.25F, 1.0F}));
}

TEST(Filter, PenaltiesDecideGreedyToo) {
  SamplerSettings settings;
  settings.temperature = 0.0F;
  const std::vector<float> logits{1.0F, 1.5F};
  const std::vector<TokenId> prefix{1};
  EXPECT_EQ(Sampler(settings).sample(logits, prefix, 0), 1);
  settings.presence_penalty = 1.0F;
  EXPECT_EQ(Sampler(settings).sample(logits, prefix, 0), 0);
  EXPECT_EQ(Sampler(settings).sample(logits, prefix, 1), 1);  // a token of the prompt is not penalised
}

// ---- the draw ----

// What sample() must return, the long way: noise for every survivor.
TokenId slow_sample(const SamplerSettings& settings, std::span<const float> logits, std::span<const TokenId> prefix) {
  Sampler sampler(settings);
  Candidate best{-1, -kInfinity};
  for (const Candidate& candidate : sampler.filter(logits, prefix, prefix.size())) {
    const float value =
        candidate.score + gumbel_noise(settings.seed, prefix.size(), static_cast<std::uint32_t>(candidate.id));
    if (value > best.score || (value == best.score && candidate.id < best.id)) best = {candidate.id, value};
  }
  return best.id;
}

TEST(Sample, IsTheArgMaxOfScorePlusNoise) {
  std::vector<TokenId> prefix;
  for (int i = 0; i < 60; ++i) {
    prefix.push_back(i);
    const std::vector<float> logits = random_logits(3001, static_cast<std::uint32_t>(i), i % 2 == 0 ? 10.0F : 80.0F);
    for (const int top_k : {0, 20}) {
      SamplerSettings settings;
      settings.temperature = 0.7F;
      settings.top_k = top_k;
      settings.seed = 0x500000007ULL;
      const TokenId expected = slow_sample(settings, logits, prefix);
      EXPECT_EQ(Sampler(settings).sample(logits, prefix, 0), expected) << i;
      if (top_k > 0) continue;
      EXPECT_EQ(choose_token(logits, {settings.temperature, settings.seed}, prefix.size()).token, expected) << i;
    }
  }
}

TEST(Sample, DependsOnSeedAndPositionOnly) {
  const std::vector<float> logits = random_logits(400, 3, 2.0F);
  SamplerSettings settings;
  settings.seed = 42;
  Sampler sampler(settings);
  std::vector<TokenId> first, prefix;
  for (int i = 0; i < 50; ++i, prefix.push_back(7)) first.push_back(sampler.sample(logits, prefix, 0));
  // Backwards and with a fresh object: the same tokens.
  for (std::size_t i = 50; i-- > 0;) {
    EXPECT_EQ(Sampler(settings).sample(logits, std::span(prefix).first(i), 0), first[i]);
  }
  EXPECT_GT(std::set<TokenId>(first.begin(), first.end()).size(), 30U);
  // Both halves of the seed count.
  for (const std::uint64_t other : {std::uint64_t{43}, std::uint64_t{42} + (std::uint64_t{1} << 32)}) {
    settings.seed = other;
    Sampler changed(settings);
    int equal = 0;
    for (std::size_t i = 0; i < 50; ++i) equal += changed.sample(logits, std::span(prefix).first(i), 0) == first[i];
    EXPECT_LT(equal, 10);
  }
}

// Pearson's chi-square of the drawn tokens against softmax(score) of the survivors.
void expect_softmax(const SamplerSettings& settings, const std::vector<float>& logits, double limit) {
  Sampler sampler(settings);
  std::vector<double> expected(logits.size(), 0.0), counted(logits.size(), 0.0);
  double total = 0;
  for (const Candidate& candidate : sampler.filter(logits, {}, 0)) {
    total += expected[static_cast<std::size_t>(candidate.id)] = std::exp(static_cast<double>(candidate.score));
  }
  constexpr std::size_t kDraws = 40000;
  std::vector<TokenId> prefix(kDraws, 0);
  for (std::size_t i = 0; i < kDraws; ++i) {
    ++counted[static_cast<std::size_t>(sampler.sample(logits, std::span(prefix).first(i), 0))];
  }
  double chi_square = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double want = expected[i] / total * kDraws;
    if (want == 0.0) {
      EXPECT_EQ(counted[i], 0.0) << i;
      continue;
    }
    chi_square += (counted[i] - want) * (counted[i] - want) / want;
  }
  EXPECT_LT(chi_square, limit);
}

TEST(Sample, FollowsTheSoftmax) {
  const std::vector<float> logits = random_logits(24, 11, 4.0F);
  SamplerSettings settings;
  settings.seed = 2024;
  expect_softmax(settings, logits, 49.7);  // 23 degrees of freedom: exceeded once in 1,000 by chance
  settings.temperature = 0.6F;
  expect_softmax(settings, logits, 49.7);
  settings.top_k = 12;
  expect_softmax(settings, logits, 31.3);  // 11 degrees of freedom
  settings.top_k = 0;
  settings.top_p = 0.8F;
  settings.min_p = 0.05F;
  expect_softmax(settings, logits, 49.7);
}

TEST(Sample, NeighbouringTokensAreIndependent) {
  // Two tokens of one Philox block and two of different blocks, equal logits: each of the four cells of two draws one
  // position apart has a quarter of the cases.
  for (const TokenId second : {1, 5}) {
    std::vector<float> logits(8, -kInfinity);
    logits[0] = logits[static_cast<std::size_t>(second)] = 0.0F;
    Sampler sampler(SamplerSettings{});
    const std::vector<TokenId> prefix(20001, 0);
    std::array<double, 4> cells{};
    for (std::size_t i = 0; i < 20000; ++i) {
      const bool a = sampler.sample(logits, std::span(prefix).first(i), 0) == 0;
      const bool b = sampler.sample(logits, std::span(prefix).first(i + 1), 0) == 0;
      ++cells[(a ? 2U : 0U) + (b ? 1U : 0U)];
    }
    double chi_square = 0;
    for (const double n : cells) chi_square += (n - 5000.0) * (n - 5000.0) / 5000.0;
    EXPECT_LT(chi_square, 25.0) << second;  // overlapping pairs: looser than the 16.3 of independent ones
  }
}

TEST(Sample, FullVocabularyIsFast) {
#ifndef NDEBUG
  GTEST_SKIP() << "times mean nothing in a debug build";
#endif
  const std::vector<float> logits = random_logits(248320, 8, 30.0F);
  SamplerSettings settings;  // the published defaults of the architecture, with every step on
  settings.temperature = 0.7F;
  settings.top_k = 20;
  settings.top_p = 0.8F;
  settings.presence_penalty = 1.5F;
  Sampler sampler(settings);
  const std::vector<TokenId> prefix(4096, 17);
  double best = 1e9;
  for (std::size_t i = 0; i < 20; ++i) {
    const auto start = std::chrono::steady_clock::now();
    sampler.sample(logits, prefix, 100);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  EXPECT_LT(best, 1e-3);
  RecordProperty("microseconds", static_cast<int>(best * 1e6));
}

}  // namespace
}  // namespace tandem
