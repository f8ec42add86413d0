// The generation loop: read the prompt, then rounds until something ends the answer. A round is a pass over the last
// token and the drafts that may follow it; the sampler decides row by row, in order, as if there were no drafts.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/draft.h"
#include "runtime/logits_hash.h"
#include "runtime/pipeline.h"
#include "runtime/sampler.h"
#include "runtime/sequence_state.h"
#include "runtime/tokenizer.h"

namespace tandem {

// What generation needs of a running model: a sequence that grows, and the logits that follow it.
class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual std::span<const TokenId> tokens() const = 0;  // committed, oldest first
  virtual std::size_t context() const = 0;              // positions there are in all

  // Commits `tokens` in order. Returns false when `cancelled` (may be empty) asked to stop on the way: a prefix of them
  // is then committed. `progress` (may be empty) hears how many of them are done. REQUIRES room for them, no open
  // round.
  virtual bool append(std::span<const TokenId> tokens, const std::function<bool()>& cancelled,
                      const std::function<void(std::size_t done)>& progress) = 0;
  // Logits of the last position of the last append that was not cancelled; valid until the next pass.
  virtual std::span<const float> logits() const = 0;

  // One pass over 1 to kMaxWindow tokens, of which keep(n) then commits the first n. REQUIRES room for them, no open
  // round.
  virtual void open(std::span<const TokenId> tokens) = 0;
  // Logits after tokens[i] of the open round; valid until the next pass. REQUIRES !chosen(i).
  virtual std::span<const float> row(std::size_t i) const = 0;
  // Rounds from now on may have their tokens chosen by the machine, which can be faster than to look at the logits;
  // empty: they must not.
  virtual void let_choose(const std::optional<TokenChoice>& choice) { (void)choice; }
  // The token that was chosen after tokens[i] of the open round, if it was.
  virtual std::optional<TokenId> chosen(std::size_t i) const { return (void)i, std::nullopt; }
  virtual void keep(std::size_t n) = 0;  // REQUIRES 1 <= n <= the tokens of the round
  // Different experts off the card that decode rounds met so far.
  virtual std::uint64_t misses() const { return 0; }
};

class MtpDrafter;

// A pipeline and a state as a Decoder. With `hash`, the logits row of every committed position goes into it; with
// `head`, that drafter's cache is kept up with the sequence.
class PipelineDecoder : public Decoder {
 public:
  PipelineDecoder(Pipeline& pipeline, SequenceState& state, std::size_t chunk, LogitsHash* hash = nullptr,
                  MtpDrafter* head = nullptr);
  std::span<const TokenId> tokens() const override { return state_.tokens(); }
  std::size_t context() const override { return state_.context(); }
  bool append(std::span<const TokenId> tokens, const std::function<bool()>& cancelled,
              const std::function<void(std::size_t done)>& progress) override;
  std::span<const float> logits() const override { return logits_; }
  void open(std::span<const TokenId> tokens) override;
  std::span<const float> row(std::size_t i) const override { return round_.logits.span(i); }
  void let_choose(const std::optional<TokenChoice>& choice) override;
  std::optional<TokenId> chosen(std::size_t i) const override;
  void keep(std::size_t n) override;
  std::uint64_t misses() const override;

 private:
  Pipeline& pipeline_;
  SequenceState& state_;
  std::size_t chunk_;
  LogitsHash* hash_;
  MtpDrafter* head_;
  std::vector<float> logits_;
  std::optional<TokenChoice> choice_;
  std::size_t round_rows_ = 0;  // 0: no round is open
  PassOutput round_;            // of the open round
};

// Finds the first stop string in a stream that arrives in pieces. Bytes that may be the beginning of one are held back.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);  // empty strings never match
  // What can be shown after `bytes` came; nothing more once matched() is true.
  std::string push(std::string_view bytes);
  std::string flush();  // what was held back, at the end of a stream that did not match
  bool matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool matched_ = false;
};

enum class EndReason {
  kStopToken,  // the model ended its answer
  kStopString,
  kMaxTokens,
  kContext,  // no position left
  kCancelled,
};

struct GenerateOptions {
  std::size_t max_tokens = 0;  // 0: as many as fit
  std::vector<std::string> stop_strings;
  std::span<const TokenId> stop_ids;
  // Tokens from here on count as the answer for presence penalties. Only differs from the end of the prompt when an
  // answer is continued.
  std::size_t answer_start = 0;
  Drafter* drafter = nullptr;  // null: one token a round
  // Lossy: a draft that the sampler did not pick stays all the same when it is at least as likely as the token that it
  // picked (Sampler::at_least_as_likely). Not with a forced text.
  bool biased_acceptance = false;
  // Not empty: the answer is these tokens, whatever the sampler says; it is asked all the same, for its time. Stop
  // tokens and strings end nothing. For comparing configurations on one text.
  std::span<const TokenId> forced = {};
};

struct GenerateHooks {
  std::function<std::string_view(TokenId)> token_bytes;  // required
  std::function<void(std::string_view bytes)> on_text;   // bytes of the answer; may split a UTF-8 sequence
  std::function<void(TokenId)> on_token;                 // after the text of each token
  std::function<void(std::size_t done, std::size_t total)> on_prompt;  // while the prompt is read
  std::function<void(const std::string& message)> on_warning;
  std::function<bool()> cancelled;  // asked between passes
};

struct GenerateResult {
  // All sampled tokens without the stop token. The decoder has committed all of them, the last one only when
  // `last_committed` is set.
  std::vector<TokenId> tokens;
  bool last_committed = false;
  EndReason reason = EndReason::kMaxTokens;
  TokenId stop_token = -1;      // with kStopToken
  std::size_t shown_bytes = 0;  // bytes of the answer that on_text saw: less than all after a stop string
  std::size_t prompt_tokens = 0;
  double prompt_seconds = 0.0;
  double decode_seconds = 0.0;  // from the end of the prompt
  DraftStats drafts;            // of the rounds: their number, and what became of drafts
  double prompt_rate() const {
    return prompt_seconds > 0.0 ? static_cast<double>(prompt_tokens) / prompt_seconds : 0.0;
  }
  double decode_rate() const;  // tokens per second of the rounds
};

// How often one token may follow itself before the user is warned that the model is caught in a loop.
inline constexpr std::size_t kRepeatWarning = 200;

// Commits `prompt` and samples until an end. Cancelled while reading the prompt: no tokens, kCancelled.
// REQUIRES a prompt of at least one token that fits the context.
GenerateResult generate(Decoder& decoder, Sampler& sampler, std::span<const TokenId> prompt,
                        const GenerateOptions& options, const GenerateHooks& hooks);

}  // namespace tandem
