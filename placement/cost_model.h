// Predicted seconds of a round, stage by stage, from bytes and measured bandwidths. Pure arithmetic; docs/placement.md
// derives the equations.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "placement/plan.h"

namespace tandem {

// Chance that the first draft of a round is accepted, and the factor from one draft to the next. Published figures for
// this model: 0.70 on a 24 GB card, 2.0 to 2.7 tokens a round with three drafts; these two give 2.33.
inline constexpr double kFirstAcceptance = 0.70;
inline constexpr double kAcceptanceDecay = 0.85;
// Drafts 0 .. kPlannedDrafts are predicted.
inline constexpr int kPlannedDrafts = 4;
// Drafts that the objective assumes when the policy leaves the depth open: what published systems run with.
inline constexpr int kAssumedDrafts = 3;

// Kernels of a layer that wait for each other, as gpu/ launches them; those of branches beside them are not counted.
// GDN: two READs of three, products, what is before and after the delta rule, the delta rule, the product after it; the
// router, the two halves of the experts, their combination. Attention: products, input, blocks of the indexer, choice
// of positions, three of attention, quantisation and product in place of the five. Where experts are off the card, the
// wait for the crew is one more, and part of handoff_us.
inline constexpr int kGdnLayerKernels = 15;
inline constexpr int kGdnStepRows = 4;  // gpu/kernels/gdn_step.h
// How many kernels' time it saves that for so few rows the delta rule and both its sides are one: 6.1 us of a layer at
// one row, 2.9 and 2.6 at two and four (H200 without early starts, bench/results/h200-gpu/gdn-step.txt).
constexpr double gdn_step_saves(int rows) {
  return rows == 1 ? 1.5 : rows <= kGdnStepRows ? 0.7 : 0.0;
}
inline constexpr int kAttentionLayerKernels = 19;
inline constexpr int kDraftKernels = kAttentionLayerKernels + 9;  // fusion and the draft mixer

// Rows of one pass are alike: one that comes after i others uses an expert that none of them used with chance
// p / (1 + row_likeness min(i, kLikeRows)) only. 0.03 describes 48 layers of random weights and text with a planted
// skew (bench/results/h200-gpu/round.csv: 35.7 experts a layer for four rows, 63.4 for eight) and prose in the small
// model; code and chat are above 0.08 there.
inline constexpr double kRowLikeness = 0.03;
inline constexpr int kLikeRows = 15;

// Rows of a pass at most (--prefill-chunk).
inline constexpr int kMostPrefillRows = 8192;

// p [banks * experts]: the chance that a row uses an expert. p = used * share, capped at 1; what is cut off goes to the
// others of the bank in proportion, so that every bank sums to `used` (or to the number of experts, if smaller).
std::vector<double> inclusion_probabilities(const RouteShares& shares);

// 1 + a + a * a d + ...: the tokens of a round, d drafts of which the i-th (from 0) is accepted with a decay^i.
double expected_tokens(int drafts, double acceptance, double decay);

// Mean of max(card, M > 0 ? M * unit + handoff : 0) with M Poisson of this mean: a layer's expert stage, in which the
// card works `card` seconds while the crew computes M experts of `unit` seconds each. REQUIRES card >= 0.
double expected_stage(double card, double mean, double unit, double handoff);

// Mean of min(M, most) with M Poisson of this mean: of M experts that a layer misses, how many there is time for.
// REQUIRES most >= 0.
double expected_least(double mean, double most);

// The chance that an expert, used by a row with chance p, is used by at least one of these rows of one pass.
double chance_met(double p, int rows, double likeness);

// How much of a bank a pass of w rows meets: q = chance_met is the chance that an expert is used at all, and
// k = q + row_cost * (w p - q) the crew's work for it in units of one row's.
struct BankLoad {
  double card = 0;                        // sum of q over experts on the card
  double misses = 0, work = 0;            // sums of q and k over experts in RAM
  double disk_misses = 0, disk_work = 0;  // and on disk
};

class CostModel {
 public:
  explicit CostModel(const PlanInput& input);

  // Empty, or what is missing from the hardware description to predict times.
  const std::string& missing() const { return missing_; }
  bool known() const { return missing_.empty(); }
  bool disk_known() const { return disk_rate_ > 0; }
  int workers() const { return workers_; }
  double inclusion(int bank, int expert) const { return p_[index(bank, expert)]; }
  // q and k of one expert in a pass of `rows` rows.
  double met(int bank, int expert, int rows) const;
  double work(int bank, int expert, int rows) const;

  // Seconds of one expert of a bank on either side, one row, without what a list or a kernel costs to start.
  // REQUIRES known().
  double crew_seconds(int bank) const { return crew_unit_[static_cast<std::size_t>(bank)]; }
  double card_seconds(int bank) const { return card_unit_[static_cast<std::size_t>(bank)]; }
  // What is left of a load for the crew where experts are fetched ahead while the card is busy for `window` seconds
  // before, and how many copies that takes (placement/fetch_ahead.h). REQUIRES known().
  struct Fetched {
    BankLoad load;
    double copies = 0, right = 0;
  };
  Fetched fetched(int bank, const BankLoad& load, double window) const;
  // Seconds of the expert stage of one bank. REQUIRES known().
  double stage_seconds(int bank, const BankLoad& load) const;
  // How often a round with `drafts` drafts runs a bank, and over how many rows each time: the trunk's once over
  // 1 + drafts, the draft block's `drafts` times over one.
  struct Use {
    int times, rows;
  };
  Use use(int bank, int drafts) const;
  BankLoad load(const ExpertPlacement& placement, int bank, int rows) const;
  // How many rows a pass must have for the card to be sent what it lacks of every bank, over PCIe, sooner than the crew
  // would compute it: the least w with sum of bytes * off the card / PCIe <= sum of k(w) * crew_seconds. 0: no pass of
  // up to kMostPrefillRows, nothing is off the card, or the rates are not known. docs/placement.md.
  int stream_rows(const ExpertPlacement& placement) const;
  // One load per bank, of a round with `drafts` drafts (see use).
  std::vector<BankLoad> loads(const ExpertPlacement& placement, int drafts) const;
  // REQUIRES known().
  RoundTime round(const ExpertPlacement& placement, int drafts) const {
    return round(loads(placement, drafts), drafts);
  }
  // Fetching ahead counts as the policy says; auto: where it makes the round shorter.
  RoundTime round(const std::vector<BankLoad>& loads, int drafts) const;

 private:
  RoundTime round(const std::vector<BankLoad>& loads, int drafts, bool fetches) const;
  std::size_t index(int bank, int expert) const { return static_cast<std::size_t>(bank * experts_ + expert); }
  // Bytes of caches that a pass of w rows reads: KV of the chosen positions, all pooled indexer keys, states twice.
  double trunk_cache_bytes(int rows) const;
  double attention_bytes(int rows) const;  // of one attention layer
  double matrix_seconds(double bytes, int rows) const;

  const PlanInput& input_;
  int banks_, experts_, workers_;
  std::vector<double> p_;
  double main_rate_ = 0;  // bytes a second of the side that runs the dense part
  double crew_rate_ = 0, disk_rate_ = 0;
  std::vector<double> crew_unit_, card_unit_;  // [banks]
  double handoff_ = 0, kernel_ = 0, kernel_row_ = 0, fetch_ = 0, logits_rate_ = 0;
  double pcie_rate_ = 0;
  std::string missing_;
};

// Workers of the crew: the policy's number, or as many as give the most bandwidth among the cores that it allows.
int crew_workers(const Policy& policy, const Hardware& hardware);

}  // namespace tandem
