// The lossy switches on the trained model: off they are not there, on they do what the certificate says.
#include <gtest/gtest.h>

#include <random>

#include "cpu/cpu_ops.h"
#include "runtime/drafting.h"
#include "runtime/expert_store.h"
#include "runtime/generate.h"
#include "runtime/lossy_eval.h"
#include "tests/e2e/nano_prompts.h"

namespace tandem::testing {
namespace {

constexpr StateOptions kStateOptions{kContext, KvType::kF16};

struct Machine {
  explicit Machine(int on_card_of_5) : ops(1), pipeline(nano(), ops, 128, load(on_card_of_5)) {}
  static LoadOptions load(int on_card_of_5) {
    LoadOptions load;
    load.placement = all_in_ram(nano().shape.layers + nano().shape.mtp_layers, nano().shape.experts);
    std::mt19937 random(3);
    for (Place& place : load.placement->place)
      if (static_cast<int>(random() % 5) < on_card_of_5) place = Place::kCard;
    return load;
  }
  LossyResult evaluate(std::span<const TokenId> tokens, const Policy::Lossy& lossy, const SamplerSettings& sampling,
                       std::size_t chunk = 64) {
    SequenceState exact(nano().shape, kStateOptions), state(nano().shape, kStateOptions);
    LossyEvalOptions options{{.window = 100, .last_window = 2, .chunk = chunk}, lossy, sampling};
    auto result = evaluate_lossy(pipeline, exact, state, tokens, options, {});
    EXPECT_TRUE(result.has_value());
    EXPECT_EQ(pipeline.experts()->tail_skip().budget(), 0);
    return std::move(*result);
  }
  CpuOps ops;
  Pipeline pipeline;
};

double mean(const LossyResult& result, double (*get)(const LossyPosition&)) {
  double sum = 0;
  for (const LossyPosition& p : result.positions) sum += get(p);
  return sum / static_cast<double>(result.positions.size());
}

TEST(LossyEval, TheSkipChangesNothingWhereNothingIsOffTheCard) {
  Machine all(5), some(2);
  const std::span<const TokenId> text = std::span(prompts()[2]).first(250);
  const LossyResult nothing = all.evaluate(text, {.biased_acceptance = false, .tail_route_skip = 0.5}, {});
  EXPECT_EQ(nothing.skipped.skipped, 0U);
  EXPECT_EQ(nothing.windows, 3U);
  EXPECT_EQ(nothing.positions.size(), 99U + 99U + 49U);
  for (const LossyPosition& p : nothing.positions) EXPECT_EQ(p.logits.total_variation, 0);
  const LossyResult changed = some.evaluate(text, {.biased_acceptance = false, .tail_route_skip = 0.1}, {});
  const LossyResult more = some.evaluate(text, {.biased_acceptance = false, .tail_route_skip = 0.3}, {});
  // The exact side is exact on every machine, and what was skipped grows with the budget.
  SequenceState state(nano().shape, kStateOptions);
  const auto plain = evaluate(some.pipeline, state, text, {.window = 100, .last_window = 2, .chunk = 64}, {});
  for (const LossyResult* r : {&nothing, &changed, &more})
    EXPECT_NEAR(mean(*r, [](const LossyPosition& p) { return p.exact_nll; }), plain->nll, 1e-12);
  const auto variation = [](const LossyPosition& p) { return p.logits.total_variation; };
  EXPECT_GT(mean(changed, variation), 0.003);
  EXPECT_GT(mean(more, variation), mean(changed, variation));
  EXPECT_GT(more.skipped.weight, changed.skipped.weight);
  EXPECT_EQ(changed.skipped.rows, 250U * static_cast<std::size_t>(nano().shape.layers));
  EXPECT_EQ(changed.skipped.routes, changed.skipped.rows * static_cast<std::size_t>(nano().shape.experts_used));
  EXPECT_LE(changed.skipped.weight_share(), 0.1);
}

// With experts where they are, a fixed budget is a model of its own: chunks, drafts and workers do not change a bit.
TEST(LossyEval, TheSkipIsRowPure) {
  Machine some(2);
  some.pipeline.experts()->tail_skip().set_budget(0.15);
  const std::string whole = chunked(some.pipeline, 128);
  EXPECT_EQ(chunked(some.pipeline, 7), whole);
  EXPECT_EQ(chunked(some.pipeline, 1), whole);
  some.pipeline.experts()->tail_skip().set_budget(0);
  EXPECT_NE(chunked(some.pipeline, 128), whole);
}

// What the certificate computes for the head is what happens: its drafts and the sampler's picks under 1500 seeds.
TEST(LossyEval, BiasedAcceptanceIsWhatTheHeadAndTheSamplerDo) {
  Machine some(2);
  const std::span<const TokenId> text = std::span(prompts()[2]).first(90);
  SamplerSettings sampling;
  sampling.temperature = 1.2F;
  sampling.top_k = 40;
  for (const std::size_t chunk : {64UL, 13UL}) {
    const LossyResult result = some.evaluate(text, {.biased_acceptance = true, .tail_route_skip = 0}, sampling, chunk);
    ASSERT_EQ(result.positions.size(), text.size() - 1);
    EXPECT_FALSE(result.positions[0].head.has_value());
    double kept = 0;
    for (const std::size_t at : {12UL, 13UL, 40UL, 64UL, 77UL}) {  // tokens of the prefix
      SequenceState state(nano().shape, kStateOptions);
      MtpDrafter head(some.pipeline, state, MtpNorm::kFull, MtpAttention::kSparse);
      PipelineDecoder decoder(some.pipeline, state, 37, nullptr, &head);
      decoder.append(text.first(at - 1), {}, {});
      std::vector<std::pair<TokenId, TokenId>> picks;
      head.start(0, sampling);
      ASSERT_TRUE(head.begin(text.first(at)));
      constexpr std::uint64_t kSeeds = 1500;
      for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
        sampling.seed = seed;
        head.start(0, sampling);
        picks.emplace_back(head.draft(text.first(at)).token, 0);
      }
      head.end();
      decoder.append(text.subspan(at - 1, 1), {}, {});
      double stayed = 0;
      for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
        sampling.seed = seed;
        Sampler sampler(sampling);
        const TokenId token = sampler.sample(decoder.logits(), text.first(at), 0), draft = picks[seed].first;
        stayed += token != draft && sampler.at_least_as_likely(draft, token) ? 1 : 0;
      }
      ASSERT_EQ(result.positions[at - 1].position, at);
      ASSERT_TRUE(result.positions[at - 1].head.has_value());
      EXPECT_NEAR(result.positions[at - 1].head->kept, stayed / kSeeds, 5 * 0.5 / std::sqrt(kSeeds)) << at;
      kept += stayed / kSeeds;
    }
    EXPECT_GT(kept, 0.1);
  }
}

TEST(LossyEval, GreedyLeavesBiasedAcceptanceNothingToDo) {
  Machine some(2);
  SamplerSettings greedy;
  greedy.temperature = 0.0F;
  const LossyResult result =
      some.evaluate(std::span(prompts()[0]).first(100), {.biased_acceptance = true, .tail_route_skip = 0}, greedy);
  std::size_t lookups = 0;
  for (const LossyPosition& p : result.positions) {
    if (p.head) {
      EXPECT_EQ(p.head->total_variation, 0);
    }
    if (p.lookup) {
      EXPECT_EQ(p.lookup->total_variation, 0);
      ++lookups;
    }
  }
  EXPECT_GT(lookups, 0U);
}

}  // namespace
}  // namespace tandem::testing
