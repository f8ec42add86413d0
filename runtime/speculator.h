// Decides every round which drafts are checked: those of the prompt lookup, those of the model's head, both in a row,
// or none. docs/drafting.md describes the rules.
#pragma once

#include <functional>

#include "runtime/draft.h"
#include "runtime/draft_costs.h"
#include "runtime/prompt_lookup.h"

namespace tandem {

// With a fixed depth nothing here depends on time: the same text gives the same rounds.
class Speculator : public Drafter {
 public:
  // With a fixed depth, lookup drafts are used while the chance to reach them is at least this.
  static constexpr double kTrust = 0.5, kLeastReach = 0.2;

  // `head` may be null. `now` reads a clock in seconds; empty: the system's steady clock.
  Speculator(const DraftSettings& settings, DraftHead* head, std::function<double()> now = {});

  void start(std::span<const TokenId> prefix, std::size_t answer_start, const SamplerSettings& sampling,
             std::span<const TokenId> stop_ids) override;
  std::span<const Draft> propose(std::vector<TokenId>& prefix, std::size_t most) override;
  void settle(const DraftRound& round) override;

  // What automatic drafting goes by at the moment: seconds of a pass without drafts and with one, and how often each
  // was timed; seconds of the head's first draft and of a further one; the chance that it is right; what it is worth in
  // tokens a round.
  struct Beliefs {
    double plain, drafted, head, step, chance, gain;
    std::size_t plain_count, drafted_count;
  };
  Beliefs beliefs() const;

  const DraftSettings& settings() const { return settings_; }
  const PassClock& clock() const { return clock_; }
  const AcceptanceTable& acceptance() const { return acceptance_; }

 private:
  bool head_on() const { return head_ != nullptr && settings_.depth.value_or(1) > 0; }
  void find_lookup();
  void take_lookup(std::size_t count);
  void propose_fixed(std::vector<TokenId>& prefix, std::size_t most);
  void propose_auto(std::vector<TokenId>& prefix, std::size_t most);
  bool probe();
  bool on_trial(double gain);
  void end_trial();
  void try_head(std::vector<TokenId>& prefix, std::size_t most);
  // Lets the head make drafts after those there are, as long as wanted(drafts so far) says so.
  void run_head(std::vector<TokenId>& prefix, const std::function<bool()>& wanted);
  bool is_stop(TokenId token) const;

  DraftSettings settings_;
  DraftHead* head_;
  std::function<double()> now_;
  std::vector<TokenId> stop_ids_;
  PromptLookup lookup_;
  std::vector<Draft> found_;   // what the lookup offers, used or not
  std::vector<Draft> drafts_;  // the proposal
  std::vector<double> chances_;

  AcceptanceTable acceptance_;
  PassClock clock_;
  TokenRate rate_;
  // Seconds of the head: catching up and a draft, a further draft, a draft of the lookup that it walks over.
  RunningTime begin_, step_, walk_;
  std::size_t idle_ = 0;            // rounds since a draft of the head was last checked
  std::size_t fed_ = 0;             // tokens that the head last knew
  std::size_t patience_ = 64;       // rounds until it is tried again
  std::size_t trial_ = 0;           // rounds still to try
  double lost_ = 0;                 // tokens that the trial has cost so far
  std::size_t paid_ = 0;            // rounds in a row in which the head was worth a draft
  std::size_t plain_patience_ = 8;  // rounds until a pass without drafts is timed again
};

}  // namespace tandem
