// Answers with and without drafts, for the tests that hold one against the other.
#pragma once

#include <gtest/gtest.h>

#include "runtime/drafting.h"
#include "runtime/generate.h"
#include "tests/e2e/nano_prompts.h"

namespace tandem::testing {

inline constexpr StateOptions kStateOptions{kContext, KvType::kF16};

inline DraftSettings off() {
  return {.head = false, .lookup = false, .depth = 0};
}

struct Answer {
  std::vector<TokenId> tokens;
  std::string text, hash;
  GenerateResult result;
};

struct Request {
  SamplerSettings sampling = {};
  std::size_t tokens = 24;
  std::vector<std::string> stops = {};
  std::vector<TokenId> stop_ids = {};
  std::vector<TokenId> forced = {};
};

inline Answer run(Pipeline& pipeline, SequenceState& state, SequenceDrafter& drafter, std::span<const TokenId> prompt,
                  const Request& request) {
  LogitsHash hash;
  PipelineDecoder decoder(pipeline, state, 37, &hash, drafter.head());
  Sampler sampler(request.sampling);
  GenerateOptions options;
  options.max_tokens = request.tokens;
  options.stop_strings = request.stops;
  options.stop_ids = request.stop_ids;
  options.answer_start = state.position() + prompt.size();
  options.drafter = drafter.drafter();
  options.forced = request.forced;
  Answer out;
  GenerateHooks hooks;
  hooks.token_bytes = [](TokenId) { return std::string_view("x"); };
  hooks.on_text = [&](std::string_view bytes) { out.text += bytes; };
  out.result = generate(decoder, sampler, prompt, options, hooks);
  out.tokens = out.result.tokens;
  out.hash = hash.hex();
  EXPECT_EQ(state.pending() + state.mtp.pending, 0U);
  return out;
}

inline void expect_same(const Answer& drafted, const Answer& plain, const std::string& what) {
  EXPECT_EQ(drafted.tokens, plain.tokens) << what;
  EXPECT_EQ(drafted.text, plain.text) << what;
  EXPECT_EQ(drafted.hash, plain.hash) << what;
  EXPECT_EQ(drafted.result.reason, plain.result.reason) << what;
  EXPECT_EQ(drafted.result.last_committed, plain.result.last_committed) << what;
}

// Greedy, sampled, and sampled with penalties and filters.
inline std::vector<SamplerSettings> samplings() {
  SamplerSettings greedy;
  greedy.temperature = 0.0F;
  SamplerSettings sampled;
  sampled.temperature = 0.8F;
  sampled.seed = 11;
  SamplerSettings penalties = sampled;
  penalties.top_k = 20;
  penalties.top_p = 0.95F;
  penalties.min_p = 0.02F;
  penalties.presence_penalty = 1.5F;
  penalties.repetition_penalty = 1.3F;
  penalties.penalty_window = 20;
  return {greedy, sampled, penalties};
}

}  // namespace tandem::testing
