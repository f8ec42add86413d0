// Implements  the split of routes and the list of expert jobs.
// When        once per layer and pass, between the router and the expert kernels.
// How         one block. A job's place is the number of jobs that start before it; a thread per pair looks at all
// others
//             of the same expert, which for the 160 pairs of 16 rows is less work than a sort.
// Measured    see docs/decisions.md, 2026-11-30; bench_gpu_kernels.
#include "gpu/kernels/expert_jobs.h"

#include "gpu/cuda_check.h"
#include "gpu/kernels/expert_jobs.cuh"
#include "gpu/kernels/launch.cuh"
#include "placement/check.h"

namespace tandem {
namespace {

constexpr int kSplitThreads = 256;

__global__ void __launch_bounds__(kMaxPairs)
    expert_jobs_kernel(const std::int32_t* routes, int n, int used, int per_job, const std::uint8_t* const* slots,
                       ExpertJob* jobs, std::int32_t* job_count, std::int32_t* bad) {
  begin_kernel();
  __shared__ JobsShared<kMaxPairs> shared;
  const int i = static_cast<int>(threadIdx.x);
  const std::int32_t expert = i < n ? routes[i] : -1;
  const std::uint8_t* const blob = expert >= 0 ? slots[expert] : nullptr;
  if (i < n) bad[i] = 0;
  list_jobs(blob != nullptr ? expert : -1, blob, n, used, per_job, jobs, job_count, shared);
}

__global__ void __launch_bounds__(kSplitThreads) split_routes_kernel(DeviceRoutes routes, int n, SplitRoutes out) {
  begin_kernel();
  __shared__ int warp_sums[kSplitThreads / 32];
  int misses = 0;
  for (int first = 0; first < n; first += kSplitThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const std::int32_t expert = i < n ? routes.expert[i] : -1;
    const bool there = expert >= 0 && routes.slots[expert] != nullptr, missing = expert >= 0 && !there;
    if (i < n) {
      if (out.hit != nullptr) out.hit[i] = there ? expert : -1;
      if (out.miss != nullptr) out.miss[i] = missing ? expert : -1;
    }
    if (out.uses != nullptr && expert >= 0) atomicAdd(out.uses + expert, 1U);
    int total;
    const int before = count_before(missing, warp_sums, &total);
    if (missing && out.miss_pair != nullptr) out.miss_pair[misses + before] = i;
    misses += total;
  }
  if (threadIdx.x == 0 && out.miss_count != nullptr) *out.miss_count = misses;
}

}  // namespace

void launch_expert_jobs(const DeviceRoutes& routes, int per_job, ExpertJob* jobs, std::int32_t* job_count,
                        std::int32_t* bad, cudaStream_t stream) {
  const std::size_t n = routes.rows * routes.used;
  CHECK(n > 0 && n <= kMaxPairs && per_job >= 1 && per_job <= kJobPairs, "{} pairs, {} per job", n, per_job);
  launch_kernel(expert_jobs_kernel, 1, static_cast<unsigned>((n + 31) / 32 * 32), 0, stream, routes.expert,
                static_cast<int>(n), static_cast<int>(routes.used), per_job, routes.slots, jobs, job_count, bad);
}

void launch_split_routes(const DeviceRoutes& routes, const SplitRoutes& out, cudaStream_t stream) {
  launch_kernel(split_routes_kernel, 1, kSplitThreads, 0, stream, routes, static_cast<int>(routes.rows * routes.used),
                out);
}

}  // namespace tandem
