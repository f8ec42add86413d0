// The generation loop with drafts, right and wrong ones at random: everything that can be seen is as without them.
#include <gtest/gtest.h>

#include <random>

#include "runtime/generate.h"
#include "tests/runtime/scripted_decoder.h"

namespace tandem::testing {
namespace {

// Proposes up to `most_` tokens of the script, each wrong with some chance, and checks what it is told.
class ScriptedDrafter : public Drafter {
 public:
  ScriptedDrafter(std::vector<TokenId> script, std::size_t prompt, std::size_t most, double wrong, std::uint32_t seed)
      : script_(std::move(script)), prompt_(prompt), most_(most), wrong_(wrong), random_(seed) {}

  void start(std::span<const TokenId> prefix, std::size_t answer_start, const SamplerSettings& sampling,
             std::span<const TokenId> stop_ids) override {
    EXPECT_EQ(prefix.size(), prompt_);
    EXPECT_EQ(answer_start, 2U);
    EXPECT_EQ(sampling.seed, 77U);
    EXPECT_EQ(stop_ids.size(), 1U);
    ++starts;
  }
  std::span<const Draft> propose(std::vector<TokenId>& prefix, std::size_t most) override {
    EXPECT_FALSE(open_);
    open_ = true;
    drafts_.clear();
    std::uniform_real_distribution<double> draw(0, 1);
    most_asked = std::max(most_asked, most);
    const std::size_t from = prefix.size() - prompt_;
    const std::size_t count = std::min(most, static_cast<std::size_t>(random_() % (most_ + 1)));
    for (std::size_t i = 0; i < count; ++i) {
      TokenId token = script_[std::min(from + i, script_.size() - 1)];
      if (draw(random_) < wrong_) token = static_cast<TokenId>(random_() % kTexts.size());
      drafts_.push_back({token, i % 2 == 0 ? DraftSource::kHead : DraftSource::kLookup});
      prefix.push_back(token);
    }
    prefix.resize(prefix.size() - count);
    at_ = from;
    return drafts_;
  }
  void settle(const DraftRound& round) override {
    EXPECT_TRUE(open_);
    open_ = false;
    EXPECT_EQ(round.rows, 1 + drafts_.size());
    EXPECT_EQ(round.misses, static_cast<double>(round.rows));  // the decoder counts one a row
    EXPECT_GE(round.round_seconds, round.pass_seconds);
    for (std::size_t i = 0; i < round.truth.size(); ++i)
      EXPECT_EQ(round.truth[i], script_[std::min(at_ + i, script_.size() - 1)]);
    EXPECT_FALSE(ended_);  // nothing comes of a round only when the context is full
    ended_ = round.truth.empty();
    // Nothing is told beyond the first wrong draft.
    for (std::size_t i = 0; i + 1 < round.truth.size(); ++i) EXPECT_EQ(drafts_[i].token, round.truth[i]);
    tokens += round.truth.size();
    ++rounds;
    for (std::size_t i = 0; i < drafts_.size(); ++i) {
      const bool right = i < round.truth.size() && drafts_[i].token == round.truth[i];
      ++drafted[i % 2];
      accepted[i % 2] += right;
    }
  }
  bool open() const { return open_; }

  int starts = 0;
  std::size_t most_asked = 0, tokens = 0, rounds = 0;
  std::array<std::uint64_t, 2> drafted = {}, accepted = {};

 private:
  std::vector<TokenId> script_;
  std::size_t prompt_, most_;
  double wrong_;
  std::mt19937 random_;
  std::vector<Draft> drafts_;
  std::size_t at_ = 0;
  bool open_ = false, ended_ = false;
};

struct Case {
  std::vector<TokenId> script;
  std::size_t context = 100;
  std::size_t max_tokens = 0;
  std::vector<std::string> stops;
  int cancel_after = -1;
  SamplerSettings sampling;
};

struct Outcome {
  GenerateResult result;
  std::vector<std::string> pieces, warnings;
  std::vector<TokenId> committed, heard;
};

Outcome run(const Case& setup, ScriptedDrafter* drafter) {
  ScriptedDecoder decoder(setup.script, setup.context, kTexts.size());
  Sampler sampler(setup.sampling);
  const std::vector<TokenId> stop_ids{kEnd}, prompt{1, 1, 1};
  GenerateOptions options;
  options.max_tokens = setup.max_tokens;
  options.stop_strings = setup.stops;
  options.stop_ids = stop_ids;
  options.answer_start = 2;
  options.drafter = drafter;
  Outcome out;
  int asked = 0;
  GenerateHooks hooks;
  hooks.token_bytes = [](TokenId id) { return std::string_view(kTexts.at(static_cast<std::size_t>(id))); };
  hooks.on_text = [&](std::string_view bytes) { out.pieces.emplace_back(bytes); };
  hooks.on_token = [&](TokenId id) { out.heard.push_back(id); };
  hooks.on_warning = [&](const std::string& message) { out.warnings.push_back(message); };
  hooks.cancelled = [&] { return setup.cancel_after >= 0 && asked++ >= setup.cancel_after; };
  out.result = generate(decoder, sampler, prompt, options, hooks);
  EXPECT_FALSE(decoder.round_open());
  out.committed.assign(decoder.tokens().begin(), decoder.tokens().end());
  return out;
}

void expect_equal(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(a.result.tokens, b.result.tokens);
  EXPECT_EQ(a.result.reason, b.result.reason);
  EXPECT_EQ(a.result.stop_token, b.result.stop_token);
  EXPECT_EQ(a.result.last_committed, b.result.last_committed);
  EXPECT_EQ(a.result.shown_bytes, b.result.shown_bytes);
  EXPECT_EQ(a.pieces, b.pieces);
  EXPECT_EQ(a.warnings, b.warnings);
  EXPECT_EQ(a.committed, b.committed);
  EXPECT_EQ(a.heard, b.heard);
}

TEST(GenerateDrafts, NothingThatCanBeSeenChanges) {
  std::mt19937 random(5);
  std::map<EndReason, int> reasons;
  std::size_t rounds = 0, tokens = 0;
  for (int round = 0; round < 3000; ++round) {
    Case setup;
    for (auto n = 1 + random() % 40; n > 0; --n) setup.script.push_back(static_cast<TokenId>(1 + random() % 10));
    setup.script.push_back(kEnd);
    if (random() % 10 == 0) setup.script.pop_back();  // goes on with its last token
    setup.context = 3 + random() % 60;
    setup.max_tokens = random() % 3 == 0 ? 1 + random() % 20 : 0;
    if (random() % 3 == 0) setup.stops = {"STOP", "ld!"};
    if (random() % 4 == 0) setup.cancel_after = 3 + static_cast<int>(random() % 20);
    setup.sampling.seed = 77;
    setup.sampling.temperature = 0.0F;
    const Outcome plain = run(setup, nullptr);
    EXPECT_EQ(plain.result.drafts.all_drafted(), 0U);
    ScriptedDrafter drafter(setup.script, 3, 1 + random() % kMaxDrafts, 0.3, static_cast<std::uint32_t>(random()));
    const Outcome drafted = run(setup, &drafter);
    expect_equal(plain, drafted);
    EXPECT_EQ(drafter.starts, 1);
    EXPECT_FALSE(drafter.open());
    const DraftStats& stats = drafted.result.drafts;
    EXPECT_EQ(stats.rounds, drafter.rounds);
    EXPECT_EQ(stats.tokens, drafter.tokens);
    EXPECT_EQ(stats.source_drafted, drafter.drafted);
    EXPECT_EQ(stats.source_accepted, drafter.accepted);
    // Every token but the first comes from a round.
    const std::size_t sampled = drafted.result.tokens.size() + (drafted.result.stop_token >= 0 ? 1 : 0);
    if (sampled > 0) {
      EXPECT_EQ(stats.tokens, sampled - 1);
    }
    ++reasons[plain.result.reason];
    rounds += stats.rounds;
    tokens += stats.tokens;
    if (::testing::Test::HasFailure()) FAIL() << "round " << round;
  }
  for (const EndReason reason : {EndReason::kStopToken, EndReason::kStopString, EndReason::kMaxTokens,
                                 EndReason::kContext, EndReason::kCancelled})
    EXPECT_GT(reasons[reason], 100) << static_cast<int>(reason);
  EXPECT_GT(tokens, rounds * 3 / 2);
}

// With sampling the noise depends on the position, penalties on the prefix: both must be those of the row.
TEST(GenerateDrafts, SamplingAndPenaltiesSeeThePrefixOfTheirRow) {
  std::mt19937 random(6);
  std::size_t different = 0, accepted = 0;
  for (int round = 0; round < 500; ++round) {
    Case setup;
    for (int n = 0; n < 40; ++n) setup.script.push_back(static_cast<TokenId>(1 + random() % 10));
    setup.max_tokens = 40;
    setup.sampling.seed = 77;
    setup.sampling.temperature = random() % 2 == 0 ? 0.0F : 1.0F;
    setup.sampling.repetition_penalty = random() % 2 == 0 ? 1.0F : 3.0F;
    setup.sampling.presence_penalty = random() % 2 == 0 ? 0.0F : 6.0F;
    const Outcome plain = run(setup, nullptr);
    // What is drafted is the plain answer, so that drafts are right although the sampler leaves the script.
    std::vector<TokenId> answer = plain.result.tokens;
    if (plain.result.stop_token >= 0) answer.push_back(plain.result.stop_token);
    ScriptedDrafter drafter(answer, 3, 8, 0.2, static_cast<std::uint32_t>(random()));
    const Outcome drafted = run(setup, &drafter);
    expect_equal(plain, drafted);
    different += plain.result.tokens != setup.script;
    accepted += drafted.result.drafts.all_accepted();
  }
  EXPECT_GT(different, 250U);
  EXPECT_GT(accepted, 5000U);
}

// Biased acceptance, step by step: at every place the sampler's pick, unless a draft stands there that it finds at
// least as likely. The decoder's rows do not depend on what came before.
class SameRowDecoder : public ScriptedDecoder {
 public:
  explicit SameRowDecoder(std::vector<float> row) : ScriptedDecoder({1}, 200, row.size()), row_(std::move(row)) {}
  std::span<const float> logits() const override { return row_; }
  std::span<const float> row(std::size_t) const override { return row_; }

 private:
  std::vector<float> row_;
};

// Drafts of 0 to 3 tokens, by a list that repeats.
class ListDrafter : public Drafter {
 public:
  void start(std::span<const TokenId>, std::size_t, const SamplerSettings&, std::span<const TokenId>) override {}
  std::span<const Draft> propose(std::vector<TokenId>& prefix, std::size_t most) override {
    drafts_.clear();
    for (std::size_t i = 0; i < std::min(most, prefix.size() % 4); ++i)
      drafts_.push_back({at(prefix.size(), i), DraftSource::kHead});
    return drafts_;
  }
  void settle(const DraftRound&) override {}
  // The draft i of a round that begins after `size` tokens.
  static TokenId at(std::size_t size, std::size_t i) { return static_cast<TokenId>((7 * size + 3 * i) % 5 + 1); }

 private:
  std::vector<Draft> drafts_;
};

TEST(GenerateDrafts, BiasedAcceptanceKeepsDraftsAtLeastAsLikely) {
  const std::vector<float> row{-20.0F, 1.0F, 0.5F, 1.0F, -0.5F, 0.0F, 0.2F, 0.1F, 0.0F, 0.0F, 0.0F};
  std::uint64_t kept = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SamplerSettings settings;
    settings.seed = seed;
    settings.top_k = 4;  // tokens 1, 3, 2, 6
    settings.temperature = seed % 5 == 0 ? 0.0F : 1.0F;
    const auto generated = [&](bool biased, std::vector<TokenId>& tokens) {
      SameRowDecoder decoder(row);
      Sampler sampler(settings);
      ListDrafter drafter;
      GenerateOptions options;
      options.max_tokens = 60;
      options.answer_start = 3;
      options.drafter = &drafter;
      options.biased_acceptance = biased;
      GenerateHooks hooks;
      hooks.token_bytes = [](TokenId) { return std::string_view("x"); };
      const GenerateResult result = generate(decoder, sampler, std::vector<TokenId>{1, 1, 1}, options, hooks);
      tokens = result.tokens;
      return result.drafts;
    };
    std::vector<TokenId> exact, biased, text{1, 1, 1};
    const DraftStats plain = generated(false, exact), stats = generated(true, biased);
    EXPECT_EQ(plain.kept_though_rejected, 0U);
    std::uint64_t expected = 0, accepted = 0;
    Sampler sampler(settings);
    const auto pick = [&] { return sampler.sample(row, text, 3); };
    text.push_back(pick());
    while (text.size() < 63) {
      // A round: drafts stand as long as they are kept.
      const std::size_t begin = text.size(), drafts = std::min(begin % 4, 63 - begin - 1);
      for (std::size_t i = 0; i <= drafts && text.size() < 63; ++i) {
        const TokenId token = pick();
        if (i == drafts) {
          text.push_back(token);
          break;
        }
        const TokenId draft = ListDrafter::at(begin, i);
        const auto logit = [&](TokenId id) { return row[static_cast<std::size_t>(id)]; };
        const bool survives = draft == 1 || draft == 2 || draft == 3 || draft == 6;
        const bool stays = settings.temperature > 0 && survives && logit(draft) >= logit(token);
        expected += token != draft && stays ? 1 : 0;
        accepted += token == draft || stays ? 1 : 0;
        text.push_back(stays ? draft : token);
        if (token != draft && !stays) break;
      }
    }
    EXPECT_EQ(biased, std::vector<TokenId>(text.begin() + 3, text.end())) << seed;
    EXPECT_EQ(stats.kept_though_rejected, expected);
    EXPECT_EQ(stats.all_accepted(), accepted);
    if (settings.temperature == 0.0F) {
      EXPECT_EQ(biased, exact);
    }
    kept += expected;
  }
  EXPECT_GT(kept, 200U);
}

TEST(GenerateDrafts, NoRowIsRunThatNobodyCouldLookAt) {
  Case setup{
      .script = {1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4}, .context = 9, .max_tokens = 0, .stops = {}, .sampling = {}};
  setup.sampling.temperature = 0.0F;
  setup.sampling.seed = 77;
  for (const std::size_t max_tokens : {std::size_t{0}, std::size_t{3}, std::size_t{5}}) {
    setup.max_tokens = max_tokens;
    for (std::uint32_t seed = 0; seed < 50; ++seed) {
      ScriptedDrafter drafter(setup.script, 3, kMaxDrafts, 0, seed);
      const Outcome out = run(setup, &drafter);
      // The prompt's logits give a token, then every row gives one.
      const std::size_t most = max_tokens == 0 ? setup.context - 3 : max_tokens - 1;
      EXPECT_LE(drafter.most_asked, most - 1);
      EXPECT_EQ(out.result.tokens.size(), max_tokens == 0 ? 6 : max_tokens);
    }
  }
}

TEST(GenerateDrafts, AForcedTextIsWalkedWhateverTheModelSays) {
  const std::vector<TokenId> script{1, 2, 3, 4};
  const std::vector<TokenId> forced{5, kEnd, 8, 9, 7, 2, 2};
  ScriptedDecoder decoder(script, 50, kTexts.size());
  SamplerSettings settings;
  settings.temperature = 0.0F;
  settings.seed = 77;
  Sampler sampler(settings);
  ScriptedDrafter drafter(forced, 3, 4, 0.3, 3);
  const std::vector<TokenId> stop_ids{kEnd}, prompt{1, 1, 1};
  GenerateOptions options;
  options.stop_strings = {"STOP"};
  options.stop_ids = stop_ids;
  options.answer_start = 2;
  options.drafter = &drafter;
  options.forced = forced;
  std::string text;
  GenerateHooks hooks;
  hooks.token_bytes = [](TokenId id) { return std::string_view(kTexts.at(static_cast<std::size_t>(id))); };
  hooks.on_text = [&](std::string_view bytes) { text += bytes; };
  const GenerateResult result = generate(decoder, sampler, prompt, options, hooks);
  EXPECT_EQ(result.tokens, forced);
  EXPECT_EQ(result.reason, EndReason::kMaxTokens);
  EXPECT_EQ(text, "\xE2\x82<end>STOP!lolo");
}

TEST(DraftStats, AddsUp) {
  DraftStats a, b;
  a.rounds = 2;
  a.tokens = 5;
  a.drafted[0] = 2;
  a.accepted[0] = 1;
  a.source_drafted = {2, 1};
  a.source_accepted = {1, 0};
  a.draft_seconds = 1;
  b.rounds = 2;
  b.tokens = 3;
  b.drafted[14] = 4;
  b.accepted[14] = 3;
  b.source_drafted = {0, 1};
  b.source_accepted = {0, 1};
  b.pass_seconds = 2;
  b.sample_seconds = 3;
  a += b;
  EXPECT_DOUBLE_EQ(a.tokens_per_round(), 2.0);
  EXPECT_DOUBLE_EQ(a.acceptance(), 0.5);
  EXPECT_EQ(a.drafted[0], 2U);
  EXPECT_EQ(a.drafted[14], 4U);
  EXPECT_EQ(a.accepted[14], 3U);
  EXPECT_DOUBLE_EQ(a.draft_seconds + 10 * a.pass_seconds + 100 * a.sample_seconds, 321);
  EXPECT_DOUBLE_EQ(DraftStats{}.tokens_per_round() + DraftStats{}.acceptance(), 0.0);
}

}  // namespace
}  // namespace tandem::testing
