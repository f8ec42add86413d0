// Reading memory as fast as it goes, with plain vector loads and nothing else: the loop that benchmarks and
// `tandem doctor` share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "cpu/topology.h"

namespace tandem {

// Reads [data, data + bytes) and returns the xor of its 32-bit words. AVX-512 where the processor has it, else AVX2.
// REQUIRES 64-byte alignment and a multiple of 512 bytes.
std::uint32_t read_all(const std::uint8_t* data, std::size_t bytes);
std::string read_isa();  // "avx512" or "avx2"

struct ReadPlan {
  double seconds = 0.06;         // of one sample
  int samples = 5;               // the median counts
  std::size_t buffer_bytes = 0;  // memory to read from, far more than the caches hold; rounded up to MiB
};

// Read bandwidth in GB/s (1e9 bytes a second) by worker count: 1, 2, 4, ... and 3/4 and all of crew_processors(kAll),
// and all of the performance cores, each worker pinned to its core. `step` is called after each count with (done,
// total). Throws InputError when there is no memory for the buffer.
std::map<int, double> measure_read_gbps(const Topology& topology, const ReadPlan& plan,
                                        const std::function<void(std::size_t, std::size_t)>& step);

// The counts that are measured with `most` workers, of which `performance` sit on performance cores.
std::vector<int> read_worker_counts(int performance, int most);

}  // namespace tandem
