// Drafting on the trained model: text and logits are those without drafts (docs/numerics.md, L1 and R8), and the draft
// head's cache is what it would be if every row had been fed at once.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "cpu/cpu_ops.h"
#include "runtime/expert_store.h"
#include "tests/e2e/draft_runs.h"
#include "tests/synthetic_model.h"

namespace tandem::testing {
namespace {

LoadOptions moving_experts() {
  LoadOptions load;
  load.placement = all_in_ram(nano().shape.layers + nano().shape.mtp_layers, nano().shape.experts);
  std::mt19937 random(3);
  for (Place& place : load.placement->place)
    if (random() % 5 < 2) place = Place::kCard;
  load.adapt.mode = AdaptMode::kSwaps;
  load.adapt.swaps_per_round = 4;
  load.adapt.half_life_rows = 100;
  load.adapt.margin = 1.0;
  return load;
}

struct Machine {
  explicit Machine(const LoadOptions& load, int workers) : ops(workers), pipeline(nano(), ops, 128, load) {}
  CpuOps ops;
  Pipeline pipeline;
};
// Without a card, and with one on which experts come and go.
Machine& machine(std::size_t which) {
  static Machine plain({}, 1), moving(moving_experts(), 2);
  return which % 2 == 0 ? plain : moving;
}

Answer run(std::size_t which, std::span<const TokenId> prompt, const DraftSettings& settings, const Request& request) {
  Pipeline& pipeline = machine(which).pipeline;
  SequenceState state(nano().shape, kStateOptions);
  SequenceDrafter drafter(pipeline, state, settings);
  return run(pipeline, state, drafter, prompt, request);
}

TEST(Drafting, EveryDepthAndSourceGivesTheSameTextAndLogits) {
  std::uint64_t head = 0, lookup = 0, turn = 0;
  for (const SamplerSettings& sampling : samplings())
    for (const std::size_t p : {0UL, 2UL}) {
      const std::span<const TokenId> prompt = std::span(prompts()[p]).first(p == 0 ? 100 : 60);
      Request request;
      request.sampling = sampling;
      // Greedy prose soon repeats itself, so that there is something to look up.
      if (p != 0 && sampling.temperature == 0.0F) request.tokens = 70;
      const Answer plain = run(0, prompt, off(), request);
      ASSERT_EQ(plain.tokens.size(), request.tokens);
      for (int depth = -1; depth <= 8; ++depth)
        for (const bool with_lookup : {false, true}) {
          if (p == 0 && with_lookup == (depth % 2 == 0)) continue;  // half of them, for time
          DraftSettings settings{.head = true, .lookup = with_lookup, .depth = {}};
          if (depth >= 0) settings.depth = depth;
          const Answer drafted = run(++turn, prompt, settings, request);
          expect_same(drafted, plain, fmt::format("prompt {}, depth {}, lookup {}", p, depth, with_lookup));
          const DraftStats& stats = drafted.result.drafts;
          head += stats.source_accepted[0];
          lookup += stats.source_accepted[1];
          if (depth > 0) {
            EXPECT_GT(stats.source_drafted[0] + stats.source_drafted[1], 0U);
          }
          EXPECT_EQ(stats.tokens, request.tokens - 1);
        }
    }
  EXPECT_GT(head, 200U);
  EXPECT_GT(lookup, 50U);
}

TEST(Drafting, VariantsOfTheHeadGiveTheSameText) {
  const std::span<const TokenId> prompt = std::span(prompts()[2]).first(100);
  Request request;
  request.sampling = samplings()[1];
  const Answer plain = run(0, prompt, off(), request);
  for (const MtpNorm norm : {MtpNorm::kFull, MtpNorm::kPerStream})
    for (const MtpAttention attention : {MtpAttention::kSparse, MtpAttention::kDense})
      expect_same(run(1, prompt, {true, false, 4, norm, attention}, request), plain, "variant");
}

// Short prompts of random tokens and pieces of text, random settings, all ways for an answer to end.
TEST(Drafting, TwoHundredRandomPrompts) {
  std::mt19937 random(2024);
  std::map<EndReason, int> reasons;
  std::uint64_t accepted = 0;
  for (std::size_t n = 0; n < 200; ++n) {
    std::vector<TokenId> prompt;
    const Prompt& source = prompts()[random() % 3];
    const std::size_t from = random() % 300, size = 4 + random() % 40;
    prompt.assign(source.begin() + static_cast<std::ptrdiff_t>(from % source.size()), source.end());
    prompt.resize(std::min(prompt.size(), size));
    for (auto extra = random() % 6; extra > 0; --extra) prompt.push_back(static_cast<TokenId>(random() % 4000));
    Request request;
    request.sampling = samplings()[random() % 3];
    request.sampling.seed = random();
    request.tokens = random() % 4 == 0 ? 1 + random() % 6 : 12;
    for (auto stops = random() % 60; stops > 0; --stops)
      request.stop_ids.push_back(static_cast<TokenId>(random() % 4096));
    if (random() % 5 == 0) request.stops = {std::string(2 + random() % 8, 'x')};
    DraftSettings settings{.head = true, .lookup = random() % 2 == 0, .depth = static_cast<int>(random() % 9)};
    if (random() % 5 == 0) settings.depth.reset();
    const Answer plain = run(0, prompt, off(), request);
    const Answer drafted = run(n, prompt, settings, request);
    expect_same(drafted, plain, fmt::format("prompt {}", n));
    ++reasons[plain.result.reason];
    accepted += drafted.result.drafts.all_accepted();
  }
  EXPECT_GT(accepted, 100U);
  EXPECT_GT(reasons[EndReason::kStopString], 5);
  EXPECT_GT(reasons[EndReason::kStopToken], 5);
  EXPECT_GT(reasons[EndReason::kMaxTokens], 5);
}

TEST(Drafting, ToTheLastPositionOfTheContext) {
  const std::span<const TokenId> prompt = std::span(prompts()[2]).first(kContext - 60);
  for (const SamplerSettings& sampling : samplings()) {
    Request request;
    request.sampling = sampling;
    request.tokens = 0;
    const Answer plain = run(0, prompt, off(), request);
    EXPECT_EQ(plain.result.reason, EndReason::kContext);
    for (const int depth : {1, 5, 8}) expect_same(run(1, prompt, {true, true, depth}, request), plain, "to the end");
  }
}

TEST(Drafting, ATextForcedOntoItselfIsTheSameRun) {
  const std::span<const TokenId> prompt = std::span(prompts()[0]).first(110);
  for (const int depth : {0, 2, 5}) {
    Request request;
    request.sampling = samplings()[1];
    request.tokens = 40;
    const Answer free = run(0, prompt, {true, true, depth}, request);
    request.forced = free.tokens;
    const Answer forced = run(0, prompt, {true, true, depth}, request);
    expect_same(forced, free, "forced");
    EXPECT_EQ(forced.result.drafts.rounds, free.result.drafts.rounds);
    EXPECT_EQ(forced.result.drafts.drafted, free.result.drafts.drafted);
    EXPECT_EQ(forced.result.drafts.accepted, free.result.drafts.accepted);
    EXPECT_GT(free.result.drafts.all_accepted(), 0U);
  }
}

// A draft is what the sampler would pick from the head's logits at this place, penalties and noise included.
TEST(Drafting, TheHeadSamplesAsTheSamplerDoes) {
  Pipeline& pipeline = machine(0).pipeline;
  const std::span<const TokenId> tokens = std::span(prompts()[2]).first(110);
  for (const SamplerSettings& sampling : samplings()) {
    SequenceState state(nano().shape, kStateOptions);
    MtpDrafter head(pipeline, state, MtpNorm::kFull, MtpAttention::kSparse);
    PipelineDecoder decoder(pipeline, state, 64, nullptr, &head);
    ASSERT_TRUE(decoder.append(tokens.first(60), {}, {}));
    head.start(50, sampling);
    std::vector<TokenId> drafts;
    for (std::size_t i = 60; i + 1 < tokens.size(); ++i) {
      ASSERT_TRUE(head.begin(tokens.first(i + 1)));
      const Draft draft = head.draft(tokens.first(i + 1));
      EXPECT_GE(draft.confidence, 0.0F);
      EXPECT_LE(draft.confidence, 1.0F);
      drafts.push_back(draft.token);
      head.end();
      decoder.open(tokens.subspan(i, 1));
      decoder.keep(1);
    }
    SequenceState other(nano().shape, kStateOptions);
    const PassOutput trunk = pipeline.forward(other, tokens, PassMode::kCommit, LogitRows::kNone);
    const std::vector<float> wide(trunk.wide.data, trunk.wide.data + trunk.wide.rows * trunk.wide.cols);
    MtpHead whole(pipeline, MtpNorm::kFull, MtpAttention::kSparse);
    const PassOutput out = whole.forward(other, ConstRows(wide.data(), tokens.size() - 1, trunk.wide.cols),
                                         tokens.subspan(1), PassMode::kCommit, LogitRows::kAll);
    Sampler sampler(sampling);
    for (std::size_t i = 60; i + 1 < tokens.size(); ++i)
      EXPECT_EQ(drafts[i - 60], sampler.sample(out.logits.span(i - 1), tokens.first(i + 1), 50)) << i;
  }
}

// ---- the head's cache ----

// Rows of the head's cache: as bytes of keys and values, and pooled and raw indexer keys.
std::string cache_bytes(const SequenceState& state, std::size_t rows) {
  const AttentionLayerState& cache = state.mtp.attention;
  const std::size_t row = cache.k.size() / state.context();
  const auto dim = static_cast<std::size_t>(nano().shape.indexer_dim);
  const std::size_t pooled = rows / static_cast<std::size_t>(nano().shape.indexer_ratio) * dim;
  std::string bytes(reinterpret_cast<const char*>(cache.k.data()), rows * row);
  bytes.append(reinterpret_cast<const char*>(cache.v.data()), rows * row);
  bytes.append(reinterpret_cast<const char*>(cache.pooled.data()), pooled * sizeof(float));
  const ConstRows raw = cache.raw_keys.committed();
  return bytes.append(reinterpret_cast<const char*>(raw.data), raw.rows * raw.cols * sizeof(float));
}

// The same cache from nothing: one pass of the trunk over all tokens, one of the head over all rows.
std::string cache_from_scratch(std::span<const TokenId> tokens) {
  const auto ops = make_cpu_ops(1);
  Pipeline pipeline(nano(), *ops, kContext);
  SequenceState state(nano().shape, kStateOptions);
  const PassOutput out = pipeline.forward(state, tokens, PassMode::kCommit, LogitRows::kNone);
  const std::vector<float> wide(out.wide.data, out.wide.data + out.wide.rows * out.wide.cols);
  MtpHead head(pipeline, MtpNorm::kFull, MtpAttention::kSparse);
  head.forward(state, ConstRows(wide.data(), tokens.size() - 1, out.wide.cols), tokens.subspan(1), PassMode::kCommit,
               LogitRows::kNone);
  return cache_bytes(state, tokens.size() - 1);
}

TEST(Drafting, TheHeadsCacheIsThatOfAllRowsAtOnce) {
  for (const int depth : {1, 4, 8}) {
    Pipeline& pipeline = machine(static_cast<std::size_t>(depth)).pipeline;
    SequenceState state(nano().shape, kStateOptions);
    SequenceDrafter drafter(pipeline, state, {true, depth != 1, depth});
    Request request;
    request.sampling = samplings()[1];
    request.tokens = 60;
    run(pipeline, state, drafter, std::span(prompts()[0]).first(110), request);
    drafter.head()->catch_up(state.tokens(), false);
    ASSERT_EQ(state.mtp.rows, state.position() - 1);
    EXPECT_EQ(cache_bytes(state, state.mtp.rows), cache_from_scratch(state.tokens())) << depth;
  }
}

// What undo and retry do: back to a checkpoint, then another text.
TEST(Drafting, TheHeadsCacheAfterARewind) {
  Pipeline& pipeline = machine(0).pipeline;
  SequenceState state(nano().shape, kStateOptions);
  SequenceDrafter drafter(pipeline, state, {true, false, 3});
  Request request;
  request.sampling = samplings()[1];
  run(pipeline, state, drafter, std::span(prompts()[0]).first(70), request);
  const auto checkpoint = state.checkpoint();
  const std::vector<TokenId> prefix(state.tokens().begin(), state.tokens().end());
  for (const std::size_t from : {0UL, 100UL}) {
    const std::span<const TokenId> more = std::span(prompts()[2]).subspan(from, 30);
    state.rewind(*checkpoint);
    const Answer drafted = run(pipeline, state, drafter, more, request);
    drafter.head()->catch_up(state.tokens(), false);
    ASSERT_EQ(state.mtp.rows, state.position() - 1);
    EXPECT_EQ(cache_bytes(state, state.mtp.rows), cache_from_scratch(state.tokens()));
    EXPECT_GT(drafted.result.drafts.all_drafted(), 0U);

    SequenceState fresh(nano().shape, kStateOptions);
    SequenceDrafter none(pipeline, fresh, off());
    std::vector<TokenId> whole = prefix;
    whole.insert(whole.end(), more.begin(), more.end());
    EXPECT_EQ(run(pipeline, fresh, none, whole, request).tokens, drafted.tokens);
  }
}

// A state file holds no residuals, and may come from a run without drafts: the head then has a gap, or nothing at all.
TEST(Drafting, GoesOnAfterARestore) {
  TempDir dir;
  Pipeline& pipeline = machine(0).pipeline;
  const std::span<const TokenId> prompt = std::span(prompts()[2]).first(120);
  const std::span<const TokenId> more = std::span(prompts()[0]).first(20);
  Request request;
  request.sampling = samplings()[1];
  std::vector<Answer> runs;
  for (const DraftSettings& before : {off(), DraftSettings{true, true, 3}}) {
    SequenceState state(nano().shape, kStateOptions);
    SequenceDrafter drafter(pipeline, state, before);
    run(pipeline, state, drafter, prompt, request);
    state.save(dir / "sequence.state", nano().fingerprint());
    for (const DraftSettings& after : {off(), DraftSettings{true, false, 3}, DraftSettings{true, true, {}}}) {
      SequenceState restored(nano().shape, kStateOptions);
      restored.restore(dir / "sequence.state", nano().fingerprint());
      SequenceDrafter next(pipeline, restored, after);
      runs.push_back(run(pipeline, restored, next, more, request));
      expect_same(runs.back(), runs.front(), "restored");
      if (after.head && after.depth) {
        EXPECT_GT(runs.back().result.drafts.source_drafted[0], 20U);
        EXPECT_LT(restored.mtp.rows, restored.position());
        EXPECT_GE(restored.mtp.rows, more.size());
      }
    }
  }
}

// While nobody drafts, only the last residuals are kept.
TEST(Drafting, RowsThatWaitTooLongAreLeftOut) {
  Pipeline& pipeline = machine(0).pipeline;
  SequenceState state(nano().shape, kStateOptions);
  MtpDrafter head(pipeline, state, MtpNorm::kFull, MtpAttention::kSparse);
  PipelineDecoder decoder(pipeline, state, 64, nullptr, &head);
  const Prompt& tokens = prompts()[2];
  ASSERT_TRUE(decoder.append(std::span(tokens).first(50), {}, {}));
  EXPECT_EQ(state.mtp.rows, 49U);
  const auto width = static_cast<std::size_t>(nano().shape.wide());
  for (std::size_t i = 50; i < 230; ++i) {
    decoder.open(std::span(tokens).subspan(i, 1));
    decoder.keep(1);
    EXPECT_LE(state.mtp.waiting(width), MtpDrafter::kMostWaiting);
    EXPECT_EQ(state.mtp.hidden_first + state.mtp.waiting(width), i + 1);
  }
  EXPECT_GE(state.mtp.waiting(width), MtpDrafter::kLeastWaiting);
  head.start(50, samplings()[0]);
  const std::size_t waiting = state.mtp.waiting(width);
  ASSERT_TRUE(head.begin(std::span(tokens).first(231)));
  head.end();
  EXPECT_EQ(state.mtp.rows, 49 + waiting);
  EXPECT_EQ(state.mtp.waiting(width), 0U);
  EXPECT_FALSE(head.begin(std::span(tokens).first(231)));  // nothing is left to hang a chain on
}

}  // namespace
}  // namespace tandem::testing
