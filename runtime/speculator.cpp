#include "runtime/speculator.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "placement/check.h"

namespace tandem {
namespace {

// A head that rests is tried for at most kTrialRounds rounds of up to kTrialDrafts drafts; what was known of it counts
// like kTrialMemory observations then, so that one trial can change the verdict. A trial ends when drafting pays, or is
// behind by more than kDoubt / sqrt(rounds tried) tokens a round. The next one comes when the last has cost no more
// than kTrialShare of the tokens since: after kFirstPatience to kLastPatience rounds. Later drafts are made where a
// step of the head costs no more than kTrialStep tokens.
constexpr std::size_t kFirstPatience = 64, kLastPatience = 1024, kTrialRounds = 8, kTrialDrafts = 3;
constexpr double kTrialMemory = 4, kDoubt = 0.3, kTrialShare = 0.0025, kTrialStep = 0.1;
// The head pays again when it was worth a draft this often in a row without being on trial.
constexpr std::size_t kProofs = 2;
// A head that is more tokens behind has to catch up on so many rows, a number that a card may have to record first:
// what its next draft takes says nothing of those after it. (2026-12-01, 6 layers on an H200: 0.46 ms instead of 0.37,
// by which drafts did not pay that brought 6 %.)
constexpr std::size_t kFarBehind = 16;
// While drafting pays, a round without drafts keeps the time of such a round known.
constexpr std::size_t kLastPlainPatience = 256;

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Speculator::Speculator(const DraftSettings& settings, DraftHead* head, std::function<double()> now)
    : settings_(settings), head_(head), now_(now ? std::move(now) : steady_seconds) {
  CHECK(!settings.depth || (*settings.depth >= 0 && *settings.depth <= static_cast<int>(kMaxHeadDrafts)), "{}",
        settings.depth.value_or(0));
  if (!settings.head) head_ = nullptr;
}

void Speculator::start(std::span<const TokenId> prefix, std::size_t answer_start, const SamplerSettings& sampling,
                       std::span<const TokenId> stop_ids) {
  stop_ids_.assign(stop_ids.begin(), stop_ids.end());
  fed_ = prefix.size();
  if (settings_.lookup) lookup_.assign(prefix);
  if (head_ != nullptr) head_->start(answer_start, sampling);
}

bool Speculator::is_stop(TokenId token) const {
  return std::find(stop_ids_.begin(), stop_ids_.end(), token) != stop_ids_.end();
}

std::span<const Draft> Speculator::propose(std::vector<TokenId>& prefix, std::size_t most) {
  drafts_.clear();
  found_.clear();
  most = std::min(most, kMaxDrafts);
  if (settings_.lookup) {
    lookup_.extend(prefix);
    find_lookup();
  }
  if (most > 0) {
    if (settings_.depth)
      propose_fixed(prefix, most);
    else
      propose_auto(prefix, most);
  }
  return drafts_;
}

// Nothing can follow a stop token, so a draft that is one is the last.
void Speculator::find_lookup() {
  const PromptLookup::Match match = lookup_.find();
  if (match.length == 0) return;
  while (found_.size() < kMaxDrafts) {
    const TokenId token = lookup_.continuation(match, found_.size());
    found_.push_back({token, DraftSource::kLookup, 0.0F, match.length + found_.size()});
    if (is_stop(token)) return;
  }
}

void Speculator::take_lookup(std::size_t count) {
  drafts_.assign(found_.begin(), found_.begin() + static_cast<std::ptrdiff_t>(std::min(count, found_.size())));
}

void Speculator::run_head(std::vector<TokenId>& prefix, const std::function<bool()>& wanted) {
  if (!drafts_.empty() && is_stop(drafts_.back().token)) return;
  const std::size_t size = prefix.size();
  double time = now_();
  if (!head_->begin(prefix)) return;
  const bool behind = size - std::exchange(fed_, size) > kFarBehind;
  const std::size_t walked = drafts_.size();
  for (std::size_t i = 0; i < walked; ++i) {
    head_->advance(drafts_[i].token, i + 1 == walked);
    prefix.push_back(drafts_[i].token);
  }
  for (std::size_t made = 0; made < kMaxHeadDrafts; ++made) {
    if (made > 0) {
      if (!wanted()) break;
      head_->advance(drafts_.back().token, true);
    }
    // Choosing the token belongs to it: on a host, of 248,320, it took several times as long as the card's pass.
    const Draft draft = head_->draft(prefix);
    const double then = std::exchange(time, now_()), spent = time - then;
    if (made > 0)
      step_.add(spent);
    else if (walked == 0 && !behind)
      begin_.add(spent);
    else if (walked > 0 && !behind && begin_.count() > 0)
      walk_.add(std::max(0.0, spent - begin_.mean()) / static_cast<double>(walked));
    acceptance_.made(draft, made);
    drafts_.push_back(draft);
    prefix.push_back(draft.token);
    if (is_stop(draft.token)) break;
  }
  head_->end();
  prefix.resize(size);
}

void Speculator::propose_fixed(std::vector<TokenId>& prefix, std::size_t most) {
  double reach = 1;
  std::size_t count = 0;
  while (count < std::min(most, found_.size())) {
    const double chance = acceptance_.chance(found_[count], 0);
    reach *= chance;
    if (reach < (count == 0 ? kTrust : kLeastReach)) break;
    ++count;
  }
  take_lookup(count);
  const std::size_t wanted = std::min(most, static_cast<std::size_t>(*settings_.depth));
  if (head_on() && drafts_.size() < wanted) run_head(prefix, [&] { return drafts_.size() < wanted; });
}

Speculator::Beliefs Speculator::beliefs() const {
  const double chance = acceptance_.head_chance(0), rate = rate_.known() ? rate_.rate() : 0.0;
  const double gain = choose_depth(std::span(&chance, 1), clock_, rate, 0, begin_.mean(), step_.mean(), 1).gain;
  return {clock_.seconds(1), clock_.seconds(2), begin_.mean(), step_.mean(), chance, gain,
          clock_.count(1),   clock_.count(2)};
}

// Rounds that are not what the figures say is best, so that the figures stay true.
bool Speculator::probe() {
  // The first rounds show what a round without drafts takes, and the rate of tokens.
  if (!clock_.known() || !rate_.known()) return true;
  if (clock_.age(1) >= plain_patience_) {
    plain_patience_ = std::min(2 * plain_patience_, kLastPlainPatience);
    return true;
  }
  return false;
}

// Whether this round belongs to a trial of the head. `gain`: tokens that its best depth above 0 is expected to bring
// more than a round without drafts, below 0 while it does not pay.
bool Speculator::on_trial(double gain) {
  if (trial_ == 0) {
    if (idle_ < patience_) return false;
    trial_ = kTrialRounds;
    lost_ = 0;
    acceptance_.fade_head(kTrialMemory);
    return true;
  }
  const auto tried = static_cast<double>(kTrialRounds - trial_);
  if (tried < kProofs || (gain <= 0 && gain >= -kDoubt / std::sqrt(tried))) return true;
  end_trial();
  return false;
}

void Speculator::end_trial() {
  trial_ = 0;
  patience_ = static_cast<std::size_t>(
      std::clamp(lost_ / kTrialShare, static_cast<double>(kFirstPatience), static_cast<double>(kLastPatience)));
}

void Speculator::try_head(std::vector<TokenId>& prefix, std::size_t most) {
  idle_ = 0;
  const bool deep = rate_.rate() * step_.mean() <= kTrialStep;
  const double before = now_();
  run_head(prefix, [&] { return deep && drafts_.size() < std::min(most, kTrialDrafts); });
  const double spent = now_() - before;  // catching up, too
  // One at least is checked: a head may have become better than its confidence says.
  if (!drafts_.empty()) {
    chances_.clear();
    for (std::size_t i = 0; i < drafts_.size(); ++i) chances_.push_back(acceptance_.chance(drafts_[i], i));
    const double rate = rate_.rate();
    const DepthChoice kept = choose_depth(chances_, clock_, rate, chances_.size(), 0, 0, 1);
    drafts_.resize(kept.depth);
    lost_ += rate * spent - kept.gain;
  }
  if (--trial_ == 0) end_trial();
}

void Speculator::propose_auto(std::vector<TokenId>& prefix, std::size_t most) {
  ++idle_;
  if (probe()) return;
  const double rate = rate_.rate();
  // What the lookup offers is there for nothing; what the head will say is only known in the mean.
  chances_.clear();
  for (std::size_t i = 0; i < std::min(most, found_.size()); ++i) chances_.push_back(acceptance_.chance(found_[i], 0));
  const DepthChoice lookup = choose_depth(chances_, clock_, rate, chances_.size(), 0, 0);
  chances_.resize(lookup.depth);
  if (head_ == nullptr) return take_lookup(lookup.depth);

  const auto expect_head = [&](std::size_t before) {
    for (std::size_t i = 0; i < kMaxHeadDrafts && chances_.size() < most; ++i)
      chances_.push_back(acceptance_.head_chance(i + before));
  };
  std::vector<double> alone(std::exchange(chances_, {}));
  expect_head(0);
  const DepthChoice head = choose_depth(chances_, clock_, rate, 0, begin_.mean(), step_.mean());
  std::size_t from = 0;  // drafts of the lookup before those of the head
  // Whether the head should make one more draft: by the mean it is worth its time, or the sure ones among them are.
  // `first`: what that draft costs; the first of a chain is there when the head has caught up.
  const auto worth = [&](double first) {
    const std::size_t there = drafts_.size();
    if (there >= most) return false;
    if (choose_depth(chances_, clock_, rate, there, first, step_.mean()).depth > there) return true;
    double reach = 1;
    for (std::size_t i = 0; i < there; ++i) reach *= chances_[i];
    const double row = rate * (clock_.seconds(2 + there) - clock_.seconds(1 + there));
    return acceptance_.head_worth(there - from, reach, row) > rate * first;
  };
  const bool by_lookup = lookup.depth > 0 && lookup.gain >= head.gain;
  if (!by_lookup && on_trial(choose_depth(chances_, clock_, rate, 0, begin_.mean(), step_.mean(), 1).gain))
    return try_head(prefix, most);
  if (by_lookup) {
    take_lookup(lookup.depth);
    from = lookup.depth;
    chances_ = alone;
    expect_head(0);
    // The head has to walk over the lookup's drafts first.
    const double walk = begin_.mean() + static_cast<double>(from) * walk_.mean();
    if (!worth(walk)) return;
  } else if (!worth(begin_.mean())) {
    paid_ = 0;
    return;
  }
  if (++paid_ >= kProofs) patience_ = kFirstPatience;
  run_head(prefix, [&] {
    const std::size_t last = drafts_.size() - 1;
    chances_[last] = acceptance_.chance(drafts_.back(), last - from);
    return worth(step_.mean());
  });
  // A draft that the head itself doubts may not be worth its row.
  for (std::size_t i = from; i < drafts_.size(); ++i) chances_[i] = acceptance_.chance(drafts_[i], i - from);
  chances_.resize(std::min(chances_.size(), drafts_.size()));
  drafts_.resize(choose_depth(chances_, clock_, rate, chances_.size(), 0, 0).depth);
  // A head whose drafts are all cut off is not judged any more: it is to be tried again like one that rests.
  if (drafts_.size() > from) idle_ = 0;
}

void Speculator::settle(const DraftRound& round) {
  if (round.truth.empty()) return;
  // Drafts up to the first wrong one have been judged. The lookup is judged even when it was not used.
  const auto judge = [&](const std::vector<Draft>& drafts, bool head) {
    std::size_t chain = 0;
    for (std::size_t i = 0; i < std::min(drafts.size(), round.truth.size()); ++i) {
      const bool right = drafts[i].token == round.truth[i];
      if ((drafts[i].source == DraftSource::kHead) == head) acceptance_.observe(drafts[i], chain, right);
      if (drafts[i].source == DraftSource::kHead) ++chain;
      if (!right) return;
    }
  };
  judge(drafts_, true);
  judge(found_, false);
  // What says nothing of the time of a pass says nothing of the rate of late either.
  if (clock_.observe(round.rows, round.pass_seconds, round.misses))
    rate_.add(static_cast<double>(round.truth.size()), round.round_seconds);
}

}  // namespace tandem
