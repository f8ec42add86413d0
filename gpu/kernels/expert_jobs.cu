// Implements  the list of expert jobs.
// When        once per layer and pass, between the router and the expert kernels, where the router's kernel does not.
// How         one block. A job's place is the number of jobs that start before it; a thread per pair looks at all
//             others of the same expert, which for the 160 pairs of 16 rows is less work than a sort.
// Measured    docs/decisions.md, 2026-11-30; bench_gpu_kernels.
#include "gpu/kernels/expert_jobs.h"

#include "gpu/cuda_check.h"
#include "gpu/kernels/expert_jobs.cuh"
#include "gpu/kernels/launch.cuh"
#include "placement/check.h"

namespace tandem {
namespace {

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

}  // namespace

void launch_expert_jobs(const DeviceRoutes& routes, int per_job, ExpertJob* jobs, std::int32_t* job_count,
                        std::int32_t* bad, cudaStream_t stream) {
  const std::size_t n = routes.rows * routes.used;
  CHECK(n > 0 && n <= kMaxPairs && per_job >= 1 && per_job <= kJobPairs, "{} pairs, {} per job", n, per_job);
  launch_kernel(expert_jobs_kernel, 1, static_cast<unsigned>((n + 31) / 32 * 32), 0, stream, routes.expert,
                static_cast<int>(n), static_cast<int>(routes.used), per_job, routes.slots, jobs, job_count, bad);
}

}  // namespace tandem
