#include "runtime/cmd_inspect.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "placement/check.h"
#include "runtime/output.h"
#include "runtime/progress.h"

namespace tandem {
namespace {

void print(std::string_view text, std::FILE* out) {
  if (std::fwrite(text.data(), 1, text.size(), out) == text.size() && std::fflush(out) == 0) return;
  if (errno == EPIPE) throw OutputClosed();
  fail_input("standard output: expected to write {} bytes, found: {}. Fix: free some space or choose another target.",
             text.size(), std::strerror(errno));
}

// Reads every tensor; one line for each that holds values that cannot be right.
std::vector<std::string> check_values(const Gguf& gguf) {
  constexpr std::uint64_t kMegabyte = 1000000;
  std::uint64_t total = 0, done = 0;
  for (const GgufTensor& tensor : gguf.tensors()) total += tensor.bytes;
  std::vector<std::string> findings;
  Progress progress("Checking", "MB");
  for (const GgufTensor& tensor : gguf.tensors()) {
    if (std::optional<std::string> finding = find_bad_values(tensor)) findings.push_back(std::move(*finding));
    done += tensor.bytes;
    progress.update(done / kMegabyte, total / kMegabyte);
  }
  return findings;
}

}  // namespace

CLI::App* add_inspect_command(CLI::App& app, InspectOptions& options) {
  CLI::App* command = app.add_subcommand("inspect", "Show what is in a GGUF file and what running it would take");
  command->add_option("FILE", options.file, "GGUF file; any shard of a split set")->required();
  command->add_flag("--tensors", options.tensors, "List every tensor with type, shape, bytes, file and offset");
  command->add_flag("--json", options.json, "Everything as one JSON object");
  command->add_flag("--check", options.check, "Read all weights and report values that cannot be right");
  command->add_option("--context", options.context, "Positions for the memory figures");
  command->footer(
      "Examples:\n"
      "  tandem inspect models/flash-next-nano-q4.gguf\n"
      "  tandem inspect model-00001-of-00003.gguf --context 131072\n"
      "  tandem inspect model.gguf --json > model.json");
  return command;
}

std::optional<InspectMemory> inspect_memory(const InspectReport& report, std::optional<std::int64_t> context) {
  if (!report.shape || report.mtp_only) return std::nullopt;
  constexpr std::int64_t kDefaultContext = 32768;
  const std::int64_t trained = report.shape->max_positions;
  if (context && (*context < 1 || *context > trained)) {
    fail_input("--context: expected 1 to {} (the trained context), found {}. Fix: choose a value in this range.",
               trained, *context);
  }
  InspectMemory memory;
  memory.layout.context = context.value_or(std::min(trained, kDefaultContext));
  memory.state = state_bytes(*report.shape, memory.layout);
  memory.place = footprint(*report.shape, report.weights, memory.layout);
  return memory;
}

int run_inspect(const InspectOptions& options, std::FILE* out) {
  const InspectReport report = make_inspect_report(options.file);
  const std::optional<InspectMemory> memory = inspect_memory(report, options.context);
  CheckResult check;
  if (options.check) check = check_values(report.gguf);
  print(options.json ? inspect_json(report, memory, check) : inspect_text(report, memory, check, options.tensors), out);
  const bool bad = !report.problem.empty() || (check && !check->empty());
  return bad ? 1 : 0;
}

}  // namespace tandem
