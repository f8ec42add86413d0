// `tandem inspect FILE`: what is in a GGUF file set, and what running it would take.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "placement/footprint.h"
#include "runtime/inspect_report.h"

namespace CLI {
class App;
}

namespace tandem {

struct InspectOptions {
  std::filesystem::path file;
  bool tensors = false;                 // list every tensor
  bool json = false;                    // one JSON object instead of text
  bool check = false;                   // read all weights and look for values that cannot be right
  std::optional<std::int64_t> context;  // positions for the memory figures; default: trained context, at most 32768
};

// Adds the subcommand to `app`; its flags fill `options`.
CLI::App* add_inspect_command(CLI::App& app, InspectOptions& options);

// Prints to `out`. Returns 0, or 1 when the file is a qwen4exp model that cannot be run as it is or the check found bad
// values. Works on any GGUF file: of another architecture it shows the directory. Throws InputError when the file is no
// readable GGUF or the context is out of range, OutputClosed when the reader of `out` has gone.
int run_inspect(const InspectOptions& options, std::FILE* out);

// ---- the two forms of the report, for run_inspect and tests ----

// Memory figures of a report: absent when the shape is unknown, or for a separate MTP file.
struct InspectMemory {
  StateLayout layout;
  StateBytes state;
  Footprint place;
};
std::optional<InspectMemory> inspect_memory(const InspectReport& report, std::optional<std::int64_t> context);

// What --check found; absent when it was not asked for.
using CheckResult = std::optional<std::vector<std::string>>;

// At most 100 columns (paths and tensor names may be longer).
std::string inspect_text(const InspectReport& report, const std::optional<InspectMemory>& memory,
                         const CheckResult& check, bool list_tensors);
std::string inspect_json(const InspectReport& report, const std::optional<InspectMemory>& memory,
                         const CheckResult& check);

// "1.27 GB", decimal units.
std::string human_bytes(std::int64_t bytes);

}  // namespace tandem
