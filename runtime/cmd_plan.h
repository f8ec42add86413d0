// `tandem plan MODEL`: where every byte would live and how fast it would run, before anything is loaded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/plan_text.h"

namespace CLI {
class App;
}

namespace tandem {

struct PlanOptions {
  std::filesystem::path model, mtp, policy, hardware;
  bool use_mtp = true;
  bool cpu = false;  // --device cpu: no card; with --vram or --slots the CPU plays one
  std::optional<std::int64_t> vram, ram, context;
  std::optional<int> slots;
  std::optional<KvFormat> kv;
  std::int64_t prefill_rows = 512;
  std::vector<std::string> what_ifs;  // "vram=16GiB,ram=32GiB"
};

// What is known about this machine without measuring: its RAM.
Hardware known_hardware();

// Opens headers, policy, census and hardware files, and plans. Throws InputError for everything that is wrong with
// them.
PlanReport make_plan_report(const PlanOptions& options);

// Declares the subcommand. When it is chosen, `action` is set; it returns 0, or 1 when the plan does not fit.
void add_plan_command(CLI::App& app, std::function<int()>& action);

}  // namespace tandem
