#include "runtime/draft_costs.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "placement/check.h"
#include "placement/cost_model.h"

namespace tandem {

// ---- AcceptanceTable ----

void AcceptanceTable::Bucket::observe(double right) {
  accepted = accepted * kKeep + right;
  all = all * kKeep + 1.0;
}

void AcceptanceTable::Bucket::fade(double most, double guess) {
  if (all <= most) return;
  accepted = chance(guess) * (most + kPriorWeight) - kPriorWeight * guess;
  all = most;
}

void AcceptanceTable::fade_head(double most) {
  head_any_[0].fade(most, kFirstAcceptance);
  for (std::size_t i = 1; i < kMaxHeadDrafts; ++i) head_any_[i] = {};
  for (std::size_t k = 0; k < kChains; ++k) {
    for (Bucket& bucket : head_[k]) bucket.fade(most, bucket.prior);
    const double all = std::accumulate(made_[k].begin(), made_[k].end(), 0.0), left = k == 0 ? most : 0;
    if (all <= left) continue;
    for (double& count : made_[k]) count *= left / all;
  }
}

AcceptanceTable::AcceptanceTable() {
  for (auto& chain : head_)
    for (std::size_t c = 0; c < kConfidences; ++c)
      chain[c].prior = (static_cast<double>(c) + 0.5) / static_cast<double>(kConfidences);
  constexpr double kByMatch[kMatches] = {0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95};
  for (std::size_t m = 0; m < kMatches; ++m) lookup_[m].prior = kByMatch[m];
}

std::size_t AcceptanceTable::confidence_class(float confidence) {
  const auto c = static_cast<std::size_t>(confidence * static_cast<float>(kConfidences));
  return std::min(c, kConfidences - 1);
}

std::size_t AcceptanceTable::match_class(std::size_t match) {
  constexpr std::size_t kUpTo[] = {3, 4, 6, 9, 15, 31};
  return static_cast<std::size_t>(std::lower_bound(std::begin(kUpTo), std::end(kUpTo), match) - std::begin(kUpTo));
}

double AcceptanceTable::chance(const Draft& draft, std::size_t chain) const {
  if (draft.source == DraftSource::kLookup) return lookup_[match_class(draft.match)].chance();
  return head_[chain_class(chain)][confidence_class(draft.confidence)].chance();
}

double AcceptanceTable::head_chance(std::size_t chain) const {
  // What is guessed beforehand of a place follows from the place before it, so that a head that is better than the
  // guess is asked for longer chains step by step.
  double chance = kFirstAcceptance;
  for (std::size_t i = 0;; ++i) {
    chance = head_any_[i].chance(chance);
    if (i == std::min(chain, kMaxHeadDrafts - 1)) return chance;
    chance *= kAcceptanceDecay;
  }
}

double AcceptanceTable::head_worth(std::size_t chain, double reach, double cost) const {
  const std::size_t k = chain_class(chain);
  double all = 0, worth = 0;
  for (std::size_t c = 0; c < kConfidences; ++c) {
    all += made_[k][c];
    worth += made_[k][c] * std::max(0.0, reach * head_[k][c].chance() - cost);
  }
  return all > 0 ? worth / all : std::max(0.0, reach * head_chance(chain) - cost);
}

// Drafts that looked too bad to be checked count as well: otherwise a head would be judged by its best drafts only.
void AcceptanceTable::made(const Draft& draft, std::size_t chain) {
  const std::size_t k = chain_class(chain);
  head_any_[std::min(chain, kMaxHeadDrafts - 1)].observe(chance(draft, chain));
  for (double& count : made_[k]) count *= kKeep;
  made_[k][confidence_class(draft.confidence)] += 1;
}

void AcceptanceTable::observe(const Draft& draft, std::size_t chain, bool accepted) {
  const double right = accepted ? 1 : 0;
  if (draft.source == DraftSource::kLookup) return lookup_[match_class(draft.match)].observe(right);
  head_[chain_class(chain)][confidence_class(draft.confidence)].observe(right);
}

// ---- RunningMean, PassClock, TokenRate ----

void RunningMean::add(double value) {
  ++count_;
  if (count_ > kTrusted && mean_ > 0) value = std::min(value, kClip * mean_);
  mean_ += (value - mean_) * std::max(kWeight, 1.0 / static_cast<double>(count_));
}

void RunningTime::add(double seconds) {
  if (count_ < kFirst) {
    const auto end = first_.begin() + static_cast<std::ptrdiff_t>(count_);
    const auto at = std::upper_bound(first_.begin(), end, seconds);
    std::move_backward(at, end, end + 1);
    *at = seconds;
    mean_ = first_[count_ / 3];
  } else {
    mean_ += ((mean_ > 0 ? std::min(seconds, kClip * mean_) : seconds) - mean_) * kWeight;
  }
  ++count_;
}

bool PassClock::observe(std::size_t rows, double seconds, double misses) {
  CHECK(rows >= 1 && rows <= kMaxWindow, "{}", rows);
  constexpr double kKeepMisses = 0.98, kLevelWeight = 0.1;
  Width& width = width_[rows];
  width.last = ++observed_;
  if (!std::exchange(width.seen, true)) return false;
  ++counted_;
  if (width.time.count() > 0) {
    const double mean = width.misses.mean(), off = misses - mean;
    cross_ =
        kKeepMisses * cross_ + off * (std::min(seconds, RunningTime::kClip * width.time.mean()) - width.time.mean());
    square_ = kKeepMisses * square_ + off * off;
    if (mean > 0) level_ += (std::min(misses / mean, RunningMean::kClip) - level_) * kLevelWeight;
  }
  for (Width& each : width_) each.weight *= kKeep;
  width.weight += 1;
  width.time.add(seconds);
  width.misses.add(misses);
  return true;
}

// A width weighs as often as it was run, at most kMost times; one that was run too rarely counts where no other does.
double PassClock::line_weight(std::size_t count) {
  constexpr double kMost = 10, kUnsure = 1e-3;
  return (count < kSure ? kUnsure : 1.0) * std::min(kMost, static_cast<double>(count));
}

// A line through the means of the widths that were run; the guessed slope, relative to the mean, holds it like one more
// observation one row away.
template <class Value>
double PassClock::on_line(Value Width::*value, double guess, std::size_t rows) const {
  double n = 0, x = 0, y = 0;
  for (std::size_t w = 1; w <= kMaxWindow; ++w) {
    const Value& mean = width_[w].*value;
    const double weight = line_weight(mean.count());
    n += weight;
    x += weight * static_cast<double>(w);
    y += weight * mean.mean();
  }
  if (n == 0) return 0;
  x /= n;
  y /= n;
  double xx = 1, xy = guess * y / (1 + guess * (x - 1));
  for (std::size_t w = 1; w <= kMaxWindow; ++w) {
    const Value& mean = width_[w].*value;
    const double weight = line_weight(mean.count()), off = static_cast<double>(w) - x;
    xx += weight * off * off;
    xy += weight * off * (mean.mean() - y);
  }
  // A pass never gets faster by a row more.
  return std::max(0.0, y + std::max(0.0, xy / xx) * (static_cast<double>(rows) - x));
}

double PassClock::seconds(std::size_t rows) const {
  constexpr double kMostChange = 0.5;  // what misses of late may change, as a share of the mean
  const Width& width = width_[rows];
  const double n = width.time.count() < kSure ? 0.0 : width.weight;
  const double mean = (n * width.time.mean() + on_line(&Width::time, kRowGuess, rows)) / (n + 1);
  const double per_miss = square_ > 0 ? std::max(0.0, cross_ / square_) : 0.0;
  const double usual = level_ > 0 ? misses(rows) / level_ : 0.0;
  const double change = per_miss * (level_ - 1) * usual;
  return mean + std::clamp(change, -kMostChange * mean, kMostChange * mean);
}

// Rows of a pass share experts: half as many new ones with every row more is what a first guess says.
double PassClock::misses(std::size_t rows) const {
  constexpr double kMissGuess = 0.5;
  const Width& width = width_[rows];
  const auto n = static_cast<double>(width.misses.count());
  return level_ * (n * width.misses.mean() + on_line(&Width::misses, kMissGuess, rows)) / (n + 1);
}

std::size_t PassClock::age(std::size_t rows) const {
  return observed_ - width_[rows].last;
}

void TokenRate::add(double tokens, double seconds) {
  tokens_ = kKeep * tokens_ + tokens;
  seconds_ = kKeep * seconds_ + seconds;
}

DepthChoice choose_depth(std::span<const double> chances, const PassClock& clock, double rate, std::size_t made,
                         double first, double step, std::size_t least) {
  CHECK(least <= chances.size(), "{} of {} drafts", least, chances.size());
  DepthChoice best;
  const double alone = clock.seconds(1);
  double reach = 1, tokens = 0, drafting = 0;
  for (std::size_t d = 1; d <= std::min(chances.size(), kMaxDrafts); ++d) {
    reach *= chances[d - 1];
    tokens += reach;
    if (d > made) drafting += d == made + 1 ? first : step;
    const double gain = tokens - rate * (clock.seconds(1 + d) - alone + drafting);
    if (gain > best.gain || d == least) best = {d, gain};
  }
  return best;
}

}  // namespace tandem
