#include "gpu/kernels/route_split.h"

#include <algorithm>

#include "gpu/cuda_check.h"
#include "gpu/kernels/expert_jobs.cuh"
#include "gpu/kernels/launch.cuh"
#include "gpu/kernels/launch_check.h"
#include "gpu/kernels/route.cuh"

namespace tandem::gpu {

namespace {

constexpr unsigned kMost = kSplitRows * kWarp;  // threads; pairs, too

__global__ void __launch_bounds__(kMost) route_split_kernel(const __grid_constant__ RouteSplitArgs args, int per_job) {
  begin_kernel();
  __shared__ RouteShared routing[kSplitRows];
  __shared__ JobsShared<kMost> listing;
  const auto used = static_cast<unsigned>(args.used), rows = static_cast<unsigned>(args.logits.rows);
  const unsigned n = rows * used, warp = threadIdx.x / kWarp, i = threadIdx.x;
  if (warp < rows) route_row(args.logits, warp, used, args.expert, args.weight, args.bad_row, routing[warp]);
  __syncthreads();
  if (i < n) {
    const std::int32_t e = args.expert[i];
    const bool here = e >= 0 && args.slots[e] != nullptr;
    args.hit[i] = here ? e : -1;
    args.miss[i] = here ? -1 : e;
    args.log[i] = e;
  }
  list_jobs(args.expert, static_cast<int>(n), static_cast<int>(used), per_job, args.slots, args.jobs, args.job_count,
            args.bad_pair, listing);
}

}  // namespace

void route_split(const RouteSplitArgs& args, DeviceStream stream) {
  const std::size_t rows = args.logits.rows;
  LAUNCH_CHECK(args.logits.cols <= kItems * kWarp && args.used > 0 && args.used <= kWarp &&
                   args.used <= args.logits.cols && rows <= kSplitRows,
               args.logits.cols, args.used, rows);
  if (rows == 0) return;
  const std::size_t warps = std::max(rows, (rows * args.used + kWarp - 1) / kWarp);
  launch_kernel(route_split_kernel, 1, static_cast<unsigned>(warps * kWarp), 0, stream, args, pairs_per_job(rows));
}

}  // namespace tandem::gpu
