#include "runtime/expert_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "placement/units.h"

namespace tandem {
namespace {

std::string phase_text(const ExpertCounts& counts) {
  return fmt::format(
      "{:.1f} % of routes and {:.1f} % of expert bytes on the card, {:.1f} misses a round, {} swap{} ({}), {} tokens "
      "in {} round{}",
      100 * counts.hit_rate(), 100 * counts.byte_hit_rate(), counts.misses_per_round(), counts.swaps,
      counts.swaps == 1 ? "" : "s", format_bytes(static_cast<std::int64_t>(counts.swap_bytes)), counts.rows,
      counts.rounds, counts.rounds == 1 ? "" : "s");
}

// Milliseconds of a wait in each round.
double per_round(double seconds, const ExpertCounts& counts) {
  return counts.rounds == 0 ? 0.0 : 1e3 * seconds / static_cast<double>(counts.rounds);
}

}  // namespace

ExpertStats operator-(const ExpertStats& after, const ExpertStats& before) {
  return {after.prefill - before.prefill, after.decode - before.decode};
}

std::string expert_status(const ExpertStats& stats) {
  const ExpertCounts& counts = stats.decode;
  if (counts.rounds == 0) return {};
  const std::string wait = counts.crew_wait_seconds > 0
                               ? fmt::format(", crew wait {:.2f} ms", per_round(counts.crew_wait_seconds, counts))
                               : "";
  return fmt::format("{:.1f} % hits, {:.1f} misses a round{}, {} swap{}", 100 * counts.hit_rate(),
                     counts.misses_per_round(), wait, counts.swaps, counts.swaps == 1 ? "" : "s");
}

std::vector<ReportLine> expert_report(const ExpertStore& store, const ExpertStats& stats, const FetchJudge* fetching) {
  const ExpertPlacement now = store.placement();
  const auto size = [](std::size_t bytes) { return format_bytes(static_cast<std::int64_t>(bytes)); };
  std::vector<ReportLine> lines{
      {"experts", fmt::format("{} on the card ({}), {} in RAM ({}, {} locked), {} in the file", now.count(Place::kCard),
                              size(store.card_bytes()), now.count(Place::kRam), size(store.ram_bytes()),
                              size(store.ram().locked()), now.count(Place::kDisk))}};
  if (!store.has_card()) return lines;
  if (const LentMemory& memory = store.lent_memory()) {
    std::vector<std::string> of;
    if (memory.prompt) of.push_back(size(memory.prompt->bytes()) + " that long prompts need");
    if (memory.cache) of.push_back(size(memory.cache->bytes()) + " of KV cache");
    lines.push_back({"lent", fmt::format("{} of those in RAM are on the card too, in what is free of {}",
                                         grouped(static_cast<std::int64_t>(store.lent())), fmt::join(of, " and "))});
  }
  if (stats.prefill.rounds > 0) lines.push_back({"prompt hits", phase_text(stats.prefill)});
  if (stats.decode.rounds > 0) lines.push_back({"answer hits", phase_text(stats.decode)});
  if (fetching != nullptr && fetching->counts().copies > 0) {
    const FetchCounts& counts = fetching->counts();
    const double share = static_cast<double>(counts.asked) / static_cast<double>(counts.copies);
    std::string text = fmt::format("{} experts ahead of their layers, {:.0f} % of them asked for and there in time",
                                   grouped(static_cast<std::int64_t>(counts.copies)), 100 * share);
    if (!fetching->on()) text += fmt::format("; left off, as one saves the CPU {:.0f} us only", 1e6 * fetching->gain());
    lines.push_back({"fetched", std::move(text)});
  }
  const ExpertCounts& waited = stats.decode.rounds > 0 ? stats.decode : stats.prefill;
  const std::string crew = waited.crew_wait_seconds > 0 ? fmt::format("{:.2f} ms a round for the crew, ",
                                                                      per_round(waited.crew_wait_seconds, waited))
                                                        : "";
  lines.push_back(
      {"waiting", fmt::format("{}{:.2f} ms {}for moves{}", crew, per_round(waited.copy_wait_seconds, waited),
                              crew.empty() ? "a round " : "", stats.decode.rounds > 0 ? " (answer)" : "")});
  return lines;
}

}  // namespace tandem
