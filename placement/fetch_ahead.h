// Experts in RAM that are copied to the card while the layer before theirs runs, because they will probably be asked
// for (gpu/expert_fetch.h does it): what that takes, what it costs, and whether it pays where it runs. It never changes
// a result: an expert that comes too late, or is not asked for, has been copied in vain.
#pragma once

#include <cstdint>

#include "placement/policy.h"

namespace tandem {

// Experts named for a layer, at most.
inline constexpr int kNamedExperts = 4;
// A layer has time for that share of the copies that fit into the time of its mixer; and of those that are made, that
// share is asked for and there in time. H200, a synthetic model, 0.92, 1.85, 3.6 and 6.9 misses a layer at one, two,
// four and eight rows: 0.61, 0.92, 1.26 and 1.41 copies, of which 70, 73, 75 and 83 %
// (bench/results/h200-gpu/fetch-ahead.txt). Names are right more often in trained models.
inline constexpr double kFetchShare = 0.5, kNamedRight = 0.74;
// What a copy costs the card, whose small kernels run slower beside one, where nobody has measured it: 4 to 18 us there
// (Hardware::Gpu::fetch_us).
inline constexpr double kFetchSeconds = 12e-6;

// Memory of the card that fetching needs, for experts of at most that size: two sets of places, and the rows of logits
// that names are chosen by.
std::int64_t fetch_bytes(std::int64_t expert_bytes, std::int64_t experts);

struct FetchCounts {
  std::uint64_t copies = 0;
  std::uint64_t asked = 0;  // of them asked for, and there in time
};

// Decides by what passes have shown. A copy saves the crew an expert where it is right:
//   gain = asked / copies * seconds of the crew / experts that it computed
// and pays where that is more than a copy costs. Begins with fetching and leaves off where it clearly does not pay;
// begins again when the crew has clearly become slower, and, since how many are asked for is not seen meanwhile, for a
// trial after ever longer times.
class FetchJudge {
 public:
  explicit FetchJudge(FetchAhead how = FetchAhead::kOff, double cost = kFetchSeconds)
      : how_(how), cost_(cost), on_(how != FetchAhead::kOff) {}
  bool on() const { return on_; }
  // Of a pass that has ended; crew_experts: different ones in each list.
  void count(const FetchCounts& fetched, std::uint64_t crew_experts, double crew_seconds);
  const FetchCounts& counts() const { return all_; }
  double gain() const;  // seconds; 0: nothing is known yet

 private:
  void turn(bool on);

  FetchAhead how_;
  double cost_;  // seconds of a copy
  bool on_;
  FetchCounts all_;
  // What is decided by: sums of which the older part counts less and less.
  double copies_ = 0, asked_ = 0, experts_ = 0, seconds_ = 0;
  std::uint64_t since_ = 0;     // copies, or experts of the crew while nothing is fetched, since the last change
  std::uint64_t patience_ = 0;  // experts of the crew until the next trial; 0: the first time
};

}  // namespace tandem
