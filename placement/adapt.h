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
//
// Loans (placement/lending.h): memory that is not needed now is lent to experts, which stay in RAM as well, so that it
// can be taken back at once: the prompt memory before a pass of more than Lending::rows rows (reclaim()), the cache's
// as the sequence grows into it (need_cache()). At the end of every decode round that finds memory free, the next
// experts are lent places, those of the most routes for their bytes first: the routes that an expert is expected to
// take of kExpectedRows rows, and in the modes that count routes (kLfu, kSwaps) those that it took. As with swaps, they
// are copied during the next round and hold from the one after. Where a lent expert gives way in a swap, it leaves at
// once and the newcomer gets its place, and stays in RAM too.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "placement/expert_heap.h"
#include "placement/lending.h"
#include "placement/plan.h"

namespace tandem {

// One expert in, one out, of the same size class.
struct Swap {
  int in_bank = 0, in_expert = 0;
  int out_bank = 0, out_expert = 0;
  bool lent = false;  // the place is; `out` has left it
  bool operator==(const Swap&) const = default;
};
struct Loan {
  int bank = 0, expert = 0;
  std::int64_t at = 0;  // byte where its place begins, of the prompt memory or of the cache's
  bool in_cache = false;
  bool operator==(const Loan&) const = default;
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
          std::vector<bool> movable, Lending lending = {});
  Adapter(Adapter&&) = default;  // the heaps point into the vectors: a copy would point into the original's
  Adapter(const Adapter&) = delete;
  Adapter& operator=(const Adapter&) = delete;

  int banks() const { return banks_; }
  int experts() const { return experts_; }
  bool on_card(int bank, int expert) const { return card_[index(bank, expert)] != 0; }
  // On the card in lent memory, and in RAM.
  bool lent(int bank, int expert) const { return on_card(bank, expert) && lent_[index(bank, expert)] != 0; }
  // The routes of `rows` rows in one bank during the round: ids [rows * used], counted hit or miss as they stand now.
  void observe(int bank, std::span<const std::int32_t> ids, std::size_t rows);
  // Ends the round. Swaps and loans decided at the end of the last round hold from now on; returns the swaps decided
  // now, which are to be copied during the next round, as are loans(). Loans are made at the end of decode rounds.
  // Valid until the next call. Time: a few heap steps for every expert met; the first loans sort all experts off the
  // card.
  const std::vector<Swap>& end_round(bool decode = false);
  const std::vector<Swap>& swaps() const { return pending_; }
  const std::vector<Loan>& loans() const { return loans_; }
  // A pass needs the prompt memory: who is in it is off the card from now on, what was decided for it and does not hold
  // yet is forgotten (counts().swaps has it nevertheless). Between two rounds, or within one. Returns those experts
  // (bank * experts + expert), newcomers of swaps included; valid until the next call of one of the two.
  std::span<const std::int32_t> reclaim();
  // The same for the first `positions` rows of the cache (cache_rows_needed); fewer than before: the rest is free
  // again.
  std::span<const std::int32_t> need_cache(std::int64_t positions);

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
  void choose_loans();
  void drop(Index i);                      // takes its place in lent memory, or the promise of one, from it
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
  std::vector<int> slots_, floor_;  // per bank; experts in memory that is not lent, with the pending swaps done
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
  Lending lending_;
  LentPlaces places_;
  std::vector<int> lent_;     // 1 + the area of the lent memory in which it has a place, or is promised one; 0: none
  std::vector<Loan> loans_;   // that do not hold yet
  std::vector<Index> queue_;  // who is lent memory next, since some has become free
  std::size_t queued_ = 0;    // of them, those that have had their turn
  bool queue_made_ = false;
  std::vector<Index> dropped_;  // of the last reclaim or need_cache
  Counts counts_;
};

}  // namespace tandem
