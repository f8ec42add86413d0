// The read roof: how fast this machine can read memory that is in no cache, with plain vector loads and nothing else.
// Every other figure is given as a share of it, measured in the same run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bench/bench.h"
#include "cpu/memory_read.h"

namespace tandem::bench {

struct ReadRoof {
  double median = 0, best = 0;  // bytes per second
};

// Fills a buffer with random bits, by all workers: memory that was never written is one page of zeros, read from a
// cache.
void write_noise(WorkerTeam& team, const HugeBuffer& buffer, std::uint64_t seed);

// For a roof that stands alone: more samples than the kernels get, since everything is divided by it.
inline constexpr SamplePlan kRoofPlan{.seconds = 0.003, .samples = 81};

// Reads of 1 MiB pieces of the buffer in turn, handed out to the workers one by one.
// REQUIRES a buffer that was written.
ReadRoof measure_read_roof(WorkerTeam& team, const HugeBuffer& buffer, const SamplePlan& plan);

}  // namespace tandem::bench
