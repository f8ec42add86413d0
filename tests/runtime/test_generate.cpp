// The generation loop over a scripted decoder: what is shown, what is committed, and why it ends.
#include "runtime/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "placement/check.h"
#include "tests/runtime/scripted_decoder.h"

namespace tandem {
namespace {

using testing::kEnd;
using testing::kTexts;
using testing::ScriptedDecoder;

struct Outcome {
  GenerateResult result;
  std::string text;
  std::vector<std::string> pieces, warnings;
  std::vector<TokenId> committed;
};

struct Case {
  std::vector<TokenId> script = {};
  std::size_t context = 100;
  std::vector<TokenId> prompt{1, 1, 1};
  std::size_t max_tokens = 0;
  std::vector<std::string> stops = {};
  int cancel_after = -1;  // how many times `cancelled` says no
};

Outcome run(const Case& setup) {
  ScriptedDecoder decoder(setup.script, setup.context, kTexts.size());
  SamplerSettings settings;
  settings.temperature = 0.0F;
  Sampler sampler(settings);
  const std::vector<TokenId> stop_ids{kEnd};
  GenerateOptions options;
  options.max_tokens = setup.max_tokens;
  options.stop_strings = setup.stops;
  options.stop_ids = stop_ids;
  Outcome out;
  int asked = 0;
  GenerateHooks hooks;
  hooks.token_bytes = [](TokenId id) { return std::string_view(kTexts.at(static_cast<std::size_t>(id))); };
  hooks.on_text = [&](std::string_view bytes) { out.pieces.emplace_back(bytes); };
  hooks.on_warning = [&](const std::string& message) { out.warnings.push_back(message); };
  hooks.cancelled = [&] { return setup.cancel_after >= 0 && asked++ >= setup.cancel_after; };
  out.result = generate(decoder, sampler, setup.prompt, options, hooks);
  for (const std::string& piece : out.pieces) out.text += piece;
  out.committed.assign(decoder.tokens().begin(), decoder.tokens().end());
  return out;
}

// The decoder holds the prompt and the answer, the last token only if last_committed says so.
void expect_consistent(const Case& setup, const Outcome& out) {
  std::vector<TokenId> want = setup.prompt;
  want.insert(want.end(), out.result.tokens.begin(), out.result.tokens.end());
  if (!out.result.tokens.empty() && !out.result.last_committed) want.pop_back();
  EXPECT_EQ(out.committed, want);
  EXPECT_EQ(out.result.shown_bytes, out.text.size());
  EXPECT_EQ(out.result.prompt_tokens, setup.prompt.size());
}

TEST(Generate, EndsAtTheStopTokenWhichIsNeitherShownNorCommitted) {
  const Case setup{.script = {1, 2, 3, 4, kEnd}};
  const Outcome out = run(setup);
  EXPECT_EQ(out.text, "Hello world");
  EXPECT_EQ(out.pieces, (std::vector<std::string>{"Hel", "lo", " wor", "ld"}));  // streamed as it comes
  EXPECT_EQ(out.result.reason, EndReason::kStopToken);
  EXPECT_EQ(out.result.stop_token, kEnd);
  EXPECT_TRUE(out.result.last_committed);
  expect_consistent(setup, out);
}

TEST(Generate, AnEmptyAnswerIsAnAnswer) {
  const Case setup{.script = {kEnd}};
  const Outcome out = run(setup);
  EXPECT_EQ(out.text, "");
  EXPECT_EQ(out.result.reason, EndReason::kStopToken);
  EXPECT_FALSE(out.result.last_committed);
  expect_consistent(setup, out);
}

TEST(Generate, EndsAtMaxTokens) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{3}}) {
    const Case setup{.script = {1, 2, 3, 4, kEnd}, .max_tokens = n};
    const Outcome out = run(setup);
    EXPECT_EQ(out.result.reason, EndReason::kMaxTokens);
    EXPECT_EQ(out.result.tokens.size(), n);
    EXPECT_EQ(out.committed.size(), 3 + n - 1);  // no pass is spent on the last one
    expect_consistent(setup, out);
  }
}

TEST(Generate, EndsWhenTheContextIsFull) {
  const Case setup{.script = {1, 2}, .context = 8};
  const Outcome out = run(setup);
  EXPECT_EQ(out.result.reason, EndReason::kContext);
  EXPECT_EQ(out.result.tokens.size(), 5U);
  EXPECT_EQ(out.committed.size(), 8U);
  expect_consistent(setup, out);
}

TEST(Generate, APromptThatFillsTheContextLeavesNoAnswer) {
  const Case setup{.script = {1}, .context = 3};
  const Outcome out = run(setup);
  EXPECT_EQ(out.result.reason, EndReason::kContext);
  EXPECT_TRUE(out.result.tokens.empty());
  expect_consistent(setup, out);
}

TEST(Generate, CancelledWhileDecodingKeepsWhatWasShown) {
  // Asked 3 times for the prompt, then once per token.
  for (int tokens = 1; tokens <= 4; ++tokens) {
    const Case setup{.script = {1, 2, 3, 4, kEnd}, .cancel_after = 3 + tokens - 1};
    const Outcome out = run(setup);
    EXPECT_EQ(out.result.reason, EndReason::kCancelled);
    EXPECT_EQ(out.result.tokens.size(), static_cast<std::size_t>(tokens));
    expect_consistent(setup, out);
  }
}

TEST(Generate, CancelledWhileReadingThePromptSaysNothing) {
  const Case setup{.script = {1, kEnd}, .cancel_after = 2};
  const Outcome out = run(setup);
  EXPECT_EQ(out.result.reason, EndReason::kCancelled);
  EXPECT_TRUE(out.result.tokens.empty());
  EXPECT_EQ(out.committed, (std::vector<TokenId>{1, 1}));
  EXPECT_EQ(out.text, "");
}

TEST(Generate, AStopStringAcrossTokensIsNotShown) {
  const Case setup{.script = {1, 2, 8, 9, 7, kEnd}, .stops = {"never", "STOP"}};
  const Outcome out = run(setup);
  EXPECT_EQ(out.text, "Hello");
  EXPECT_EQ(out.result.reason, EndReason::kStopString);
  EXPECT_EQ(out.result.tokens.size(), 4U);
  expect_consistent(setup, out);
}

TEST(Generate, AHalfStopStringIsShownInTheEnd) {
  const Case setup{.script = {1, 8, 7, kEnd}, .stops = {"STOP"}};
  EXPECT_EQ(run(setup).text, "HelST!");
  const Case at_end{.script = {1, 10, kEnd}, .stops = {"STOP"}};
  const Outcome out = run(at_end);
  EXPECT_EQ(out.text, "HelSTO");
  EXPECT_EQ(out.result.reason, EndReason::kStopToken);
  expect_consistent(at_end, out);
}

TEST(Generate, WarnsOnceOfALoop) {
  const Case loop{.script = {7}, .context = 1000, .max_tokens = 500};
  EXPECT_EQ(run(loop).warnings.size(), 1U);
  const Case almost{.script = {7}, .context = 1000, .max_tokens = kRepeatWarning};
  EXPECT_EQ(run(almost).warnings.size(), 0U);
  std::vector<TokenId> alternating;
  for (int i = 0; i < 300; ++i) alternating.push_back(i % 2 == 0 ? 7 : 1);
  const Case changing{.script = alternating, .context = 1000, .max_tokens = 300};
  EXPECT_EQ(run(changing).warnings.size(), 0U);
}

TEST(Generate, RatesCountPassesOnly) {
  GenerateResult result;
  result.tokens = {1, 2, 3};
  result.decode_seconds = 0.5;
  EXPECT_DOUBLE_EQ(result.decode_rate(), 4.0);  // three tokens, two passes
  result.stop_token = kEnd;
  EXPECT_DOUBLE_EQ(result.decode_rate(), 6.0);
  result.prompt_tokens = 10;
  result.prompt_seconds = 0.1;
  EXPECT_DOUBLE_EQ(result.prompt_rate(), 100.0);
}

// ---- StopMatcher against a search in the whole text ----

// Where the text ends when a match is looked for after every piece, or npos.
std::size_t first_match(const std::string& text, const std::vector<std::string>& stops) {
  std::size_t cut = std::string::npos;
  for (const std::string& stop : stops) {
    if (!stop.empty()) cut = std::min(cut, text.find(stop));
  }
  return cut;
}

// How much of a text without a match can be shown: up to the first place from which a stop string may still grow.
std::size_t safe_length(const std::string& text, const std::vector<std::string>& stops) {
  for (std::size_t from = 0; from < text.size(); ++from) {
    const std::string rest = text.substr(from);
    const auto may_grow = [&](const std::string& stop) { return stop.size() > rest.size() && stop.starts_with(rest); };
    if (std::any_of(stops.begin(), stops.end(), may_grow)) return from;
  }
  return text.size();
}

TEST(StopMatcher, AgreesWithASearchInTheWholeText) {
  std::mt19937 generator(1);
  const auto random_text = [&](unsigned most) {
    std::string text;
    for (auto n = generator() % (most + 1); n > 0; --n) text += static_cast<char>('a' + generator() % 2);
    return text;
  };
  int matches = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops(1 + generator() % 3);
    for (std::string& stop : stops) stop = random_text(5);
    StopMatcher matcher(stops);
    std::string text, shown;
    for (int piece = 0; piece < 6 && !matcher.matched(); ++piece) {
      const std::string bytes = random_text(3);
      text += bytes;
      shown += matcher.push(bytes);
      const std::size_t cut = first_match(text, stops);
      EXPECT_EQ(matcher.matched(), cut != std::string::npos);
      EXPECT_EQ(shown, text.substr(0, matcher.matched() ? cut : safe_length(text, stops)));
    }
    if (matcher.matched()) {
      ++matches;
      EXPECT_EQ(matcher.push("more"), "");
      EXPECT_EQ(matcher.flush(), "");
    } else {
      EXPECT_EQ(shown + matcher.flush(), text);
    }
  }
  EXPECT_GT(matches, 5000);
  EXPECT_LT(matches, 19000);
}

}  // namespace
}  // namespace tandem
