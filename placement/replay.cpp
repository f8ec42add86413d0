#include "placement/replay.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "placement/check.h"

namespace tandem {
namespace {

Adapter::Counts run_round(Adapter& adapter, const TraceRound& round) {
  for (const TraceBlock& block : round.blocks) adapter.observe(block.bank, block.ids, block.rows);
  adapter.end_round();
  return adapter.counts();
}

void add_point(ReplayResult& result, const Adapter::Counts& before, const TraceRound& round, std::uint64_t window) {
  const Adapter::Counts& now = result.counts;
  if (result.curve.empty() || result.curve.back().rounds == window)
    result.curve.push_back({before.rounds, 0, 0, 0, 0, 0, round.domain});
  ReplayWindow& point = result.curve.back();
  ++point.rounds;
  point.routes += now.routes - before.routes;
  point.hits += now.hits - before.hits;
  point.misses += now.misses - before.misses;
  point.swaps += now.swaps - before.swaps;
}

}  // namespace

std::vector<ReplayResult> replay(const std::function<bool(TraceRound&)>& next, std::span<const ReplayCase> cases,
                                 std::uint64_t window) {
  std::vector<Adapter> adapters;
  std::vector<ReplayResult> results;
  for (const ReplayCase& c : cases) {
    adapters.emplace_back(c.settings, c.start, c.expert_bytes, c.movable);
    ReplayResult result;
    result.name = c.name;
    result.slots = std::count(c.start.place.begin(), c.start.place.end(), Place::kCard);
    results.push_back(std::move(result));
  }
  TraceRound round;
  while (next(round)) {
    for (std::size_t i = 0; i < adapters.size(); ++i) {
      ReplayResult& result = results[i];
      const Adapter::Counts before = result.counts;
      result.counts = run_round(adapters[i], round);
      if (round.phase == Phase::kDecode) {
        result.decode_routes += result.counts.routes - before.routes;
        result.decode_hits += result.counts.hits - before.hits;
        result.decode_misses += result.counts.misses - before.misses;
        ++result.decode_rounds;
      }
      if (window > 0) add_point(result, before, round, window);
    }
  }
  return results;
}

ExpertPlacement hottest_on_card(const RouteShares& shares, const std::vector<std::int64_t>& expert_bytes,
                                std::int64_t slots, int floor_per_bank) {
  const std::size_t all = shares.share.size();
  CHECK(slots >= 0 && slots <= static_cast<std::int64_t>(all) && std::cmp_equal(expert_bytes.size(), shares.banks));
  std::vector<double> worth(all);
  for (std::size_t i = 0; i < all; ++i)
    worth[i] = shares.share[i] / static_cast<double>(expert_bytes[i / static_cast<std::size_t>(shares.experts)]);
  std::vector<std::size_t> order(all);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return worth[a] != worth[b] ? worth[a] > worth[b] : a < b; });

  ExpertPlacement placement{shares.banks, shares.experts, std::vector<Place>(all, Place::kRam)};
  std::vector<int> on_card(static_cast<std::size_t>(shares.banks));
  // Twice through the list: first the floors, then everything.
  for (const int limit : {floor_per_bank, shares.experts}) {
    for (const std::size_t i : order) {
      int& bank = on_card[i / static_cast<std::size_t>(shares.experts)];
      if (slots == 0) return placement;
      if (placement.place[i] == Place::kCard || bank >= limit) continue;
      placement.place[i] = Place::kCard;
      ++bank;
      --slots;
    }
  }
  return placement;
}

}  // namespace tandem
