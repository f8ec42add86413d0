// What `tandem doctor` asks of the machines, which runtime/ does not know: main.cpp hands them in.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "placement/hardware.h"

namespace tandem {

using ProbeStep = std::function<void(std::size_t done, std::size_t total)>;

struct MachineProbes {
  std::function<Hardware::Cpu()> cpu;    // all but the model's name
  std::function<int()> first_processor;  // a logical processor that the process may use
  // Read bandwidth by worker count, from at most `most_bytes` of memory.
  std::function<std::map<int, double>(std::size_t most_bytes, bool quick, const ProbeStep& step)> read_gbps;
  // Empty: no GPU, and `why_not` says why.
  std::function<std::optional<Hardware::Gpu>(std::string* why_not)> gpu;
  // One line for each card there is, whether it can be used or not; may be empty.
  std::function<std::vector<std::string>()> cards;
};

}  // namespace tandem
