// Which experts sit on the card while text is generated. One class decides; the running machine and the offline replay
// of a trace both ask it, so that a replay predicts a live run to the route.
//
// A round is one pass over some rows. Decisions made at the end of round r are copied during round r + 1 and hold from
// round r + 2 on, whatever the copies' speed: which routes hit does not depend on timing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "placement/plan.h"

namespace tandem {

// One expert in, one out, of the same size class.
struct Swap {
  int in_bank = 0, in_expert = 0;
  int out_bank = 0, out_expert = 0;
};

struct AdaptSettings {
  AdaptMode mode = AdaptMode::kOff;
  int swaps_per_round = 2;  // at most; kLru and kLfu have no budget: they take in every miss, as such caches do
  double half_life_rows = 2000;
  double margin = 1.3;
  int floor_per_bank = 0;  // experts that every bank keeps on the card (what it had at the start, if fewer)
};

class Adapter {
 public:
  // `movable` is false for pinned and banned experts and for experts on disk. Banks of one size class share slots.
  Adapter(AdaptSettings settings, const ExpertPlacement& start, std::vector<std::int64_t> expert_bytes,
          std::vector<bool> movable);

  bool on_card(int bank, int expert) const { return card_[index(bank, expert)] != 0; }
  // The routes of `rows` rows in one bank during the round: ids [rows * used], counted hit or miss as they stand now.
  void observe(int bank, std::span<const std::int32_t> ids, std::size_t rows);
  // Ends the round. Swaps decided at the end of the last round hold from now on; returns those decided now, which are
  // to be copied during the next round.
  std::vector<Swap> end_round();

  struct Counts {
    std::uint64_t routes = 0, hits = 0;
    std::uint64_t bytes = 0, hit_bytes = 0;  // of distinct (bank, expert) met in each round
    std::uint64_t rounds = 0, rows = 0;
    std::uint64_t misses = 0;  // distinct off-card experts met, summed over rounds
    std::uint64_t swaps = 0, swap_bytes = 0;
    double hit_rate() const { return routes == 0 ? 0.0 : static_cast<double>(hits) / static_cast<double>(routes); }
  };
  const Counts& counts() const { return counts_; }

 private:
  std::size_t index(int bank, int expert) const { return static_cast<std::size_t>(bank * experts_ + expert); }
  int banks_, experts_;
  AdaptSettings settings_;
  std::vector<std::int64_t> expert_bytes_;
  std::vector<bool> movable_;
  std::vector<char> card_;
  Counts counts_;
};

}  // namespace tandem
