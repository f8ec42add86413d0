// What drafting brought, in words: for the status line, /stats and `tandem bench decode`.
#pragma once

#include <string>
#include <vector>

#include "runtime/draft.h"
#include "runtime/expert_report.h"

namespace tandem {

// "2.31 tokens a round, 78 % of drafts accepted"; empty when nothing was drafted.
std::string draft_status(const DraftStats& stats);
// "71 48 30 %": of the drafts that stood first, second, ... in their round, how many were accepted.
std::string acceptance_by_place(const DraftStats& stats);
// Acceptance by place and by source, and where the time of a round went; empty when there were no rounds.
std::vector<ReportLine> draft_report(const DraftStats& stats);

}  // namespace tandem
