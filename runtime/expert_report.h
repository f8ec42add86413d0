// What the expert store counted, in words: for the status line and for /stats.
#pragma once

#include <string>
#include <vector>

#include "runtime/expert_store.h"

namespace tandem {

// What happened between two looks at a store.
ExpertStats operator-(const ExpertStats& after, const ExpertStats& before);

// "91.8 % hits, 2.1 misses a round, crew wait 0.31 ms, 4 swaps" for the decode rounds; empty on a machine without a
// card or when there were none.
std::string expert_status(const ExpertStats& stats);

// Hits by routes and by bytes, misses, waits and swaps, prompt and answer apart; where the experts are.
struct ReportLine {
  std::string label, text;
};
std::vector<ReportLine> expert_report(const ExpertStore& store, const ExpertStats& stats,
                                      const FetchJudge* fetching = nullptr);

}  // namespace tandem
