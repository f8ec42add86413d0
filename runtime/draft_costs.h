// What a draft more is worth and what it costs, learned while generating: how often drafts are accepted, how long a
// pass of w rows takes. docs/drafting.md has the equations. No clock is read here: durations come from the caller.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "runtime/draft.h"

namespace tandem {

// Chance that a draft is accepted, given that those before it in the round were. Counted in buckets; an empty bucket
// answers with a guess made beforehand, which counts like kPriorWeight observations.
class AcceptanceTable {
 public:
  static constexpr double kPriorWeight = 4;
  static constexpr double kKeep = 0.98;  // what an observation leaves of the older ones of its bucket

  AcceptanceTable();
  double chance(const Draft& draft, std::size_t chain) const;  // chain: place among the round's drafts of the head
  double head_chance(std::size_t chain) const;                 // of a draft not made yet
  // Mean of max(0, reach * chance - cost) over what the head's drafts at this place were of late: what it is worth to
  // see the next one, when a row for it costs `cost` tokens and it counts with probability `reach`.
  double head_worth(std::size_t chain, double reach, double cost) const;
  void made(const Draft& draft, std::size_t chain);  // a draft of the head, whether it will be checked or not
  void observe(const Draft& draft, std::size_t chain, bool accepted);
  // What is known of the head counts like this many observations at most: the text may have changed since. How often it
  // is right at later places is forgotten, and follows from the first.
  void fade_head(double most);

 private:
  struct Bucket {
    double accepted = 0, all = 0, prior = 0;
    double chance(double guess) const { return (accepted + kPriorWeight * guess) / (all + kPriorWeight); }
    double chance() const { return chance(prior); }
    void observe(double accepted);
    void fade(double most, double guess);  // the chance stays
  };
  static constexpr std::size_t kConfidences = 10, kChains = 4, kMatches = 7;
  static std::size_t chain_class(std::size_t chain) { return chain < kChains ? chain : kChains - 1; }
  static std::size_t confidence_class(float confidence);
  static std::size_t match_class(std::size_t match);

  std::array<std::array<Bucket, kConfidences>, kChains> head_;
  std::array<Bucket, kMaxHeadDrafts> head_any_;  // of the chances of drafts that were made
  std::array<std::array<double, kConfidences>, kChains> made_ = {};
  std::array<Bucket, kMatches> lookup_;
};

// A mean of the last values: the n-th value weighs 1/n, at least kWeight. From the kTrusted-th on a value above kClip
// times the mean counts as that much.
class RunningMean {
 public:
  static constexpr double kWeight = 0.1, kClip = 3.0;
  static constexpr std::size_t kTrusted = 3;
  void add(double value);
  double mean() const { return mean_; }
  std::size_t count() const { return count_; }

 private:
  double mean_ = 0;
  std::size_t count_ = 0;
};

// The same for seconds. Whatever else holds a pass up only makes it longer, and first passes on a card are recorded or
// slow otherwise: so of the first kFirst values one counts that two thirds of them are not below. On an H200 one pass
// of some 20 ms among nine of 5.5 had made a mean of 7.1, by which drafts paid that did not (2026-12-01).
class RunningTime {
 public:
  static constexpr double kWeight = RunningMean::kWeight, kClip = RunningMean::kClip;
  static constexpr std::size_t kFirst = 9;
  void add(double seconds);
  double mean() const { return mean_; }
  std::size_t count() const { return count_; }

 private:
  std::array<double, kFirst> first_{};  // ascending
  double mean_ = 0;
  std::size_t count_ = 0;
};

// Seconds of a pass by its rows. A width that was timed fewer than kSure times is put on a line through those that were
// timed more often (at first t(w) = t(1) (1 + kRowGuess (w - 1))). Others lie between their mean and the line, nearer
// to the line the longer they were not run. For a width that is thought dear is not used, so that nothing corrects it:
// a slow pass or two, or a slow time of the machine, must not stand for ever. When rounds meet more experts off the
// card than rounds of their width did in the past, every width gets dearer by what those misses cost, wide ones by
// more. The first pass of a width does not count: a card records it, which takes twenty times as long as the passes
// that follow.
class PassClock {
 public:
  static constexpr double kRowGuess = 0.15;
  static constexpr std::size_t kSure = 3;
  static constexpr double kKeep = 0.95;  // what a pass leaves of the weight of the times before it
  bool observe(std::size_t rows, double seconds, double misses);  // returns whether it counted
  bool known() const { return counted_ > 0; }
  double seconds(std::size_t rows) const;
  double misses(std::size_t rows) const;  // expected of a round, as things are now
  std::size_t age(std::size_t rows) const;
  std::size_t count(std::size_t rows) const { return width_[rows].time.count(); }

 private:
  struct Width {
    RunningTime time;
    RunningMean misses;
    bool seen = false;
    double weight = 0;     // times, older ones faded
    std::size_t last = 0;  // the observation that was its latest
  };
  static double line_weight(std::size_t count);
  template <class Value>
  double on_line(Value Width::*value, double guess, std::size_t rows) const;

  std::array<Width, kMaxWindow + 1> width_;
  std::size_t observed_ = 0, counted_ = 0;
  double level_ = 1.0;                 // misses of late, relative to the means of their widths
  double cross_ = 0.0, square_ = 0.0;  // of (time, misses) around the means: seconds a miss costs
};

// Tokens a second over the last rounds.
class TokenRate {
 public:
  static constexpr double kKeep = 0.97;
  void add(double tokens, double seconds);
  bool known() const { return seconds_ > 0; }
  double rate() const { return tokens_ / seconds_; }

 private:
  double tokens_ = 0, seconds_ = 0;
};

// The number of drafts d that makes E(d) - rate * T(d) largest, E the expected tokens of the round and T its seconds:
// in the long run this is the choice with the most tokens a second. Ties go to fewer drafts.
struct DepthChoice {
  std::size_t depth = 0;
  double gain = 0;  // tokens more than a round without drafts
};
// chances[i]: of draft i, given those before. The first `made` of them cost nothing more; the next one costs `first`
// seconds, and each after it `step`. At least `least` drafts are chosen, of as many chances or more; what that loses is
// a gain below 0.
DepthChoice choose_depth(std::span<const double> chances, const PassClock& clock, double rate, std::size_t made,
                         double first, double step, std::size_t least = 0);

}  // namespace tandem
