// The read roof of this machine over 1, 2, 4, ... workers: the figure that everything else is a share of.
#include <CLI/CLI.hpp>
#include <algorithm>

#include "bench/bench.h"
#include "bench/noise.h"
#include "bench/read_roof.h"
#include "placement/check.h"
#include "runtime/output.h"

namespace tandem::bench {
namespace {

std::vector<std::size_t> worker_counts(std::size_t most) {
  std::vector<std::size_t> counts;
  for (std::size_t n = 1; n < most; n *= 2) counts.push_back(n);
  if (most > 8) counts.push_back(most * 3 / 4);  // memory is often fastest below the full count
  counts.push_back(most);
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

int run(int argc, char** argv) {
  std::string csv, machine_name;
  std::size_t buffer_mib = 0;
  SamplePlan plan = kRoofPlan;
  CLI::App app("Measures how fast this machine reads memory", "bench_machine");
  app.add_option("--buffer", buffer_mib, "MiB to read from; default four times the last-level cache, 512 to 2048");
  app.add_option("--samples", plan.samples, "samples of a median")->check(CLI::PositiveNumber);
  app.add_option("--csv", csv, "append the figures to this file");
  app.add_option("--machine", machine_name, "name of the machine in the CSV file; default the host name");
  CLI11_PARSE(app, argc, argv);

  const MachineInfo machine = machine_info(machine_name);
  HugeBuffer buffer(buffer_mib == 0 ? cold_bytes(machine) : buffer_mib << 20);
  CsvFile file(csv, machine, {"isa", "workers", "buffer_mib", "samples", "read_gbs", "best_gbs"});
  write_stderr(busy_warning(machine));
  write_stdout(fmt::format("{}: {}, {} processors, {} MiB last-level cache, widest {}\nread roof, {} loads, {} MiB\n",
                           machine.name, machine.cpu, machine.cpus.size(), machine.l3_bytes >> 20, machine.isa,
                           read_isa(), buffer.size() >> 20));
  for (const std::size_t workers : worker_counts(machine.cpus.size())) {
    WorkerTeam team(workers, machine.cpus);
    if (workers == 1) write_noise(team, buffer, 1);
    const ReadRoof roof = measure_read_roof(team, buffer, plan);
    write_stdout(
        fmt::format("  {:3} workers  {:6.1f} GB/s  best {:6.1f}\n", workers, roof.median / 1e9, roof.best / 1e9));
    file.row({read_isa(), fmt::format("{}", workers), fmt::format("{}", buffer.size() >> 20),
              fmt::format("{}", plan.samples), fmt::format("{:.2f}", roof.median / 1e9),
              fmt::format("{:.2f}", roof.best / 1e9)});
  }
  return 0;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  return tandem::bench::guarded_main("bench_machine", [&] { return tandem::bench::run(argc, argv); });
}
