// The model's own draft head as a source of drafts, and the care for its cache.
//
// Row j of the head takes the wide residual of position j and token j + 1 (spec/model.md section 7), so a row can only
// be fed when the next token is known. The residuals of the positions that wait are kept in the sequence's state
// (SequenceState::MtpState::hidden): they are part of its checkpoints, not of its files.
//
// A position whose residual is gone (it was run with drafting off, or before the state was written to a file, or while
// the head did not pay and too many waited) is left out: the head's rows are numbered by its own cache, and only their
// distances matter to it. A head with a gap guesses a little worse; the text is the same.
#pragma once

#include <optional>

#include "runtime/draft.h"

namespace tandem {

class MtpDrafter : public DraftHead {
 public:
  // REQUIRES a model with a draft head. Pipeline and state must outlive this.
  MtpDrafter(Pipeline& pipeline, SequenceState& state, MtpNorm norm, MtpAttention attention);

  // The trunk's wide output for the positions from `first` on, which are committed, of a round (they wait for the next
  // draft; after kPatience rounds without one only the last few stay, so that a head that does not pay costs next to
  // nothing) or of a prompt (the head is fed at once). May run the pipeline: no output of an earlier pass is valid
  // afterwards.
  static constexpr std::size_t kPatience = 24, kMostWaiting = 32, kLeastWaiting = 8;
  enum class Rows { kRound, kPrompt };
  void take(std::size_t first, ConstRows wide, Rows rows);
  // Feeds every waiting row whose next token is among `tokens`, the sequence from its beginning. The logits of the last
  // row fed stand afterwards when `logits` is set.
  void catch_up(std::span<const TokenId> tokens, bool logits);

  void start(std::size_t answer_start, const SamplerSettings& sampling) override;
  bool begin(std::span<const TokenId> prefix) override;
  Draft draft(std::span<const TokenId> prefix) override;
  void advance(TokenId token, bool logits) override;
  void end() override;

 private:
  Pipeline& pipeline_;
  SequenceState& state_;
  MtpHead head_;
  std::optional<Sampler> sampler_;
  std::optional<DraftChoice> choice() const;  // of the token at next_
  std::size_t answer_start_ = 0;
  std::size_t next_ = 0;    // position of the token that `out_` is about
  std::size_t rounds_ = 0;  // since the last chain
  PassOutput out_;
};

}  // namespace tandem
