// Which physical cores this process may use and where they sit, for pinning workers. Read with hwloc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "placement/policy.h"

namespace tandem {

// A physical core, as far as this process may use it.
struct Core {
  std::vector<int> processors;  // its logical processors (numbers of the operating system), ascending, at least one
  bool performance = true;      // false: an efficiency core of a machine that has both kinds
  int l3_group = 0;             // cores with one number share an L3 cache (a package where no L3 is known)
  int numa_node = 0;            // number of the operating system
};

struct Topology {
  std::vector<Core> cores;    // by lowest processor
  int l3_groups = 0;          // L3 caches of these cores; 0: the system names none
  std::int64_t l3_bytes = 0;  // of those caches together
  int numa_nodes = 0;         // nodes with such a core, at least 1
  int performance_cores() const;
  int efficiency_cores() const;
  int processors() const;  // logical
};

// Of this machine, within the control group and the affinity of the calling thread: call it before threads are pinned.
// Cores are efficiency cores when hwloc says so (CoreType), else when their highest frequency is below 3/4 of the
// fastest kind's, else when hwloc ranks their kind below the best; on a machine of one kind all are performance cores.
Topology read_topology();
// From hwloc's XML (`lstopo file.xml`), affinity not considered. Throws InputError for text that hwloc cannot read.
Topology parse_topology(const std::string& xml);

// Where workers go: the first logical processor of each performance core (kAll: then of each efficiency core), one L3
// group after the other and the fullest first, NUMA node by NUMA node. At least one. A machine of which the process may
// use efficiency cores only gives those.
std::vector<int> crew_processors(const Topology& topology, CrewCores cores);

// Pins the calling thread and reads the affinity back; false when the system refuses or did something else.
bool bind_this_thread(int processor);

}  // namespace tandem
