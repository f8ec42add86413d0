// Plans as cases of a replay: `tandem replay --policy`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "placement/cost_model.h"
#include "placement/replay.h"

namespace tandem {

struct ReplayPlanOptions {
  std::filesystem::path model, hardware;  // hardware may be empty
  std::vector<std::string> policies;      // files; empty: the default policy
  std::vector<std::int64_t> vram;         // empty: what policy and hardware say
};

struct PlannedCase {
  ReplayCase replay;
  std::string shortfall;  // not empty: the plan does not fit, there is no case
  std::unique_ptr<PlanInput> input;
  std::unique_ptr<CostModel> cost;
};

// A plan for every policy and every size, for a trace of this header. Throws InputError for everything that is wrong
// with the files, and when the model is not the trace's.
std::vector<PlannedCase> planned_cases(const ReplayPlanOptions& options, const TraceHeader& header);

}  // namespace tandem
