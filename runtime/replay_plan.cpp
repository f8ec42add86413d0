#include "runtime/replay_plan.h"

#include <utility>

#include "placement/check.h"
#include "placement/units.h"
#include "runtime/cmd_plan.h"
#include "runtime/plan_report.h"

namespace tandem {
namespace {

// A plan that leaves the draft block out has a bank less than the trace: its experts stay in RAM.
void add_draft_bank(ReplayCase& replay, const TraceHeader& header) {
  if (replay.start.banks != header.banks - 1) return;
  ++replay.start.banks;
  replay.start.place.resize(replay.start.place.size() + static_cast<std::size_t>(header.experts), Place::kRam);
  replay.expert_bytes.push_back(replay.expert_bytes.back());
  replay.movable.resize(replay.start.place.size(), false);
  if (!replay.lending.expected.empty()) replay.lending.expected.resize(replay.start.place.size(), 0.0);
}

PlannedCase planned_case(const PlanOptions& options, const std::string& name, const TraceHeader& header) {
  PlanReport report = make_plan_report(options);
  PlannedCase result;
  result.input = std::make_unique<PlanInput>(std::move(report.input));
  const Policy& policy = result.input->policy;
  result.replay.name = name;
  result.shortfall = report.plan.shortfall;
  result.replay.settings = adapt_settings(policy);
  result.replay.lending = plan_lending(report.plan);
  result.replay.start = std::move(report.plan.placement);
  result.replay.expert_bytes = result.input->model.expert_bytes;
  result.replay.movable = movable_experts(policy, result.replay.start.banks, result.replay.start.experts);
  if (!result.shortfall.empty()) return result;
  add_draft_bank(result.replay, header);
  const ExpertPlacement& start = result.replay.start;
  if (start.banks != header.banks || start.experts != header.experts)
    fail_input("--model {}: expected the model of the trace ({} banks of {} experts), found {} banks of {}",
               options.model.string(), header.banks, header.experts, start.banks, start.experts);
  result.cost = std::make_unique<CostModel>(*result.input);
  return result;
}

}  // namespace

std::vector<PlannedCase> planned_cases(const ReplayPlanOptions& options, const TraceHeader& header) {
  const std::vector<std::string> policies = options.policies.empty() ? std::vector<std::string>{""} : options.policies;
  std::vector<PlannedCase> cases;
  for (const std::string& policy : policies) {
    PlanOptions plan;
    plan.model = options.model;
    plan.placement.hardware = options.hardware;
    plan.placement.policy = policy;
    const std::string name = policy.empty() ? "default" : std::filesystem::path(policy).stem().string();
    if (options.vram.empty()) cases.push_back(planned_case(plan, name, header));
    for (const std::int64_t vram : options.vram) {
      plan.placement.vram = vram;
      cases.push_back(planned_case(plan, name + " " + format_bytes(vram), header));
    }
  }
  return cases;
}

}  // namespace tandem
