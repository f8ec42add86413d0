// Passes whose rows are taken back in part, against passes that are final: what bench_rollback times.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "bench/bench.h"
#include "cpu/cpu_ops.h"
#include "runtime/pipeline.h"

namespace tandem::bench {

// The CPU machine with a stopwatch on the scan.
class TimedOps : public CpuOps {
 public:
  using CpuOps::CpuOps;
  void gdn_scan(const GdnScan& scan) override;
  double seconds = 0;
};

// Final; in a window of which no row, the first, or all rows are kept.
enum Way : std::size_t { kFinal, kKeepNone, kKeepOne, kKeepAll, kWays };

struct RollbackTimes {
  std::vector<double> round, keep, scan;  // seconds: the pass with keep, keep alone, the scans of the pass
  double median(std::vector<double> RollbackTimes::*which) const { return summarise(this->*which).median; }
};

struct RollbackPlan {
  std::size_t rounds, prompt, width;
};

// The ways take turns, one pass each, every way on a sequence of its own; the first passes are not counted. REQUIRES
// ops to be the pipeline's.
std::array<RollbackTimes, kWays> measure_rollback(Pipeline& pipeline, TimedOps& ops, const RollbackPlan& plan);

// Seconds that a round with all rows kept spends on what a final pass would not do: keep, and whatever the scan takes
// longer than where there is nothing to fold or to log. Medians.
double state_work(const std::array<RollbackTimes, kWays>& times);

}  // namespace tandem::bench
