// The rules of placement/adapt.h, read literally, for the tests that hold the adapter to them.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "placement/adapt.h"

namespace tandem::testing {

struct Rig {
  AdaptSettings settings;
  ExpertPlacement start;
  std::vector<std::int64_t> bytes;
  std::vector<bool> movable;
  Lending lending;
  std::size_t index(int bank, int expert) const { return static_cast<std::size_t>(bank * start.experts + expert); }
};

inline Rig make_setup(AdaptMode mode, int banks, int experts, const std::vector<std::pair<int, int>>& card) {
  Rig setup;
  setup.settings.mode = mode;
  const auto all = static_cast<std::size_t>(banks * experts);
  setup.start = {banks, experts, std::vector<Place>(all, Place::kRam)};
  for (const auto& [bank, expert] : card) setup.start.at(bank, expert) = Place::kCard;
  setup.bytes.assign(static_cast<std::size_t>(banks), 100);
  setup.movable.assign(all, true);
  return setup;
}

inline Adapter make_adapter(const Rig& s) {
  return Adapter(s.settings, s.start, s.bytes, s.movable, s.lending);
}

// The rules of adapt.h, read literally: everything is scanned, all counts decay every round.
class Model {
 public:
  explicit Model(const Rig& setup) : s_(setup), n_(setup.start.place.size()) {
    card_.resize(n_);
    lent_.resize(n_);
    for (std::size_t i = 0; i < n_; ++i) card_[i] = s_.start.place[i] == Place::kCard;
    for (int b = 0; b < s_.start.banks; ++b) floor_.push_back(std::min(s_.settings.floor_per_bank, of_bank(b, card_)));
    count_.resize(n_);
    last_round_.assign(n_, -1);
    last_uses_.resize(n_);
  }

  std::vector<Swap> end_round(const std::vector<int>& uses, std::size_t rows, bool decode) {
    for (const Swap& swap : pending_) {
      card_[s_.index(swap.in_bank, swap.in_expert)] = true;
      lent_[s_.index(swap.in_bank, swap.in_expert)] = swap.lent;
      card_[s_.index(swap.out_bank, swap.out_expert)] = false;
    }
    pending_.clear();
    for (const Loan& loan : loans_)
      card_[s_.index(loan.bank, loan.expert)] = lent_[s_.index(loan.bank, loan.expert)] = true;
    loans_.clear();
    ++round_;
    for (std::size_t i = 0; i < n_; ++i) {
      count_[i] = count_[i] * std::exp2(-static_cast<double>(rows) / s_.settings.half_life_rows) + uses[i];
      if (uses[i] > 0) {
        last_round_[i] = round_;
        last_uses_[i] = uses[i];
      }
    }
    after_ = card_;
    for (std::size_t i = 0; i < n_; ++i) after_[i] = card_[i] && !lent_[i];
    moving_.assign(n_, false);
    if (decode) lend();
    if (s_.settings.mode == AdaptMode::kLru || s_.settings.mode == AdaptMode::kLfu) admit(uses);
    if (s_.settings.mode == AdaptMode::kSwaps)
      for (int k = 0; k < s_.settings.swaps_per_round && swap_once(uses); ++k) {
      }
    return pending_;
  }
  void reclaim() {
    queue_.reset();
    take_back([](const Held& held) { return held.area == 0; });
  }
  void need_cache(std::int64_t positions) {
    if (positions < needed_) queue_.reset();
    needed_ = positions;
    take_back([&](const Held& held) {
      return held.area > 0 && held.at / s_.lending.cache.position_bytes < positions;  // its first byte is of such a row
    });
  }
  bool on_card(std::size_t i) const { return card_[i]; }
  bool lent(std::size_t i) const { return lent_[i]; }
  const std::vector<Loan>& loans() const { return loans_; }

 private:
  std::int64_t bytes(std::size_t i) const { return s_.bytes[static_cast<std::size_t>(bank(i))]; }
  // A place in lent memory, by byte of its area: the prompt memory (0), or one of the cache.
  struct Held {
    std::size_t who;
    int area;
    std::int64_t at, size;
  };
  template <typename Which>
  void take_back(Which&& which) {
    for (const Held& held : held_) {
      if (!which(held)) continue;
      const auto is = [&](int bank, int expert) { return s_.index(bank, expert) == held.who; };
      card_[held.who] = lent_[held.who] = false;
      std::erase_if(loans_, [&](const Loan& loan) { return is(loan.bank, loan.expert); });
      std::erase_if(pending_, [&](const Swap& swap) { return is(swap.in_bank, swap.in_expert); });
    }
    std::erase_if(held_, which);
  }
  // Down from the end of that area of the cache which is free the furthest up, a while ahead of what is needed; else up
  // from the last in the prompt memory.
  std::optional<Held> place(const std::vector<Held>& held, std::size_t who) const {
    const CacheAreas& cache = s_.lending.cache;
    int area = 0;
    std::int64_t top = 0, used = 0;
    for (int a = 1; a <= cache.count; ++a) {
      std::int64_t end = cache.bytes;
      for (const Held& h : held)
        if (h.area == a) end = std::min(end, h.at);
      end -= end % 64;
      if (area == 0 || end > top) {
        area = a;
        top = end;
      }
    }
    for (std::int64_t at = top - bytes(who); area > 0 && at >= 0; --at) {
      if (at % 64 != 0) continue;
      if (at / cache.position_bytes < needed_ + s_.lending.cache_ahead) break;
      return Held{who, area, at, bytes(who)};
    }
    for (const Held& h : held)
      if (h.area == 0) used = std::max(used, h.at + h.size);
    if (used + bytes(who) > s_.lending.bytes) return std::nullopt;
    return Held{who, 0, used, bytes(who)};
  }
  // Whom memory is lent is decided once, after some was taken back: again and again who is worth most of those left.
  void lend() {
    if (!queue_) {
      queue_.emplace();
      std::vector<bool> seen(n_);
      for (std::vector<Held> held = held_;;) {
        std::optional<std::size_t> best;
        for (std::size_t i = 0; i < n_; ++i)
          if (!card_[i] && movable(i) && !seen[i] && (!best || worth(i) > worth(*best))) best = i;
        if (!best) break;
        seen[*best] = true;
        if (const std::optional<Held> found = place(held, *best)) {
          held.push_back(*found);
          queue_->push_back(*best);
        }
      }
    }
    for (std::int64_t room = s_.lending.bytes_per_round; !queue_->empty();) {
      const std::size_t i = queue_->front();
      if (!card_[i]) {
        if (!loans_.empty() && bytes(i) > room) return;
        if (const std::optional<Held> found = place(held_, i)) {
          room -= bytes(i);
          const std::int64_t first = found->area > 0 ? (found->area - 1) * s_.lending.cache.stride : 0;
          loans_.push_back({bank(i), static_cast<int>(i) % s_.start.experts, first + found->at, found->area > 0});
          held_.push_back(*found);
          moving_[i] = true;
        }
      }
      queue_->erase(queue_->begin());
    }
  }
  double worth(std::size_t i) const {
    const bool counted = s_.settings.mode == AdaptMode::kLfu || s_.settings.mode == AdaptMode::kSwaps;
    const double expected = s_.lending.expected.empty() ? 0.0 : kExpectedRows * s_.lending.expected[i];
    return (expected + (counted ? count_[i] : 0.0)) / static_cast<double>(bytes(i));
  }
  int bank(std::size_t i) const { return static_cast<int>(i) / s_.start.experts; }
  int of_bank(int b, const std::vector<bool>& card) const {
    int n = 0;
    for (int e = 0; e < s_.start.experts; ++e) n += card[s_.index(b, e)] ? 1 : 0;
    return n;
  }
  bool movable(std::size_t i) const { return s_.movable[i] && s_.start.place[i] != Place::kDisk && !moving_[i]; }
  // Worth of keeping a against b: -1, 0, 1.
  int compare(std::size_t a, std::size_t b) const {
    const auto three_way = [](auto x, auto y) { return x < y ? -1 : x > y ? 1 : 0; };
    if (s_.settings.mode != AdaptMode::kLru) return three_way(count_[a], count_[b]);
    if (const int c = three_way(last_round_[a], last_round_[b]); c != 0) return c;
    return three_way(last_uses_[a], last_uses_[b]);
  }
  std::optional<std::size_t> coldest(int b, std::size_t in) const {
    std::optional<std::size_t> best;
    for (std::size_t i = s_.index(b, 0); i < s_.index(b + 1, 0); ++i) {
      if (!card_[i] || !movable(i)) continue;
      if (s_.bytes[static_cast<std::size_t>(bank(i))] != s_.bytes[static_cast<std::size_t>(bank(in))]) continue;
      if (!best || compare(i, *best) < 0) best = i;
    }
    return best;
  }
  // Each bank offers its coldest, unless that would leave it below its floor.
  std::optional<std::size_t> victim(std::size_t in) const {
    std::optional<std::size_t> best;
    for (int b = 0; b < s_.start.banks; ++b) {
      const std::optional<std::size_t> i = coldest(b, in);
      if (!i) continue;
      if (b != bank(in) && !lent_[*i] && of_bank(b, after_) - 1 < floor_[static_cast<std::size_t>(b)]) continue;
      if (!best || compare(*i, *best) < 0) best = i;
    }
    return best;
  }
  void take(std::size_t in, std::size_t out) {
    const int experts = s_.start.experts;
    pending_.push_back(
        {bank(in), static_cast<int>(in) % experts, bank(out), static_cast<int>(out) % experts, lent_[out]});
    moving_[in] = moving_[out] = true;
    after_[in] = !lent_[out];
    after_[out] = false;
    if (!lent_[out]) return;
    card_[out] = lent_[out] = false;  // at once: it is in RAM as well
    std::find_if(held_.begin(), held_.end(), [&](const Held& h) { return h.who == out; })->who = in;
  }
  void admit(const std::vector<int>& uses) {
    std::vector<std::size_t> in;
    for (std::size_t i = 0; i < n_; ++i)
      if (uses[i] > 0 && !card_[i] && movable(i)) in.push_back(i);
    std::stable_sort(in.begin(), in.end(), [&](std::size_t a, std::size_t b) { return compare(a, b) > 0; });
    for (const std::size_t i : in) {
      const auto out = victim(i);
      if (out && uses[*out] <= uses[i] && compare(i, *out) > 0) take(i, *out);
    }
  }
  bool swap_once(const std::vector<int>& uses) {
    std::optional<std::pair<std::size_t, std::size_t>> best;
    double best_gain = 0;
    for (int b = 0; b < s_.start.banks; ++b) {
      std::optional<std::size_t> in;
      for (int e = 0; e < s_.start.experts; ++e) {
        const std::size_t i = s_.index(b, e);
        if (!card_[i] && movable(i) && (!in || compare(i, *in) > 0)) in = i;
      }
      const auto out = in ? victim(*in) : std::nullopt;
      if (!out || uses[*out] > uses[*in] || count_[*in] <= s_.settings.margin * count_[*out] + 1) continue;
      const double gain = (count_[*in] - count_[*out]) * static_cast<double>(s_.bytes[static_cast<std::size_t>(b)]);
      if (best && gain <= best_gain) continue;
      best = {*in, *out};
      best_gain = gain;
    }
    if (best) take(best->first, best->second);
    return best.has_value();
  }

  Rig s_;
  std::size_t n_;
  std::vector<bool> card_, lent_, after_, moving_;  // after_: who has a slot of his own when all moves are done
  std::optional<std::vector<std::size_t>> queue_;
  std::vector<Loan> loans_;
  std::vector<Held> held_;  // those that are promised a place have it already
  std::int64_t needed_ = 0;
  std::vector<int> floor_;
  std::vector<double> count_;
  std::vector<int> last_round_, last_uses_;
  int round_ = 0;
  std::vector<Swap> pending_;
};

}  // namespace tandem::testing
