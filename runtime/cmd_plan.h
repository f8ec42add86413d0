// `tandem plan MODEL`: where every byte would live and how fast it would run, before anything is loaded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/plan_report.h"

namespace CLI {
class App;
}

namespace tandem {

struct PlanOptions {
  std::filesystem::path model, mtp;
  PlacementChoices placement;
  std::int64_t prefill_rows = 0;      // 0: by the card
  std::vector<std::string> what_ifs;  // "vram=16GiB,ram=32GiB"
};

// Opens headers, policy, census and hardware files, and plans. Throws InputError for everything that is wrong with
// them.
PlanReport make_plan_report(const PlanOptions& options);

// Declares the subcommand. When it is chosen, `action` is set; it returns 0, or 1 when the plan does not fit.
void add_plan_command(CLI::App& app, std::function<int()>& action);

}  // namespace tandem
