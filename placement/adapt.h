// Which experts sit on the card while text is generated. One class decides; the running machine and the offline replay
// of a trace both ask it, so that a replay predicts a live run to the route.
//
// A round is one pass over some rows. Decisions made at the end of round r are copied during round r + 1 and hold from
// round r + 2 on, whatever the copies' speed: which routes hit does not depend on timing. During r + 1 the expert that
// leaves is still used, so a copy needs a slot of its own until then.
//
// In every mode a swap is between two movable experts of the same size, no expert takes part in two swaps of a round,
// no bank falls below its floor (within one bank a swap is always allowed), and an expert used in the round does not
// give way to one used less in it. All ties go to the lower index (bank * experts + expert).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "placement/expert_heap.h"
#include "placement/plan.h"

namespace tandem {

// One expert in, one out, of the same size class.
struct Swap {
  int in_bank = 0, in_expert = 0;
  int out_bank = 0, out_expert = 0;
  bool operator==(const Swap&) const = default;
};

// kOff    nothing moves.
// kLru    the experts met in the round that are not on the card enter, the most used first; the one whose last use is
//         the longest ago leaves (of those last used in the same round the least used one, and only for one used more).
// kLfu    the same newcomers, by decayed count of routes; one enters when its count is above the lowest on the card.
// kSwaps  any expert off the card may enter. Up to swaps_per_round times, each bank's hottest newcomer is held against
//         the coldest expert that may leave for it; of the pairs with count in > margin * count out + 1 (one route
//         proves nothing) the one with the largest gain (count in - count out) * bytes is taken.
// Counts decay by half every half_life_rows rows.
struct AdaptSettings {
  AdaptMode mode = AdaptMode::kOff;
  int swaps_per_round = 2;  // at most; kLru and kLfu have no budget: they take in every miss, as such caches do
  double half_life_rows = 2000;
  double margin = 1.3;
  int floor_per_bank = 0;  // experts that every bank keeps on the card (what it had at the start, if fewer)
};

class Adapter {
 public:
  // `expert_bytes` has one value for each bank; banks of one size share slots. `movable` [banks * experts] is false for
  // pinned and banned experts; experts on disk never move. REQUIRES half_life_rows > 0, margin >= 1.
  Adapter(AdaptSettings settings, const ExpertPlacement& start, std::vector<std::int64_t> expert_bytes,
          std::vector<bool> movable);
  Adapter(Adapter&&) = default;  // the heaps point into the vectors: a copy would point into the original's
  Adapter(const Adapter&) = delete;
  Adapter& operator=(const Adapter&) = delete;

  int banks() const { return banks_; }
  int experts() const { return experts_; }
  bool on_card(int bank, int expert) const { return card_[index(bank, expert)] != 0; }
  // The routes of `rows` rows in one bank during the round: ids [rows * used], counted hit or miss as they stand now.
  void observe(int bank, std::span<const std::int32_t> ids, std::size_t rows);
  // Ends the round. Swaps decided at the end of the last round hold from now on; returns those decided now, which are
  // to be copied during the next round. Valid until the next call. Time: a few heap steps for every expert met.
  const std::vector<Swap>& end_round();

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
  using Index = std::int32_t;
  std::size_t index(int bank, int expert) const { return static_cast<std::size_t>(bank * experts_ + expert); }
  std::size_t bank_of(Index i) const { return static_cast<std::size_t>(i / experts_); }
  double key(Index i) const { return key_[static_cast<std::size_t>(i)]; }
  std::uint32_t uses(Index i) const { return uses_[static_cast<std::size_t>(i)]; }

  void insert(Index i);  // into the heap where it belongs
  void apply_pending();
  void count_round();
  void update_keys();
  Index victim_for(Index newcomer) const;  // the coldest that may leave for it, or -1
  bool may_replace(Index in, Index out) const;
  void decide(Index in, Index out);  // both are the tops of their heaps
  void admit_misses();
  void choose_swaps();

  int banks_, experts_;
  AdaptSettings settings_;
  std::vector<std::int64_t> expert_bytes_;
  std::vector<bool> movable_;
  std::vector<char> card_;
  std::vector<int> on_card_, floor_;  // per bank; on_card_ with the pending swaps done
  // What an expert is worth keeping: kLru the last round that met it and its uses there, else the decayed count, times
  // weight_, which grows instead of all counts shrinking.
  std::vector<double> key_;
  double weight_ = 1.0;
  std::vector<Index> position_;             // in its heap
  std::vector<ExpertHeap<false>> coldest_;  // per bank: movable experts on the card
  std::vector<ExpertHeap<true>> hottest_;   // per bank: movable experts off the card; only for kSwaps
  std::vector<std::uint32_t> uses_;         // in this round
  std::vector<Index> met_;                  // the experts with uses
  std::vector<std::size_t> bank_rows_;      // rows of this round
  std::vector<Index> newcomers_;            // scratch
  std::vector<Swap> pending_;
  Counts counts_;
};

}  // namespace tandem
