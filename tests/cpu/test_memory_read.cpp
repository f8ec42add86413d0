// The read loop is tested with the benchmarks (tests/bench/test_bench.cpp); here the measurement around it.
#include "cpu/memory_read.h"

#include <gtest/gtest.h>

#include "cpu/machine_probe.h"

namespace tandem {
namespace {

using Counts = std::vector<int>;

TEST(MemoryRead, WorkerCounts) {
  EXPECT_EQ(read_worker_counts(1, 1), (Counts{1}));
  EXPECT_EQ(read_worker_counts(2, 2), (Counts{1, 2}));
  EXPECT_EQ(read_worker_counts(6, 6), (Counts{1, 2, 4, 6}));
  EXPECT_EQ(read_worker_counts(16, 16), (Counts{1, 2, 4, 8, 12, 16}));
  EXPECT_EQ(read_worker_counts(6, 14), (Counts{1, 2, 4, 6, 8, 10, 14}));  // six of fourteen cores are fast ones
  EXPECT_EQ(read_worker_counts(0, 4), (Counts{1, 2, 4}));
}

TEST(MemoryRead, MeasuresEveryCount) {
  const Topology topology = read_topology();
  ReadPlan plan;
  plan.seconds = 0.02;  // in 2 ms a busy machine may not have let a worker read anything
  plan.samples = 3;
  plan.buffer_bytes = 8 << 20;
  std::vector<std::size_t> steps;
  std::size_t last = 0;
  const std::map<int, double> gbps = measure_read_gbps(topology, plan, [&](std::size_t done, std::size_t total) {
    steps.push_back(done);
    last = total;
  });
  const Counts counts = read_worker_counts(topology.performance_cores(),
                                           static_cast<int>(crew_processors(topology, CrewCores::kAll).size()));
  ASSERT_EQ(gbps.size(), counts.size());
  EXPECT_EQ(steps.size(), counts.size());
  EXPECT_EQ(last, counts.size());
  for (const int count : counts) {
    ASSERT_EQ(gbps.count(count), 1U) << count;
    EXPECT_GT(gbps.at(count), 0.01);
    EXPECT_LT(gbps.at(count), 1e5);  // bytes and not, say, bits a nanosecond
  }
}

TEST(MachineProbe, DescribesThisMachine) {
  const Topology topology = read_topology();
  const MachineProbes probes = cpu_machine_probes();
  const Hardware::Cpu cpu = probes.cpu();
  EXPECT_EQ(cpu.performance_cores, topology.performance_cores());
  EXPECT_EQ(cpu.efficiency_cores, topology.efficiency_cores());
  EXPECT_EQ(cpu.threads, topology.processors());
  EXPECT_EQ(cpu.l3_groups, topology.l3_groups);
  EXPECT_EQ(cpu.numa_nodes, topology.numa_nodes);
  EXPECT_TRUE(cpu.isa == "avx2" || cpu.isa == "avxvnni" || cpu.isa == "avx512") << cpu.isa;
  EXPECT_EQ(probes.first_processor(), topology.cores.front().processors.front());
}

}  // namespace
}  // namespace tandem
