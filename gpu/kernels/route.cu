#include "gpu/kernels/route.h"

#include "gpu/cuda_check.h"
#include "gpu/kernels/launch_check.h"
#include "gpu/kernels/ordered.cuh"
#include "gpu/kernels/reduce.cuh"

namespace tandem::gpu {

namespace {

constexpr unsigned kItems = 16;  // logits of a lane: expert k * 32 + lane

__global__ void route_kernel(ConstDeviceRows logits, unsigned used, std::int32_t* expert, float* weight,
                             std::int32_t* bad) {
  const unsigned r = blockIdx.x, lane = threadIdx.x;
  const auto n = static_cast<unsigned>(logits.cols);
  const float* row = logits.data + r * logits.stride;
  std::uint32_t key[kItems];  // 0: none, or taken
  bool nan = false;
#pragma unroll
  for (unsigned k = 0; k < kItems; ++k) {
    const unsigned i = k * kWarp + lane;
    const float v = i < n ? row[i] : 0.0F;
    nan = nan || v != v;
    key[k] = i < n ? ordered(v) : 0;
  }
  if (__any_sync(kAllLanes, nan)) {
    if (lane == 0) atomicMin(bad, static_cast<std::int32_t>(r));
    return;
  }
  unsigned own = 0;  // lane k keeps the expert of rank k
  for (unsigned rank = 0; rank < used; ++rank) {
    std::uint32_t best = 0;
    unsigned at = 0;
#pragma unroll
    for (unsigned k = 0; k < kItems; ++k)
      if (key[k] > best) {
        best = key[k];
        at = k * kWarp + lane;
      }
    const std::uint32_t top = __reduce_max_sync(kAllLanes, best);
    const unsigned winner = __reduce_min_sync(kAllLanes, best == top ? at : 0xFFFFFFFFU);
    if (rank == lane) own = winner;
#pragma unroll
    for (unsigned k = 0; k < kItems; ++k)
      if (winner == k * kWarp + lane) key[k] = 0;
  }
  const unsigned best = __shfl_sync(kAllLanes, own, 0);
  const float e = lane < used ? exp_c(row[own] - row[best]) : 0.0F;
  float total = 0.0F;
  for (unsigned k = 0; k < used; ++k) total = total + __shfl_sync(kAllLanes, e, k);
  if (lane < used) {
    expert[r * used + lane] = static_cast<std::int32_t>(own);
    weight[r * used + lane] = e / total;
  }
}

}  // namespace

void route(ConstDeviceRows logits, std::size_t used, std::int32_t* expert, float* weight, std::int32_t* bad,
           DeviceStream stream) {
  LAUNCH_CHECK(logits.cols <= kItems * kWarp && used > 0 && used <= kWarp && used <= logits.cols, logits.cols, used);
  if (logits.rows == 0) return;
  route_kernel<<<static_cast<unsigned>(logits.rows), kWarp, 0, stream>>>(logits, static_cast<unsigned>(used), expert,
                                                                         weight, bad);
  CUDA_CHECK_LAUNCH();
}

}  // namespace tandem::gpu
