#include "cpu/machine_probe.h"

#include <algorithm>
#include <memory>

#include "cpu/cpu_ops.h"
#include "cpu/memory_read.h"
#include "cpu/topology.h"

namespace tandem {
namespace {

Hardware::Cpu describe(const Topology& topology) {
  Hardware::Cpu cpu;
  cpu.performance_cores = topology.performance_cores();
  cpu.efficiency_cores = topology.efficiency_cores();
  cpu.threads = topology.processors();
  cpu.l3_groups = topology.l3_groups;
  cpu.numa_nodes = topology.numa_nodes;
  cpu.isa = tile_isa_name(best_tile_isa());
  return cpu;
}

std::map<int, double> measure(const Topology& topology, std::size_t most_bytes, bool quick, const ProbeStep& step) {
  constexpr std::size_t kLeast = 512U << 20, kMost = 2048U << 20;
  ReadPlan plan;
  plan.buffer_bytes = std::clamp(4 * static_cast<std::size_t>(topology.l3_bytes), kLeast, kMost);
  plan.buffer_bytes = std::min(plan.buffer_bytes, most_bytes);
  if (quick) {
    plan.seconds = 0.02;
    plan.samples = 3;
  }
  return measure_read_gbps(topology, plan, step);
}

}  // namespace

MachineProbes cpu_machine_probes() {
  const auto topology = std::make_shared<const Topology>(read_topology());
  MachineProbes probes;
  probes.cpu = [topology] { return describe(*topology); };
  probes.first_processor = [topology] { return topology->cores.front().processors.front(); };
  probes.read_gbps = [topology](std::size_t most_bytes, bool quick, const ProbeStep& step) {
    return measure(*topology, most_bytes, quick, step);
  };
  return probes;
}

}  // namespace tandem
