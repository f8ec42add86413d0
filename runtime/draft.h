// Drafting: guesses of the next tokens, which one pass of the trunk checks all at once. What a draft is, who makes
// them, and how the generation loop talks to them. A wrong draft costs time and nothing else: a token is accepted
// exactly when it is the one that the sampler picks from the trunk's own logits (docs/numerics.md, R8).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/pipeline.h"
#include "runtime/sampler.h"
#include "runtime/sequence_state.h"
#include "runtime/tokenizer.h"

namespace tandem {

inline constexpr std::size_t kMaxDrafts = kMaxWindow - 1;  // of a round, from all sources
inline constexpr std::size_t kMaxHeadDrafts = 8;           // of the draft head

enum class DraftSource : std::uint8_t { kHead, kLookup };

struct Draft {
  TokenId token;
  DraftSource source;
  float confidence = 0;   // kHead: the head's probability of the token
  std::size_t match = 0;  // kLookup: tokens before it that agree with the place it was copied from
};

struct DraftSettings {
  bool head = true;          // drafts of the model's own head, when it has one
  bool lookup = true;        // drafts copied from the text so far
  std::optional<int> depth;  // of the head, 0 to kMaxHeadDrafts; empty: chosen every round
  MtpNorm norm = MtpNorm::kFull;
  MtpAttention attention = MtpAttention::kSparse;
};

// What one round showed: a pass over the last token and the drafts.
struct DraftRound {
  // The tokens that came: accepted drafts, then one more (the stop token included). Empty when the context was full.
  std::span<const TokenId> truth;
  std::size_t rows = 1;  // of the pass
  double pass_seconds = 0;
  double round_seconds = 0;  // drafting, pass and sampling
  double misses = 0;         // different experts off the card that the round met
};

// Proposes drafts to the generation loop and learns from what became of them.
class Drafter {
 public:
  virtual ~Drafter() = default;
  // Before the first round of an answer. `prefix` is everything so far; prefix[answer_start..] is the present answer.
  virtual void start(std::span<const TokenId> prefix, std::size_t answer_start, const SamplerSettings& sampling,
                     std::span<const TokenId> stop_ids) = 0;
  // At most `most` tokens that may follow `prefix`, whose last token has not been run yet. Valid until the next call.
  // `prefix` may be extended on the way; it is returned as it was. REQUIRES that between two calls it only grew.
  virtual std::span<const Draft> propose(std::vector<TokenId>& prefix, std::size_t most) = 0;
  // The round that the last proposal was for.
  virtual void settle(const DraftRound& round) = 0;
};

// A draft head: a chain of guesses, each from the one before.
class DraftHead {
 public:
  virtual ~DraftHead() = default;
  virtual void start(std::size_t answer_start, const SamplerSettings& sampling) = 0;
  // Begins a chain after `prefix`, whose last token has not been run. False: nothing can be drafted here.
  virtual bool begin(std::span<const TokenId> prefix) = 0;
  // The guess for the token after `prefix` (the chain's tokens included). REQUIRES logits asked for.
  virtual Draft draft(std::span<const TokenId> prefix) = 0;
  // Continues the chain with `token`.
  virtual void advance(TokenId token, bool logits) = 0;
  virtual void end() = 0;  // the chain is forgotten
};

// Figures of a run of rounds.
struct DraftStats {
  std::uint64_t rounds = 0;
  std::uint64_t tokens = 0;                             // that the rounds brought, stop tokens included
  std::array<std::uint64_t, kMaxDrafts> drafted = {};   // by place in the round
  std::array<std::uint64_t, kMaxDrafts> accepted = {};  // ...
  std::array<std::uint64_t, 2> source_drafted = {}, source_accepted = {};  // by DraftSource
  std::uint64_t kept_though_rejected = 0;  // lossy: drafts that the sampler had not picked; accepted ones as well
  double draft_seconds = 0, pass_seconds = 0, sample_seconds = 0;

  std::uint64_t all_drafted() const { return source_drafted[0] + source_drafted[1]; }
  std::uint64_t all_accepted() const { return source_accepted[0] + source_accepted[1]; }
  double tokens_per_round() const;
  double acceptance() const;  // of all drafts
  DraftStats& operator+=(const DraftStats& more);
};

}  // namespace tandem
