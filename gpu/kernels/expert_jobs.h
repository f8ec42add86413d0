// Routes to work on the card: the list of jobs that the expert kernels take. It is made on the card, so that a captured
// graph holds for any routes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace tandem {

// A pair is a (row, rank) of the routes: row * used + rank.
inline constexpr int kJobPairs = 4;
inline constexpr std::size_t kMaxPairs = 1024;  // of one list
// Pairs of a job for a list of so many rows.
inline int pairs_per_job(std::size_t rows) {
  return rows <= 2 ? static_cast<int>(rows) : kJobPairs;
}

// One expert and up to four pairs that use it. An expert with more pairs has several jobs.
struct ExpertJob {
  const std::uint8_t* blob;
  std::int32_t expert;
  std::int32_t count;
  std::int32_t pair[kJobPairs];
  std::int32_t row[kJobPairs];  // of the pair
};

// Routes of `rows` rows: expert [rows, used], -1 for a pair that is not to be looked at. slots [experts]: the address
// of an expert's blob (runtime/expert_blob.h) on the card, null when it is not there.
struct DeviceRoutes {
  const std::int32_t* expert = nullptr;
  std::size_t rows = 0, used = 0;
  const std::uint8_t* const* slots = nullptr;
};

// jobs[0 .. *job_count): every pair whose expert is on the card, in one job. bad[i] = 0 for every pair. jobs has room
// for rows * used. Ascending by the first pair of a job. REQUIRES rows * used <= kMaxPairs.
void launch_expert_jobs(const DeviceRoutes& routes, int per_job, ExpertJob* jobs, std::int32_t* job_count,
                        std::int32_t* bad, cudaStream_t stream);

}  // namespace tandem
