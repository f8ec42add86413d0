// Against machines described by hwloc's own synthetic topologies, and against what the kernel says of this one.
#include "cpu/topology.h"

#include <gtest/gtest.h>
#include <hwloc.h>
#include <sched.h>
#include <unistd.h>

#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "placement/check.h"

namespace tandem {
namespace {

struct KindOf {
  std::vector<int> processors;
  int rank;
  std::vector<std::pair<std::string, std::string>> infos;
};

// The XML of a synthetic machine ("numa:1 l3:2 core:4 pu:2") with the given kinds of cores.
std::string machine(const std::string& description, const std::vector<KindOf>& kinds = {}) {
  hwloc_topology_t topology = nullptr;
  EXPECT_EQ(hwloc_topology_init(&topology), 0);
  EXPECT_EQ(hwloc_topology_set_synthetic(topology, description.c_str()), 0) << description;
  EXPECT_EQ(hwloc_topology_load(topology), 0);
  for (const KindOf& kind : kinds) {
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    for (const int p : kind.processors) hwloc_bitmap_set(set, static_cast<unsigned>(p));
    std::vector<hwloc_info_s> infos;
    for (const auto& [name, value] : kind.infos)
      infos.push_back({const_cast<char*>(name.c_str()), const_cast<char*>(value.c_str())});
    EXPECT_EQ(hwloc_cpukinds_register(topology, set, kind.rank, static_cast<unsigned>(infos.size()), infos.data(), 0),
              0);
    hwloc_bitmap_free(set);
  }
  char* xml = nullptr;
  int length = 0;
  EXPECT_EQ(hwloc_topology_export_xmlbuffer(topology, &xml, &length, 0), 0);
  std::string text = xml;
  hwloc_free_xmlbuffer(topology, xml);
  hwloc_topology_destroy(topology);
  return text;
}

TEST(Topology, OneSocketWithTwoThreadsACore) {
  const Topology t = parse_topology(machine("numa:1 l3:1(size=33554432) core:8 pu:2"));
  EXPECT_EQ(t.performance_cores(), 8);
  EXPECT_EQ(t.efficiency_cores(), 0);
  EXPECT_EQ(t.processors(), 16);
  EXPECT_EQ(t.l3_groups, 1);
  EXPECT_EQ(t.l3_bytes, 33554432);
  EXPECT_EQ(t.numa_nodes, 1);
  EXPECT_EQ(t.cores[1].processors, (std::vector<int>{2, 3}));
  // One worker a core, on its first thread.
  EXPECT_EQ(crew_processors(t, CrewCores::kPerformance), (std::vector<int>{0, 2, 4, 6, 8, 10, 12, 14}));
  EXPECT_EQ(crew_processors(t, CrewCores::kAll), (std::vector<int>{0, 2, 4, 6, 8, 10, 12, 14}));
}

TEST(Topology, ThreadsNumberedCoreByCore) {
  // Linux usually gives a core's second thread number 8 + n: processors 0,4,1,5,... in the order of the cores.
  const Topology t = parse_topology(machine("numa:1 l3:1 core:4 pu:2(indexes=0,4,1,5,2,6,3,7)"));
  EXPECT_EQ(t.cores[0].processors, (std::vector<int>{0, 4}));
  EXPECT_EQ(crew_processors(t, CrewCores::kPerformance), (std::vector<int>{0, 1, 2, 3}));
}

TEST(Topology, GroupByGroup) {
  // Two L3 groups whose processors alternate: even ones in the first, odd ones in the second.
  const Topology t = parse_topology(machine("numa:1 l3:2(size=1048576) core:3 pu:1(indexes=0,2,4,1,3,5)"));
  EXPECT_EQ(t.l3_groups, 2);
  EXPECT_EQ(t.l3_bytes, 2097152);
  EXPECT_EQ(crew_processors(t, CrewCores::kPerformance), (std::vector<int>{0, 2, 4, 1, 3, 5}));
}

TEST(Topology, NodeByNode) {
  const Topology t = parse_topology(machine("numa:2 l3:2 core:2 pu:1(indexes=0,2,4,6,1,3,5,7)"));
  EXPECT_EQ(t.numa_nodes, 2);
  EXPECT_EQ(t.l3_groups, 4);
  EXPECT_EQ(t.cores[1].numa_node, 1);
  EXPECT_EQ(crew_processors(t, CrewCores::kPerformance), (std::vector<int>{0, 2, 4, 6, 1, 3, 5, 7}));
}

TEST(Topology, FullestGroupFirst) {
  Topology t;
  const auto core = [&t](int processor, int group, int node, bool performance = true) {
    t.cores.push_back({{processor}, performance, group, node});
  };
  core(0, 0, 0);
  core(1, 1, 0);
  core(2, 1, 0);
  core(3, 2, 1);
  core(4, 3, 1);
  core(5, 3, 1);
  core(6, 3, 1);
  core(7, 0, 0, false);  // efficiency cores do not make a group fuller, and come last
  core(8, 0, 0, false);
  EXPECT_EQ(crew_processors(t, CrewCores::kPerformance), (std::vector<int>{4, 5, 6, 3, 1, 2, 0}));
  EXPECT_EQ(crew_processors(t, CrewCores::kAll), (std::vector<int>{4, 5, 6, 3, 1, 2, 0, 7, 8}));
}

TEST(Topology, WithoutL3EachPackageIsAGroup) {
  const Topology t = parse_topology(machine("package:2 core:2 pu:1(indexes=0,2,1,3)"));
  EXPECT_EQ(t.l3_groups, 0);
  EXPECT_EQ(t.l3_bytes, 0);
  EXPECT_EQ(crew_processors(t, CrewCores::kPerformance), (std::vector<int>{0, 2, 1, 3}));
}

TEST(Topology, EfficiencyCoresByType) {
  // Two P cores of one type but different frequency, and Atoms whose frequency is close to them.
  const Topology t = parse_topology(
      machine("numa:1 l3:1 core:6 pu:1", {{{0, 1}, 2, {{"CoreType", "IntelCore"}, {"FrequencyMaxMHz", "5700"}}},
                                          {{2, 3}, 1, {{"CoreType", "IntelCore"}, {"FrequencyMaxMHz", "3500"}}},
                                          {{4, 5}, 0, {{"CoreType", "IntelAtom"}, {"FrequencyMaxMHz", "5600"}}}}));
  EXPECT_EQ(t.performance_cores(), 4);
  EXPECT_EQ(t.efficiency_cores(), 2);
  EXPECT_EQ(crew_processors(t, CrewCores::kPerformance), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(crew_processors(t, CrewCores::kAll), (std::vector<int>{0, 1, 2, 3, 4, 5}));
}

TEST(Topology, EfficiencyCoresByFrequency) {
  const auto two_kinds = [](const char* slow) {
    return parse_topology(machine("numa:1 l3:1 core:4 pu:1", {{{0, 1}, 0, {{"FrequencyMaxMHz", slow}}},
                                                              {{2, 3}, 1, {{"FrequencyMaxMHz", "5000"}}}}));
  };
  EXPECT_EQ(crew_processors(two_kinds("3700"), CrewCores::kPerformance), (std::vector<int>{2, 3}));
  EXPECT_EQ(crew_processors(two_kinds("3700"), CrewCores::kAll), (std::vector<int>{2, 3, 0, 1}));
  EXPECT_EQ(crew_processors(two_kinds("4700"), CrewCores::kPerformance), (std::vector<int>{0, 1, 2, 3}));
}

TEST(Topology, EfficiencyCoresByRank) {
  const Topology t = parse_topology(machine("numa:1 l3:1 core:4 pu:1", {{{0, 1, 2}, 0, {}}, {{3}, 1, {}}}));
  EXPECT_EQ(crew_processors(t, CrewCores::kPerformance), (std::vector<int>{3}));
}

TEST(Topology, OnlyEfficiencyCoresAllowed) {
  Topology t;
  t.cores = {{{4}, false, 0, 0}, {{5}, false, 0, 0}};
  EXPECT_EQ(crew_processors(t, CrewCores::kPerformance), (std::vector<int>{4, 5}));
}

TEST(Topology, RefusesWhatIsNoXml) {
  EXPECT_THROW(parse_topology("no xml"), InputError);
}

std::set<int> allowed_now() {
  cpu_set_t set;
  EXPECT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  std::set<int> result;
  for (int p = 0; p < CPU_SETSIZE; ++p)
    if (CPU_ISSET(static_cast<std::size_t>(p), &set)) result.insert(p);
  return result;
}

TEST(Topology, ThisMachineHasWhatTheKernelAllows) {
  const Topology t = read_topology();
  std::set<int> found;
  for (const Core& core : t.cores) found.insert(core.processors.begin(), core.processors.end());
  EXPECT_EQ(found, allowed_now());
  EXPECT_EQ(t.processors(), static_cast<int>(found.size()));
  for (const int p : crew_processors(t, CrewCores::kAll)) EXPECT_EQ(found.count(p), 1U);
}

TEST(Topology, BindsAndReadsBack) {
  const int processor = *allowed_now().rbegin();
  std::set<int> bound;
  Topology seen;
  bool done = false;
  std::thread([&] {
    done = bind_this_thread(processor);
    bound = allowed_now();
    seen = read_topology();
  }).join();
  EXPECT_TRUE(done);
  EXPECT_EQ(bound, std::set<int>{processor});
  // The affinity counts: one core is left.
  ASSERT_EQ(seen.cores.size(), 1U);
  EXPECT_EQ(seen.cores[0].processors, std::vector<int>{processor});
  EXPECT_GE(allowed_now().size(), bound.size());
}

TEST(Topology, RefusesProcessorsThatAreNotThere) {
  std::thread([] {
    EXPECT_FALSE(bind_this_thread(-1));
    EXPECT_FALSE(bind_this_thread(static_cast<int>(sysconf(_SC_NPROCESSORS_CONF)) + 5000));
  }).join();
}

}  // namespace
}  // namespace tandem
