// The list of expert jobs (gpu/kernels/expert_jobs.h), by one block or some warps of it.
#pragma once

#include "gpu/kernels/expert_jobs.h"

namespace tandem {

// The first `warps` warps of a block, which others leave alone in the meantime. All of a block, unless it says so.
struct Warps {
  int warps = static_cast<int>(blockDim.x) / 32;
  __device__ __forceinline__ void meet() const { asm volatile("bar.sync 1, %0;" ::"r"(32 * warps) : "memory"); }
};

// The sum of flag over the threads before this one; the sum over all goes to *total. `warp_sums` has room for a word
// per warp. To be called by all threads of `with`.
__device__ inline int count_before(bool flag, int* warp_sums, int* total, const Warps& with) {
  const unsigned votes = __ballot_sync(~0U, flag);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  with.meet();  // warp_sums may still be read from the last call
  if (lane == 0) warp_sums[warp] = __popc(votes);
  with.meet();
  int before = 0, all = 0;
  for (int i = 0; i < with.warps; ++i) {
    if (i < warp) before += warp_sums[i];
    all += warp_sums[i];
  }
  *total = all;
  return before + __popc(votes & ((1U << lane) - 1U));
}

// kPairs: whole warps.
template <int kPairs>
struct JobsShared {
  alignas(16) std::int32_t expert[kPairs];
  std::int32_t job_of[kPairs];
  int warp_sums[32];
};

// Which of the 32 pairs from 32 * chunk on have this expert: bit k for pair k. No loads that wait for each other.
__device__ inline unsigned pairs_of(const std::int32_t* experts, int chunk, std::int32_t expert) {
  const int4* const list = reinterpret_cast<const int4*>(experts) + 8 * chunk;
  unsigned bits = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const int4 e = list[k];
    bits |= (e.x == expert ? 1U : 0U) << (4 * k) | (e.y == expert ? 2U : 0U) << (4 * k) |
            (e.z == expert ? 4U : 0U) << (4 * k) | (e.w == expert ? 8U : 0U) << (4 * k);
  }
  return bits;
}

// By all threads of `with`, at least n and at most kPairs. Thread i has pair i: its expert and
// where that is; -1 for none, as beyond n.
template <int kPairs>
__device__ inline void list_jobs(std::int32_t expert, const std::uint8_t* blob, int n, int used, int per_job,
                                 ExpertJob* jobs, std::int32_t* job_count, JobsShared<kPairs>& shared,
                                 const Warps& with = {}) {
  const int i = static_cast<int>(threadIdx.x), own_chunk = i / 32, chunks = (n + 31) / 32;
  shared.expert[i] = expert;
  with.meet();
  int earlier = 0, all = 0, lead = i;  // pairs of the same expert; the pair that starts this one's job
  if (expert >= 0) {
    for (int c = 0; c < chunks; ++c) {
      const unsigned bits = pairs_of(shared.expert, c, expert);
      all += __popc(bits);
      if (c < own_chunk) earlier += __popc(bits);
      if (c == own_chunk) earlier += __popc(bits & ((1U << (i % 32)) - 1U));
    }
    int before = earlier - earlier % per_job;  // pairs of the expert before that one
    if (before < earlier) {
      int c = 0;
      unsigned bits = pairs_of(shared.expert, 0, expert);
      for (; before >= __popc(bits); bits = pairs_of(shared.expert, ++c, expert)) before -= __popc(bits);
      for (; before > 0; --before) bits &= bits - 1;
      lead = 32 * c + __ffs(static_cast<int>(bits)) - 1;
    }
  }
  const bool starts = expert >= 0 && lead == i;
  int total;
  const int job = count_before(starts, shared.warp_sums, &total, with);
  if (starts) {
    shared.job_of[i] = job;
    jobs[job].blob = blob;
    jobs[job].expert = expert;
    jobs[job].count = min(per_job, all - earlier);
  }
  with.meet();
  if (expert >= 0) {
    jobs[shared.job_of[lead]].pair[earlier % per_job] = i;
    jobs[shared.job_of[lead]].row[earlier % per_job] = i / used;
  }
  if (i == 0) *job_count = total;
}

}  // namespace tandem
