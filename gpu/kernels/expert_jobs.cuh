// The list of expert jobs (gpu/kernels/expert_jobs.h), by one block.
#pragma once

#include "gpu/kernels/expert_jobs.h"

namespace tandem {

// The sum of flag over the threads before this one; the sum over all goes to *total. `warp_sums` has room for a word
// per warp. To be called by all threads of a block.
__device__ inline int count_before(bool flag, int* warp_sums, int* total) {
  const unsigned votes = __ballot_sync(~0U, flag);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  __syncthreads();  // warp_sums may still be read from the last call
  if (lane == 0) warp_sums[warp] = __popc(votes);
  __syncthreads();
  int before = 0, all = 0;
  for (int i = 0; i < warps; ++i) {
    if (i < warp) before += warp_sums[i];
    all += warp_sums[i];
  }
  *total = all;
  return before + __popc(votes & ((1U << lane) - 1U));
}

template <int kPairs>
struct JobsShared {
  std::int32_t expert[kPairs], job_of[kPairs];
  int warp_sums[32];
};

// By all threads of a block of at least n and at most kPairs threads, whole warps.
template <int kPairs>
__device__ inline void list_jobs(const std::int32_t* routes, int n, int used, int per_job,
                                 const std::uint8_t* const* slots, ExpertJob* jobs, std::int32_t* job_count,
                                 std::int32_t* bad, JobsShared<kPairs>& shared) {
  const int i = static_cast<int>(threadIdx.x);
  std::int32_t own = i < n ? routes[i] : -1;
  const std::uint8_t* blob = own >= 0 ? slots[own] : nullptr;
  if (blob == nullptr) own = -1;
  shared.expert[i] = own;
  if (i < n) bad[i] = 0;
  __syncthreads();
  int earlier = 0, all = 0, lead = i;  // pairs of the same expert; the pair that starts this one's job
  if (own >= 0) {
    for (int j = 0; j < n; ++j) {
      if (shared.expert[j] != own) continue;
      if (j < i && all % per_job == 0) lead = j;
      ++all;
      if (j < i) ++earlier;
    }
    if (earlier % per_job == 0) lead = i;
  }
  const bool starts = own >= 0 && lead == i;
  int total;
  const int job = count_before(starts, shared.warp_sums, &total);
  if (starts) {
    shared.job_of[i] = job;
    jobs[job].blob = blob;
    jobs[job].expert = own;
    jobs[job].count = min(per_job, all - earlier);
  }
  __syncthreads();
  if (own >= 0) {
    jobs[shared.job_of[lead]].pair[earlier % per_job] = i;
    jobs[shared.job_of[lead]].row[earlier % per_job] = i / used;
  }
  if (i == 0) *job_count = total;
}

}  // namespace tandem
