// A layer's router in one launch: the product of the router with those of the same input, the choice of experts, its
// split into hits and misses, the list of expert jobs, and telling the crew: what float_matmuls, route
// (gpu/kernels/route.h), split_routes, launch_expert_jobs on the hits and publish (gpu/kernels/meeting.h) give.
//
// When: once per layer of a pass of up to kRouterRows rows. How: the grid is that of the product, and blocks that copy
// the quantised rows to the crew's memory beside it; the last block to end goes on alone: a warp routes a row, then a
// thread has a pair. Measured: docs/decisions.md, 2026-12-01.
#pragma once

#include "gpu/kernels/device_rows.h"
#include "gpu/kernels/expert_jobs.h"
#include "gpu/kernels/float_matmul.h"
#include "gpu/kernels/meeting.h"
#include "gpu/kernels/name_experts.h"

namespace tandem::gpu {

inline constexpr std::size_t kRouterRows = 16;

struct RouterArgs {
  // The products: the router's, [experts, x.cols], whose y are the logits, and another one where its n is not 0.
  FloatType type = FloatType::kF32;
  FloatMatmul router, other;
  ConstDeviceRows x;
  // The routes.
  std::size_t used = 0;
  const std::uint8_t* const* slots = nullptr;  // [experts]
  FetchedExperts fetched;                      // off the card, as slots says, but there for this meeting
  std::int32_t* expert = nullptr;              // [rows, used], as weight, hit, miss and log
  float* weight = nullptr;
  std::int32_t* bad_row = nullptr;  // as of route
  std::int32_t* hit = nullptr;
  std::int32_t* miss = nullptr;
  std::int32_t* log = nullptr;  // host memory
  ExpertJob* jobs = nullptr;    // of the hits, pairs_per_job(rows) of a job
  std::int32_t* job_count = nullptr;
  std::int32_t* bad_pair = nullptr;  // [rows, used], zeroed
  // The meeting, where meeting.rows is not 0, with x quantised.
  MeetingArgs meeting;
  QuantRowsOnCard quantized;
  std::uint32_t* arrived = nullptr;  // a word that is 0, and is again afterwards
};
// REQUIRES 1 <= x.rows <= kRouterRows, used <= 32, what float_matmuls, route and publish require.
void router(const RouterArgs& args, DeviceStream stream);

}  // namespace tandem::gpu
