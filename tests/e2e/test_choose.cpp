// Tokens that the machine chooses by itself (Ops::choose) are those of the host's sampler, and an answer made of them
// is the answer.
#include <gtest/gtest.h>

#include "runtime/drafting.h"
#include "runtime/generate.h"
#include "tests/e2e/model_machine.h"
#include "tests/e2e/nano_prompts.h"

namespace tandem::testing {
namespace {

SamplerSettings settings_of(float temperature) {
  SamplerSettings settings;
  settings.temperature = temperature;
  settings.seed = 0x9E3779B97F4A7C15ULL;
  return settings;
}

class Choose : public ::testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_MACHINE();
    ops_ = make_model_machine(2);
    pipeline_.emplace(nano(), *ops_, 64);
  }
  SequenceState new_state() const { return {nano().shape, {kContext, KvType::kF16}, ops_->memory()}; }
  std::unique_ptr<Ops> ops_;
  std::optional<Pipeline> pipeline_;
};

// Passes of every width, some of whose rows are taken back, once with logits and once with a choice.
TEST_F(Choose, HasTheTokensOfTheSampler) {
  const Prompt& tokens = prompts()[2];
  for (const float temperature : {0.0F, 0.7F, 1.3F}) {
    const SamplerSettings settings = settings_of(temperature);
    const std::optional<TokenChoice> choice = plain_choice(settings);
    ASSERT_TRUE(choice);
    Sampler sampler(settings);
    SequenceState with_logits = new_state(), with_choice = new_state();
    std::size_t turn = 0;
    for (const std::size_t w : {1UL, 2UL, 5UL, 16UL, 1UL, 3UL, 5UL, 5UL, 16UL, 2UL}) {
      const auto rows = std::span<const TokenId>(tokens).subspan(with_logits.position(), w);
      const bool window = turn % 3 != 2;
      const PassMode mode = window ? PassMode::kWindow : PassMode::kCommit;
      const LogitRows wanted = turn % 4 == 3 ? LogitRows::kLast : LogitRows::kAll;
      const std::size_t first = wanted == LogitRows::kLast ? w - 1 : 0;
      Prompt expected;
      const PassOutput logits = pipeline_->forward(with_logits, rows, mode, wanted);
      EXPECT_TRUE(logits.tokens.empty());
      for (std::size_t r = first; r < w; ++r) {
        Prompt prefix(with_logits.tokens().begin(), with_logits.tokens().end());
        if (window) prefix.insert(prefix.end(), rows.begin(), rows.end());
        prefix.resize(prefix.size() - (w - 1 - r));
        expected.push_back(sampler.sample(logits.logits.span(r - first), prefix, prefix.size()));
      }
      const PassOutput chosen = pipeline_->forward(with_choice, rows, mode, wanted, choice);
      EXPECT_EQ(Prompt(chosen.tokens.begin(), chosen.tokens.end()), expected) << w << " rows, T " << temperature;
      EXPECT_FALSE(chosen.logits);
      if (window) {
        const std::size_t kept = 1 + turn % w;
        with_logits.keep(kept);
        with_choice.keep(kept);
      }
      ++turn;
    }
  }
}

TEST_F(Choose, AnswersAreTheSame) {
  for (const float temperature : {0.0F, 0.8F}) {
    const auto answer = [&](LogitsHash* hash) {
      SequenceState state = new_state();
      SequenceDrafter drafter(*pipeline_, state, {.head = true, .lookup = true, .depth = 3});
      PipelineDecoder decoder(*pipeline_, state, 64, hash, drafter.head());
      Sampler sampler(settings_of(temperature));
      GenerateOptions options;
      options.max_tokens = 40;
      options.answer_start = 50;
      options.drafter = drafter.drafter();
      GenerateHooks hooks;
      hooks.token_bytes = [](TokenId) { return std::string_view("x"); };
      GenerateResult result =
          generate(decoder, sampler, std::span<const TokenId>(prompts()[1]).first(50), options, hooks);
      EXPECT_GT(result.drafts.tokens, result.drafts.rounds) << "no draft was right";
      return result.tokens;
    };
    LogitsHash hash;  // whoever hashes logits has to look at them
    EXPECT_EQ(answer(nullptr), answer(&hash)) << temperature;
  }
}

TEST(PlainChoice, IsRefusedWherePrefixOrFiltersCount) {
  EXPECT_TRUE(plain_choice(settings_of(0.0F)));
  EXPECT_TRUE(plain_choice(settings_of(1.0F)));
  const auto with = [](auto change) {
    SamplerSettings settings = settings_of(1.0F);
    change(settings);
    return plain_choice(settings).has_value();
  };
  EXPECT_FALSE(with([](SamplerSettings& s) { s.top_k = 20; }));
  EXPECT_FALSE(with([](SamplerSettings& s) { s.top_p = 0.9F; }));
  EXPECT_FALSE(with([](SamplerSettings& s) { s.min_p = 0.1F; }));
  EXPECT_FALSE(with([](SamplerSettings& s) { s.presence_penalty = 1.0F; }));
  EXPECT_FALSE(with([](SamplerSettings& s) { s.repetition_penalty = 1.1F; }));
  // Filters keep the largest logit, penalties may not.
  EXPECT_TRUE(with([](SamplerSettings& s) { s.top_k = 20, s.top_p = 0.5F, s.temperature = 0.0F; }));
  EXPECT_FALSE(with([](SamplerSettings& s) { s.presence_penalty = 1.0F, s.temperature = 0.0F; }));
}

}  // namespace
}  // namespace tandem::testing
