// A draft head whose guesses are right as often as one says: the real head does its work, for its time, and its guesses
// are replaced. To measure what drafting is worth at a stated acceptance, above all on models whose head knows nothing
// (random weights). Only on a forced text.
#pragma once

#include "runtime/draft.h"

namespace tandem {

class StatedHead : public DraftHead {
 public:
  // `chance`: that a draft is right when those before it are. REQUIRES 0 <= chance <= 1. `inner` must outlive this.
  StatedHead(DraftHead& inner, double chance, std::uint64_t seed) : inner_(inner), chance_(chance), seed_(seed) {}
  // The text from here on: all of it, from position 0. Must stay valid.
  void set_text(std::span<const TokenId> text) { text_ = text; }

  void start(std::size_t answer_start, const SamplerSettings& sampling) override {
    inner_.start(answer_start, sampling);
  }
  bool begin(std::span<const TokenId> prefix) override { return inner_.begin(prefix); }
  // The token of the text after `prefix`, or with a chance of 1 - `chance` another one; which, follows from seed and
  // position alone. Its confidence is `chance`, as of a head that knows how often it is right.
  Draft draft(std::span<const TokenId> prefix) override;
  void advance(TokenId token, bool logits) override { inner_.advance(token, logits); }
  void end() override { inner_.end(); }

 private:
  DraftHead& inner_;
  double chance_;
  std::uint64_t seed_;
  std::span<const TokenId> text_;
};

}  // namespace tandem
