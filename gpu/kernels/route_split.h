// The router, the split of its routes and the list of expert jobs of a few rows in one launch: what route
// (gpu/kernels/route.h), split_routes (gpu/kernels/meeting.h) and launch_expert_jobs on the hits give.
//
// When: once per layer of a pass of up to kSplitRows rows. How: one block; a warp routes a row, then a thread has a
// pair. Measured: docs/decisions.md, 2026-11-30.
#pragma once

#include "gpu/kernels/device_rows.h"
#include "gpu/kernels/expert_jobs.h"

namespace tandem::gpu {

inline constexpr std::size_t kSplitRows = 16;

struct RouteSplitArgs {
  ConstDeviceRows logits;
  std::size_t used = 0;
  const std::uint8_t* const* slots = nullptr;  // [experts]
  std::int32_t* expert = nullptr;              // [rows, used], as weight, hit, miss and log
  float* weight = nullptr;
  std::int32_t* bad_row = nullptr;  // as of route
  std::int32_t* hit = nullptr;
  std::int32_t* miss = nullptr;
  std::int32_t* log = nullptr;  // host memory
  ExpertJob* jobs = nullptr;    // of the hits, pairs_per_job(rows) of a job
  std::int32_t* job_count = nullptr;
  std::int32_t* bad_pair = nullptr;  // [rows, used], zeroed
};
// REQUIRES rows <= kSplitRows, used <= 32, as route.
void route_split(const RouteSplitArgs& args, DeviceStream stream);

}  // namespace tandem::gpu
