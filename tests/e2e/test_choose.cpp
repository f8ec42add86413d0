// Tokens that the machine chooses by itself (Ops::choose) are those of the host's sampler, and an answer made of them
// is the answer.
#include <gtest/gtest.h>

#include "cpu/cpu_ops.h"
#include "runtime/drafting.h"
#include "runtime/generate.h"
#include "runtime/mtp_drafter.h"
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
      Prompt found;
      for (const Chosen& one : chosen.tokens) found.push_back(one.token);
      EXPECT_EQ(found, expected) << w << " rows, T " << temperature;
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

// Drafts of chains that hang on every position, some behind a walk over tokens that are given.
std::vector<Draft> drafts_of(Ops& ops, const Model& model, const SamplerSettings& settings) {
  Pipeline pipeline(model, ops, 64);
  SequenceState state(model.shape, {kContext, KvType::kF16}, ops.memory());
  MtpDrafter head(pipeline, state, MtpNorm::kFull, MtpAttention::kSparse);
  PipelineDecoder decoder(pipeline, state, 64, nullptr, &head);
  const std::span<const TokenId> tokens = std::span(prompts()[2]).first(90);
  std::vector<Draft> drafts;
  EXPECT_TRUE(decoder.append(tokens.first(60), {}, {}));
  head.start(50, settings);
  for (std::size_t i = 60; i + 4 < tokens.size(); ++i) {
    EXPECT_TRUE(head.begin(tokens.first(i + 1)));
    Prompt prefix(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(i + 1));
    if (i % 3 == 0) {  // over two of the text's own
      head.advance(tokens[i + 1], false);
      head.advance(tokens[i + 2], true);
      prefix.insert(prefix.end(), {tokens[i + 1], tokens[i + 2]});
    }
    for (int depth = 0; depth < 3; ++depth) {
      drafts.push_back(head.draft(prefix));
      prefix.push_back(drafts.back().token);
      if (depth < 2) head.advance(prefix.back(), true);
    }
    head.end();
    decoder.open(tokens.subspan(i, 1));
    decoder.keep(1);
  }
  return drafts;
}

// The machine's own choice of a draft is the sampler's from the logits, on every machine, for all tokens and for some,
// and so is its probability.
TEST_F(Choose, DraftsAreTheSamplersPick) {
  for (const bool some : {false, true}) {
    Model model = Model::open(TANDEM_SOURCE_DIR "/models/flash-next-nano-q4.gguf");
    if (some) {
      std::vector<TokenId> ids;
      for (TokenId id = 5; id < 4096; id += 3) ids.push_back(id);
      model.mtp->reduce_output(ids);
    }
    for (const float temperature : {0.0F, 0.8F}) {
      SamplerSettings by_host = settings_of(temperature);
      by_host.presence_penalty = 1e-30F;  // changes no logit, but is a penalty
      ASSERT_TRUE(plain_choice(settings_of(temperature)) && !plain_choice(by_host));
      CpuOps cpu(1);
      const std::vector<Draft> expected = drafts_of(cpu, model, by_host);
      for (const bool host : {false, true}) {
        const std::unique_ptr<Ops> ops = make_model_machine(2);
        const std::vector<Draft> found = drafts_of(*ops, model, host ? by_host : settings_of(temperature));
        ASSERT_EQ(found.size(), expected.size());
        for (std::size_t i = 0; i < found.size(); ++i) {
          EXPECT_EQ(found[i].token, expected[i].token) << i << ", T " << temperature;
          EXPECT_EQ(found[i].confidence, expected[i].confidence) << i << ", T " << temperature;
          EXPECT_GT(found[i].confidence, 0.0F);
          EXPECT_LE(found[i].confidence, 1.0F);
        }
      }
    }
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
