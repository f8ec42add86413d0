// What is wrong on a machine for running a model, from facts alone: each finding with its cost and its cure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "placement/hardware.h"

namespace tandem {

// What the operating system says, beside the figures of Hardware.
struct SystemFacts {
  std::string cpu_model;
  int online_processors = 0;              // logical, of the machine; 0: not known
  double load = 0;                        // runnable threads over the last minute
  std::int64_t ram_installed = 0;         // bytes
  std::int64_t ram_available = 0;         // of them free or freeable, within the control group
  std::optional<std::int64_t> ram_limit;  // of the control group, when it is below ram_installed
  std::optional<double> cpu_quota;        // processors' worth of time that the control group grants
  std::optional<std::int64_t> lockable;   // bytes the process may lock; empty: no limit
  std::int64_t swap_total = 0, swap_used = 0;
  std::string huge_pages;                // "always", "madvise", "never"; empty: not known
  std::string governor, scaling_driver;  // of the first allowed processor; empty: none to see
  bool wsl = false;                      // Windows Subsystem for Linux
  bool nvidia_driver = false;
  std::int64_t ram_usable() const { return ram_limit.value_or(ram_installed); }
};

struct DiskFacts {
  std::string folder, filesystem;  // "ext4", "tmpfs", ...; empty: not known
  std::string problem;             // why nothing was measured; empty when it was
};

enum class Severity : std::uint8_t { kProblem, kNote };  // kNote: as it should be for many, but worth knowing

struct Finding {
  std::string id;  // one word, the same for ever: for scripts
  Severity severity = Severity::kProblem;
  std::string what, cost, cure;
};

// Problems first, each in a fixed order. `gpu_missing` says why `hardware` has no GPU; empty when it has one.
std::vector<Finding> diagnose(const Hardware& hardware, const SystemFacts& system, const DiskFacts& disk,
                              const std::string& gpu_missing);

}  // namespace tandem
