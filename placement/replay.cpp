#include "placement/replay.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "placement/check.h"

namespace tandem {
namespace {

// Counts the different experts of a pass; `seen` holds the number of the last pass that met an expert.
class MetCounter {
 public:
  MetCounter(int banks, int experts)
      : experts_(static_cast<std::size_t>(experts)), seen_(static_cast<std::size_t>(banks) * experts_) {}

  void add(const Adapter& adapter, const ExpertPlacement& start, const TraceBlock& block, BankMet& met) {
    ++pass_;
    ++met.passes;
    met.rows += block.rows;
    for (const std::int32_t id : block.ids) {
      std::uint64_t& seen = seen_[static_cast<std::size_t>(block.bank) * experts_ + static_cast<std::size_t>(id)];
      const std::uint64_t first = std::exchange(seen, pass_) == pass_ ? 0 : 1;
      if (adapter.on_card(block.bank, id)) {
        met.hits += first;
      } else if (start.at(block.bank, id) == Place::kDisk) {
        met.disk += first;
        ++met.disk_routes;
      } else {
        met.misses += first;
        ++met.missed_routes;
      }
    }
  }

 private:
  std::size_t experts_;
  std::vector<std::uint64_t> seen_;
  std::uint64_t pass_ = 0;
};

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
    adapters.emplace_back(c.settings, c.start, c.expert_bytes, c.movable, c.lending);
    ReplayResult result;
    result.name = c.name;
    result.decode_banks.resize(static_cast<std::size_t>(c.start.banks));
    result.slots = std::count(c.start.place.begin(), c.start.place.end(), Place::kCard);
    results.push_back(std::move(result));
  }
  TraceRound round;
  std::optional<MetCounter> met;
  if (!cases.empty()) met.emplace(cases.front().start.banks, cases.front().start.experts);
  while (next(round)) {
    for (std::size_t i = 0; i < adapters.size(); ++i) {
      ReplayResult& result = results[i];
      const Adapter::Counts before = result.counts;
      const bool decode = round.phase == Phase::kDecode;
      if (!round.blocks.empty() && round.blocks.front().bank == 0)
        adapters[i].need_cache(cache_rows_needed(static_cast<std::int64_t>(round.position), round.blocks.front().rows));
      for (const TraceBlock& block : round.blocks) {
        if (std::cmp_greater(block.rows, cases[i].lending.rows)) adapters[i].reclaim();
        if (decode)
          met->add(adapters[i], cases[i].start, block, result.decode_banks[static_cast<std::size_t>(block.bank)]);
        adapters[i].observe(block.bank, block.ids, block.rows);
      }
      adapters[i].end_round(decode);
      result.counts = adapters[i].counts();
      if (decode) {
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

double replayed_round_seconds(const CostModel& model, const PlanInput& input, const ExpertPlacement& start,
                              const ReplayResult& result) {
  CHECK(result.decode_rounds > 0);
  const BankMet& first = result.decode_banks.front();
  CHECK(first.passes > 0);
  const double rows = static_cast<double>(first.rows) / static_cast<double>(first.passes);
  const int drafts = std::max(0, static_cast<int>(std::lround(rows)) - 1);
  double seconds = model.round(start, drafts).total;
  for (int bank = 0; bank < start.banks; ++bank) {
    const CostModel::Use use = model.use(bank, drafts);
    const BankMet& met = result.decode_banks[static_cast<std::size_t>(bank)];
    if (use.times == 0 || met.passes == 0) continue;
    const auto each = [&](std::uint64_t n) { return static_cast<double>(n) / static_cast<double>(met.passes); };
    const auto work = [&](std::uint64_t experts, std::uint64_t routes) {
      return each(experts) + input.hardware.cpu.row_cost * (each(routes) - each(experts));
    };
    const BankLoad load{each(met.hits), each(met.misses), work(met.misses, met.missed_routes), each(met.disk),
                        work(met.disk, met.disk_routes)};
    seconds +=
        use.times * (model.stage_seconds(bank, load) - model.stage_seconds(bank, model.load(start, bank, use.rows)));
  }
  return seconds;
}

ExpertPlacement hottest_on_card(const RouteShares& shares, const std::vector<std::int64_t>& expert_bytes,
                                std::int64_t slots, int floor_per_bank) {
  const std::size_t all = shares.share.size();
  CHECK(slots >= 0 && slots <= static_cast<std::int64_t>(all) && std::cmp_equal(expert_bytes.size(), shares.banks));
  const std::vector<std::int32_t> order = hottest_first(shares.share, expert_bytes);
  ExpertPlacement placement{shares.banks, shares.experts, std::vector<Place>(all, Place::kRam)};
  std::vector<int> on_card(static_cast<std::size_t>(shares.banks));
  // Twice through the list: first the floors, then everything.
  for (const int limit : {floor_per_bank, shares.experts}) {
    for (const std::int32_t expert : order) {
      const auto i = static_cast<std::size_t>(expert);
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
