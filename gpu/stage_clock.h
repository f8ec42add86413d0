// Time of the stages of passes on the card: an event at the start of each, between the kernels of a stream or the nodes
// of a graph. A mark costs about a microsecond, so passes are also timed without (bench/bench_round.cpp does).
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/kernels/device_rows.h"
#include "runtime/ops.h"

struct CUevent_st;

namespace tandem {

class StageClock {
 public:
  struct Mark {
    std::string stage;
    CUevent_st* event = nullptr;
  };
  explicit StageClock(DeviceStream stream) : stream_(stream) {}
  ~StageClock();
  StageClock(const StageClock&) = delete;
  StageClock& operator=(const StageClock&) = delete;

  // Ends the stage before in `marks` and begins another; an empty name only ends. recording: into a graph.
  void mark(std::string_view stage, std::vector<Mark>& marks, bool recording);
  // Adds the times of a pass that has ended.
  void add(const std::vector<Mark>& marks);
  std::vector<Ops::StageTime> times() const;  // longest first

 private:
  DeviceStream stream_;
  std::vector<CUevent_st*> events_;  // all that were made
  std::map<std::string, Ops::StageTime> totals_;
};

}  // namespace tandem
