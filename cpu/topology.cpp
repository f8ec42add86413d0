#include "cpu/topology.h"

#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <tuple>

#include "placement/check.h"

namespace tandem {
namespace {

using TopologyHandle = std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)>;
using SetHandle = std::unique_ptr<hwloc_bitmap_s, decltype(&hwloc_bitmap_free)>;

TopologyHandle make_handle() {
  hwloc_topology_t raw = nullptr;
  CHECK(hwloc_topology_init(&raw) == 0);
  return {raw, &hwloc_topology_destroy};
}

SetHandle make_set() {
  return {hwloc_bitmap_alloc(), &hwloc_bitmap_free};
}

// A kind of core as hwloc tells it.
struct Kind {
  SetHandle processors = make_set();
  int rank = -1;          // larger is faster; -1: not known
  double frequency = 0;   // highest, MHz; 0: not known
  std::string core_type;  // "IntelCore", "IntelAtom" or empty
  bool performance = true;
};

std::vector<Kind> read_kinds(hwloc_topology_t topology) {
  std::vector<Kind> kinds;
  const int count = std::max(0, hwloc_cpukinds_get_nr(topology, 0));
  for (int i = 0; i < count; ++i) {
    Kind kind;
    unsigned infos = 0;
    hwloc_info_s* info = nullptr;
    const auto index = static_cast<unsigned>(i);
    if (hwloc_cpukinds_get_info(topology, index, kind.processors.get(), &kind.rank, &infos, &info, 0) != 0) continue;
    for (unsigned k = 0; k < infos; ++k) {
      const std::string name = info[k].name;
      if (name == "CoreType") kind.core_type = info[k].value;
      if (name == "FrequencyMaxMHz") kind.frequency = std::atof(info[k].value);
    }
    kinds.push_back(std::move(kind));
  }

  const bool typed = std::any_of(kinds.begin(), kinds.end(), [](const Kind& k) { return k.core_type == "IntelCore"; });
  const bool clocked = std::all_of(kinds.begin(), kinds.end(), [](const Kind& k) { return k.frequency > 0; });
  double fastest = 0;
  int best = -1;
  for (const Kind& kind : kinds) {
    fastest = std::max(fastest, kind.frequency);
    best = std::max(best, kind.rank);
  }
  for (Kind& kind : kinds) {
    // Favoured cores of one design differ by a few percent in frequency; the small cores seen so far by a third.
    if (typed) {
      kind.performance = kind.core_type != "IntelAtom";
    } else if (clocked) {
      kind.performance = kind.frequency >= 0.75 * fastest;
    } else {
      kind.performance = kind.rank == best;
    }
  }
  return kinds;
}

bool is_performance(const std::vector<Kind>& kinds, int processor) {
  for (const Kind& kind : kinds)
    if (hwloc_bitmap_isset(kind.processors.get(), static_cast<unsigned>(processor)) != 0) return kind.performance;
  return true;
}

Topology gather(hwloc_topology_t topology, hwloc_const_bitmap_t allowed) {
  const std::vector<Kind> kinds = read_kinds(topology);
  std::map<hwloc_obj_t, Core> cores;
  std::map<hwloc_obj_t, int> groups;
  std::set<int> nodes;
  Topology result;
  for (hwloc_obj_t pu = nullptr; (pu = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PU, pu)) != nullptr;) {
    if (hwloc_bitmap_isset(allowed, pu->os_index) == 0) continue;
    hwloc_obj_t home = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_CORE, pu);
    if (home == nullptr) home = pu;  // a system that names no cores
    Core& core = cores[home];
    core.processors.push_back(static_cast<int>(pu->os_index));
    core.performance = is_performance(kinds, static_cast<int>(pu->os_index));
    hwloc_obj_t group = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_L3CACHE, pu);
    const bool cached = group != nullptr;
    if (!cached) group = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_PACKAGE, pu);
    const auto [place, fresh] = groups.emplace(group, static_cast<int>(groups.size()));
    core.l3_group = place->second;
    if (fresh && cached) {
      ++result.l3_groups;
      result.l3_bytes += static_cast<std::int64_t>(group->attr->cache.size);
    }
    const int node = hwloc_bitmap_first(pu->nodeset);
    core.numa_node = std::max(0, node);
    nodes.insert(core.numa_node);
  }
  for (auto& [object, core] : cores) result.cores.push_back(std::move(core));  // hwloc orders threads by number
  std::sort(result.cores.begin(), result.cores.end(),
            [](const Core& a, const Core& b) { return a.processors.front() < b.processors.front(); });
  result.numa_nodes = static_cast<int>(nodes.size());
  CHECK(!result.cores.empty(), "hwloc found no core that this process may use");
  return result;
}

}  // namespace

int Topology::performance_cores() const {
  return static_cast<int>(std::count_if(cores.begin(), cores.end(), [](const Core& c) { return c.performance; }));
}

int Topology::efficiency_cores() const {
  return static_cast<int>(cores.size()) - performance_cores();
}

int Topology::processors() const {
  return std::accumulate(cores.begin(), cores.end(), 0,
                         [](int sum, const Core& core) { return sum + static_cast<int>(core.processors.size()); });
}

Topology read_topology() {
  const TopologyHandle topology = make_handle();
  CHECK(hwloc_topology_load(topology.get()) == 0);
  const SetHandle allowed = make_set();
  if (hwloc_get_cpubind(topology.get(), allowed.get(), HWLOC_CPUBIND_THREAD) != 0)
    hwloc_bitmap_copy(allowed.get(), hwloc_topology_get_allowed_cpuset(topology.get()));
  return gather(topology.get(), allowed.get());
}

Topology parse_topology(const std::string& xml) {
  const TopologyHandle topology = make_handle();
  if (hwloc_topology_set_xmlbuffer(topology.get(), xml.c_str(), static_cast<int>(xml.size() + 1)) != 0 ||
      hwloc_topology_load(topology.get()) != 0)
    fail_input("topology: expected XML of hwloc, found {} bytes that it cannot read. Fix: lstopo FILE.xml", xml.size());
  return gather(topology.get(), hwloc_topology_get_allowed_cpuset(topology.get()));
}

std::vector<int> crew_processors(const Topology& topology, CrewCores cores) {
  const bool any_performance = topology.performance_cores() > 0;
  std::map<int, int> node_size, group_size;
  for (const Core& core : topology.cores) {
    if (core.performance != any_performance) continue;
    ++node_size[core.numa_node];
    ++group_size[core.l3_group];
  }
  std::vector<Core> chosen;
  for (const Core& core : topology.cores)
    if (core.performance || !any_performance || cores == CrewCores::kAll) chosen.push_back(core);
  std::stable_sort(chosen.begin(), chosen.end(), [&](const Core& a, const Core& b) {
    const auto key = [&](const Core& c) {
      return std::tuple(!c.performance, -node_size[c.numa_node], c.numa_node, -group_size[c.l3_group], c.l3_group);
    };
    return key(a) < key(b);
  });
  std::vector<int> processors;
  processors.reserve(chosen.size());
  for (const Core& core : chosen) processors.push_back(core.processors.front());
  return processors;
}

bool bind_this_thread(int processor) {
  if (processor < 0) return false;
  const std::size_t count = static_cast<std::size_t>(processor) + 1;
  const std::size_t bytes = std::max(CPU_ALLOC_SIZE(count), sizeof(cpu_set_t));
  using Set = std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)>;
  const auto make = [bytes] {
    return Set(static_cast<cpu_set_t*>(std::calloc(1, bytes)), [](cpu_set_t* set) { std::free(set); });
  };
  const Set wanted = make(), found = make();
  CHECK(wanted && found);
  CPU_SET_S(static_cast<std::size_t>(processor), bytes, wanted.get());
  return sched_setaffinity(0, bytes, wanted.get()) == 0 && sched_getaffinity(0, bytes, found.get()) == 0 &&
         CPU_EQUAL_S(bytes, wanted.get(), found.get());
}

}  // namespace tandem
