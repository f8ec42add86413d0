#include "gpu/kernels/meeting.h"

#include "gpu/cuda_check.h"
#include "gpu/kernels/launch.cuh"
#include "gpu/kernels/launch_check.h"
#include "gpu/kernels/meeting.cuh"

namespace tandem::gpu {

namespace {

constexpr unsigned kPublishThreads = 128;

__global__ void split_kernel(const std::int32_t* expert, unsigned count, const std::uint8_t* const* slots,
                             std::int32_t* hit, std::int32_t* miss, std::int32_t* log) {
  begin_kernel();
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const std::int32_t e = expert[i];
  const bool here = e >= 0 && slots[e] != nullptr;
  hit[i] = here ? e : -1;
  miss[i] = here ? -1 : e;
  log[i] = e;
}

__global__ void __launch_bounds__(kPublishThreads) publish_kernel(const MeetingArgs m, const QuantRowsOnCard x) {
  begin_kernel();
  const unsigned count = static_cast<unsigned>(m.rows * m.used);
  int mine = 0;
  for (unsigned i = threadIdx.x; i < count; i += kPublishThreads) mine += m.miss[i] >= 0 ? 1 : 0;
  __shared__ int total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  if (mine > 0) atomicAdd(&total, mine);
  __syncthreads();
  if (total > 0) {
    for (unsigned i = threadIdx.x; i < count; i += kPublishThreads) m.memory.miss[i] = m.miss[i];
    for (std::size_t r = 0; r < m.rows; ++r) publish_row(m, x, r);
  }
  __syncthreads();
  if (threadIdx.x < 32) ring(m, total);
}

__global__ void wait_kernel(const MeetingArgs m) {
  begin_kernel();
  if (*m.misses == 0) return;
  const std::uint32_t number = *m.first_number + m.index;
  while (static_cast<std::int32_t>(load_acquire(m.memory.answer) - number) < 0) __nanosleep(100);
}

__global__ void wait_number_kernel(const std::uint32_t* word, const std::uint32_t* number) {
  begin_kernel();
  const std::uint32_t wanted = *number;
  while (static_cast<std::int32_t>(load_acquire(word) - wanted) < 0) __nanosleep(100);
}

}  // namespace

void split_routes(const std::int32_t* expert, std::size_t count, const std::uint8_t* const* slots, std::int32_t* hit,
                  std::int32_t* miss, std::int32_t* log, DeviceStream stream) {
  if (count == 0) return;
  constexpr unsigned kSplitThreads = 128;
  launch_kernel(split_kernel, static_cast<unsigned>((count + kSplitThreads - 1) / kSplitThreads), kSplitThreads, 0,
                stream, expert, static_cast<unsigned>(count), slots, hit, miss, log);
}

void publish(const MeetingArgs& meeting, const QuantRowsOnCard& x, DeviceStream stream) {
  LAUNCH_CHECK(x.cols % 32 == 0 && meeting.rows > 0, x.cols, meeting.rows);
  launch_kernel(publish_kernel, 1, kPublishThreads, 0, stream, meeting, x);
}

void await(const MeetingArgs& meeting, DeviceStream stream) {
  launch_kernel(wait_kernel, 1, 1, 0, stream, meeting);
}

void await_number(const std::uint32_t* word, const std::uint32_t* number, DeviceStream stream) {
  launch_kernel(wait_number_kernel, 1, 1, 0, stream, word, number);
}

}  // namespace tandem::gpu
