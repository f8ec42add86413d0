// Plays the routes of a trace against ways of keeping experts on the card, without the model. The Adapter decides here
// as it does in the running machine, so that the counts are those of a live run over the same routes.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "placement/adapt.h"
#include "placement/census.h"
#include "placement/cost_model.h"
#include "placement/trace.h"

namespace tandem {

struct ReplayCase {
  std::string name;
  AdaptSettings settings;
  ExpertPlacement start;
  std::vector<std::int64_t> expert_bytes;  // of each bank
  std::vector<bool> movable;               // [banks * experts]
  Lending lending = {};
};

// Hits over some rounds in a row.
struct ReplayWindow {
  std::uint64_t first_round = 0, rounds = 0, routes = 0, hits = 0, misses = 0, swaps = 0;
  std::string domain;  // of its first round
  double hit_rate() const { return routes == 0 ? 0.0 : static_cast<double>(hits) / static_cast<double>(routes); }
};

// What one bank met in its passes of decode rounds, added up.
struct BankMet {
  std::uint64_t passes = 0, rows = 0;
  std::uint64_t hits = 0;                       // different experts on the card
  std::uint64_t misses = 0, missed_routes = 0;  // different experts in RAM, and the routes to them
  std::uint64_t disk = 0, disk_routes = 0;      // and on disk
};

struct ReplayResult {
  std::string name;
  std::int64_t slots = 0;  // experts on the card
  Adapter::Counts counts;
  std::uint64_t decode_routes = 0, decode_hits = 0, decode_rounds = 0, decode_misses = 0;
  std::vector<BankMet> decode_banks;
  std::vector<ReplayWindow> curve;
};

// The rounds that `next` gives until it returns false, against every case at once. window: rounds of a point of the
// curve, 0 for no curve; the last point may have fewer. REQUIRES cases of the trace's shape.
std::vector<ReplayResult> replay(const std::function<bool(TraceRound&)>& next, std::span<const ReplayCase> cases,
                                 std::uint64_t window);

// Predicted seconds of a decode round of the replay: the cost model's round for the placement at the start, with the
// experts that were met in place of those it expects. Copies run beside a round and are not counted. REQUIRES
// model.known() and decode rounds; `model` was made for `input`.
double replayed_round_seconds(const CostModel& model, const PlanInput& input, const ExpertPlacement& start,
                              const ReplayResult& result);

// The `slots` experts with the largest share per byte on the card, all others in RAM; ties to the lower index. At most
// floor_per_bank of each bank come first. REQUIRES 0 <= slots <= all experts; bytes for each bank.
ExpertPlacement hottest_on_card(const RouteShares& shares, const std::vector<std::int64_t>& expert_bytes,
                                std::int64_t slots, int floor_per_bank);

}  // namespace tandem
