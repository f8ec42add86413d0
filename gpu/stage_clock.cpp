#include "gpu/stage_clock.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "gpu/cuda_check.h"

namespace tandem {

StageClock::~StageClock() {
  for (cudaEvent_t event : events_) static_cast<void>(cudaEventDestroy(event));
}

void StageClock::mark(std::string_view stage, std::vector<Mark>& marks, bool recording) {
  cudaEvent_t event = nullptr;
  CUDA_CHECK(cudaEventCreate(&event));
  events_.push_back(event);
  CUDA_CHECK(cudaEventRecordWithFlags(event, stream_, recording ? cudaEventRecordExternal : cudaEventRecordDefault));
  marks.push_back({std::string(stage), event});
}

void StageClock::add(const std::vector<Mark>& marks) {
  for (std::size_t i = 0; i + 1 < marks.size(); ++i) {
    float ms = 0;
    CUDA_CHECK(cudaEventElapsedTime(&ms, marks[i].event, marks[i + 1].event));
    Ops::StageTime& total = totals_[marks[i].stage];
    total.stage = marks[i].stage;
    total.seconds += static_cast<double>(ms) / 1e3;
    ++total.count;
  }
}

std::vector<Ops::StageTime> StageClock::times() const {
  std::vector<Ops::StageTime> list;
  for (const auto& [name, time] : totals_) list.push_back(time);
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return list;
}

}  // namespace tandem
