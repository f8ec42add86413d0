#include "gpu/kernels/meeting.h"

#include "gpu/cuda_check.h"
#include "gpu/kernels/launch.cuh"
#include "gpu/kernels/launch_check.h"

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

__device__ void store_release(std::uint32_t* to, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ std::uint32_t load_acquire(const std::uint32_t* from) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

struct Rows16 {
  const std::int8_t* q;
  const float* d;
  const std::int32_t* s;
  unsigned cols;
};

__global__ void __launch_bounds__(kPublishThreads) publish_kernel(const MeetingArgs m, const Rows16 x) {
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
    const unsigned words = static_cast<unsigned>(m.rows) * x.cols / 16;
    const auto* from = reinterpret_cast<const int4*>(x.q);
    auto* to = reinterpret_cast<int4*>(m.memory.q);
    for (unsigned i = threadIdx.x; i < words; i += kPublishThreads) to[i] = from[i];
    const unsigned blocks = static_cast<unsigned>(m.rows) * (x.cols / 32);
    for (unsigned i = threadIdx.x; i < blocks; i += kPublishThreads) m.memory.d[i] = x.d[i];
    for (unsigned i = threadIdx.x; i < 2 * blocks; i += kPublishThreads) m.memory.s[i] = x.s[i];
  }
  if (threadIdx.x == 0) m.memory.miss_count[m.index] = total;
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) store_release(m.memory.doorbell, *m.first_number + m.index);
}

__global__ void wait_kernel(const MeetingArgs m) {
  begin_kernel();
  // The word is in host memory, but this card wrote it: no fence is needed to read it back.
  if (*static_cast<volatile const std::int32_t*>(m.memory.miss_count + m.index) == 0) return;
  const std::uint32_t number = *m.first_number + m.index;
  while (static_cast<std::int32_t>(load_acquire(m.memory.answer) - number) < 0) __nanosleep(100);
}

__global__ void wait_number_kernel(const std::uint32_t* word, const std::uint32_t* number) {
  begin_kernel();
  const std::uint32_t wanted = *number;
  while (static_cast<std::int32_t>(load_acquire(word) - wanted) < 0) __nanosleep(100);
}

// A block per pair; those that hit leave at once.
__global__ void take_kernel(const MeetingArgs m, DeviceRows y) {
  begin_kernel();
  const unsigned pair = blockIdx.x;
  if (m.miss[pair] < 0) return;
  const volatile float* from = m.memory.y + std::size_t{pair} * y.cols;
  for (unsigned i = threadIdx.x; i < y.cols; i += blockDim.x) y.data[pair * y.stride + i] = from[i];
}

}  // namespace

void split_routes(const std::int32_t* expert, std::size_t count, const std::uint8_t* const* slots, std::int32_t* hit,
                  std::int32_t* miss, std::int32_t* log, DeviceStream stream) {
  if (count == 0) return;
  constexpr unsigned kSplitThreads = 128;
  launch_kernel(split_kernel, static_cast<unsigned>((count + kSplitThreads - 1) / kSplitThreads), kSplitThreads, 0,
                stream, expert, static_cast<unsigned>(count), slots, hit, miss, log);
}

void publish(const MeetingArgs& meeting, const std::int8_t* q, const float* d, const std::int32_t* s, std::size_t cols,
             DeviceStream stream) {
  LAUNCH_CHECK(cols % 32 == 0 && meeting.rows > 0, cols, meeting.rows);
  launch_kernel(publish_kernel, 1, kPublishThreads, 0, stream, meeting, Rows16{q, d, s, static_cast<unsigned>(cols)});
}

void await(const MeetingArgs& meeting, DeviceStream stream) {
  launch_kernel(wait_kernel, 1, 1, 0, stream, meeting);
}

void await_number(const std::uint32_t* word, const std::uint32_t* number, DeviceStream stream) {
  launch_kernel(wait_number_kernel, 1, 1, 0, stream, word, number);
}

void take(const MeetingArgs& meeting, DeviceRows y, DeviceStream stream) {
  LAUNCH_CHECK(y.rows == meeting.rows * meeting.used && meeting.rows > 0, y.rows, meeting.rows, meeting.used);
  await(meeting, stream);
  launch_kernel(take_kernel, static_cast<unsigned>(y.rows), 256, 0, stream, meeting, y);
}

}  // namespace tandem::gpu
