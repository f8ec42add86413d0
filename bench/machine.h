// What a benchmark ran on: the columns that make two CSV lines comparable.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace tandem::bench {

struct MachineInfo {
  std::string name;          // host name, or what --machine says
  std::string cpu;           // model name of the first processor
  std::string isa;           // the widest of avx512-vnni, avx512, avx-vnni, avx2 that the processor has, or "none"
  std::vector<int> cpus;     // processors that this process may run on, ascending
  std::size_t l3_bytes = 0;  // last-level cache of those processors together; 0 when the system does not say
  double load = 0;           // runnable threads over the last minute, at the time of asking
};

// Reads /proc and /sys. An empty name: the host name.
MachineInfo machine_info(const std::string& name = {});

// The commit that the program was built from ("-dirty" appended for a changed tree), "unknown" outside a repository.
std::string build_commit();

// Local date, YYYY-MM-DD.
std::string today();

// Bytes in a size of /sys ("32768K", "1M", "512"), 0 when it is none.
std::size_t parse_cache_size(const std::string& text);

}  // namespace tandem::bench
