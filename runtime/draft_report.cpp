#include "runtime/draft_report.h"

#include <fmt/format.h>

namespace tandem {
namespace {

double percent(std::uint64_t part, std::uint64_t all) {
  return all == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(all);
}

}  // namespace

std::string draft_status(const DraftStats& stats) {
  if (stats.all_drafted() == 0) return {};
  return fmt::format("{:.2f} tokens a round, {:.0f} % of drafts accepted", stats.tokens_per_round(),
                     100 * stats.acceptance());
}

std::string acceptance_by_place(const DraftStats& stats) {
  std::string text;
  for (std::size_t i = 0; i < kMaxDrafts && stats.drafted[i] > 0; ++i)
    text += fmt::format("{:.0f} ", percent(stats.accepted[i], stats.drafted[i]));
  return text.empty() ? text : text + "%";
}

std::vector<ReportLine> draft_report(const DraftStats& stats) {
  if (stats.rounds == 0) return {};
  std::vector<ReportLine> lines;
  const auto source = [&](DraftSource which) {
    const auto s = static_cast<std::size_t>(which);
    return fmt::format("{} of {} ({:.0f} %)", stats.source_accepted[s], stats.source_drafted[s],
                       percent(stats.source_accepted[s], stats.source_drafted[s]));
  };
  if (stats.all_drafted() > 0) {
    lines.push_back({"drafts", fmt::format("{}; the head's {}, lookups {}", draft_status(stats),
                                           source(DraftSource::kHead), source(DraftSource::kLookup))});
    lines.push_back({"by place", acceptance_by_place(stats)});
  }
  const double rounds = static_cast<double>(stats.rounds);
  lines.push_back({"a round", fmt::format("{:.2f} ms drafting, {:.2f} ms pass, {:.2f} ms sampling, {} rounds",
                                          1e3 * stats.draft_seconds / rounds, 1e3 * stats.pass_seconds / rounds,
                                          1e3 * stats.sample_seconds / rounds, stats.rounds)});
  return lines;
}

}  // namespace tandem
