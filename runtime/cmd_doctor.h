// `tandem doctor`: measures this machine, says what is wrong on it, and writes a hardware profile
// (placement/hardware.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "placement/diagnosis.h"
#include "runtime/machine_probes.h"

namespace CLI {
class App;
}

namespace tandem {

// Declares the subcommand. When it is chosen, `action` is set to what is to be done; it returns the exit code: 0, also
// with findings. `make_probes` is called by the action and has to outlive it.
void add_doctor_command(CLI::App& app, const std::function<MachineProbes()>& make_probes, std::function<int()>& action);

struct DoctorReport {
  Hardware hardware;
  SystemFacts system;
  DiskFacts disk;
  std::string gpu_missing;         // why there is no GPU; empty when there is one
  std::vector<std::string> cards;  // every card, a line each
  std::vector<Finding> findings;
  std::string profile;  // the file that was written; empty: none
};

// At most 100 columns (folders may be longer).
std::string doctor_text(const DoctorReport& report);
std::string doctor_json(const DoctorReport& report);

}  // namespace tandem
