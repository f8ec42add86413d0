// The card's choice of a token against the host's sampler.
#include <gtest/gtest.h>

#include <limits>

#include "gpu/kernels/sample.h"
#include "runtime/sampler.h"
#include "tests/gpu/card_call.h"
#include "tests/gpu/gpu_test.h"
#include "tests/ops/cases.h"
#include "tests/ops/guarded.h"

namespace tandem::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::int32_t kNone = std::numeric_limits<std::int32_t>::max();

using Sample = GpuTest;

struct Choice {
  std::vector<Chosen> chosen;
  std::int32_t bad = kNone;
};

Choice on_card(const Floats& logits, float temperature, std::uint64_t seed, std::size_t position,
               const std::vector<TokenId>& ids = {}) {
  Choice choice;
  choice.chosen.resize(logits.rows());
  const gpu::SampleNumbers numbers{seed, temperature, static_cast<std::int32_t>(position)};
  CardCall call;
  void* work = call.work(gpu::sample_bytes(logits.rows()));
  Chosen* chosen = call.changed(choice.chosen.data(), logits.rows());
  const TokenId* card_ids = ids.empty() ? nullptr : call.values(ids.data(), ids.size());
  std::int32_t* bad = call.changed(&choice.bad, 1);
  if (temperature == 0.0F)
    gpu::arg_max(call.in(rows_of(logits)), card_ids, chosen, bad, work, nullptr);
  else
    gpu::sample(call.in(rows_of(logits)), card_ids, call.values(&numbers, 1), chosen, bad, work, nullptr);
  call.finish();
  return choice;
}

TEST_F(Sample, HasTheTokensOfTheHost) {
  Random random(91);
  for (const std::size_t vocab : {1U, 31U, 256U, 40000U, 248320U})
    for (const float temperature : {0.0F, 0.3F, 1.0F, 1.7F})
      for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{0x123456789ABCDEF}}) {
        const std::size_t rows = vocab > 100000 ? 4 : 16, position = random.below(5000);
        Floats logits(rows, vocab, 3);
        logits.fill([&] { return random.below(50) == 0 ? -kInfinity : 4.0F * draw(random, Values::kNormal); });
        for (std::size_t r = 0; r < rows; ++r) logits.row(r)[random.below(vocab)] = 3.0F;  // never all -infinity
        SamplerSettings settings;
        settings.temperature = temperature;
        settings.seed = seed;
        Sampler sampler(settings);
        std::vector<TokenId> some;  // of a vocabulary three times as large
        for (std::size_t i = 0; i < vocab; ++i) some.push_back(static_cast<TokenId>(3 * i + random.below(3)));
        for (const std::vector<TokenId>& ids : {std::vector<TokenId>{}, some}) {
          const Choice choice = on_card(logits, temperature, seed, position, ids);
          EXPECT_EQ(choice.bad, kNone);
          for (std::size_t r = 0; r < rows; ++r) {
            const std::vector<TokenId> prefix(position + r, 0);
            const std::span<const float> row(logits.row(r), vocab);
            const TokenId expected = sampler.sample(row, prefix, prefix.size(), ids);
            EXPECT_EQ(choice.chosen[r].token, expected) << "row " << r << " of " << vocab << ", T " << temperature;
            EXPECT_EQ(choice.chosen[r].logit, row[logit_of(expected, ids, vocab).value()]);
          }
        }
      }
}

TEST_F(Sample, TiesGoToTheLowerToken) {
  Random random(92);
  for (const std::size_t vocab : {300U, 248320U})
    for (int i = 0; i < 10; ++i) {
      Floats logits(2, vocab, 3);
      logits.fill([&] { return random.below(2) == 0 ? 0.0F : -0.0F; });
      const std::size_t first = random.below(vocab);
      for (std::size_t t = first; t < vocab; t += 1 + random.below(1000)) logits.row(0)[t] = 2.0F;
      const Choice choice = on_card(logits, 0.0F, 0, 0);
      EXPECT_EQ(choice.chosen[0].token, static_cast<std::int32_t>(first));
      EXPECT_EQ(choice.chosen[1].token, 0);
    }
}

TEST_F(Sample, ReportsTheFirstBadRow) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity})
    for (const float temperature : {0.0F, 1.0F})
      for (const std::size_t at : {0U, 5000U, 9999U}) {
        Floats logits(4, 10000);
        logits.fill([] { return 1.0F; });
        logits.row(2)[at] = bad;
        logits.row(3)[1] = bad;
        EXPECT_EQ(on_card(logits, temperature, 1, 0).bad, 2);
      }
  Floats logits(3, 1000);
  logits.fill([] { return -kInfinity; });
  std::fill_n(logits.row(0), 1000, 1.0F);
  EXPECT_EQ(on_card(logits, 0.0F, 0, 0).bad, 1) << "nothing above -infinity";
}

}  // namespace
}  // namespace tandem::testing
