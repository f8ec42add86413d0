// The router's choice for one row (gpu/kernels/route.h), by one warp.
#pragma once

#include "gpu/kernels/device_rows.h"
#include "gpu/kernels/ordered.cuh"
#include "gpu/kernels/reduce.cuh"

namespace tandem::gpu {

inline constexpr unsigned kItems = 16;  // logits of a lane: expert k * 32 + lane

__device__ inline std::uint32_t best_key(const std::uint32_t (&key)[kItems]) {
  std::uint32_t best[kItems];
#pragma unroll
  for (unsigned k = 0; k < kItems; ++k) best[k] = key[k];
#pragma unroll
  for (unsigned step = 1; step < kItems; step *= 2)
#pragma unroll
    for (unsigned k = 0; k < kItems; k += 2 * step) best[k] = max(best[k], best[k + step]);
  return best[0];
}

// The expert of rank `lane`: the best is taken `used` times. For rows with many equal logits.
__device__ inline unsigned take_best(std::uint32_t (&key)[kItems], unsigned used) {
  const unsigned lane = threadIdx.x % kWarp;
  unsigned own = 0;
  for (unsigned rank = 0; rank < used; ++rank) {
    const std::uint32_t top = __reduce_max_sync(kAllLanes, best_key(key));
    unsigned at = 0xFFFFFFFFU;
#pragma unroll
    for (unsigned k = 0; k < kItems; ++k) at = key[k] == top ? min(at, k * kWarp + lane) : at;
    const unsigned winner = __reduce_min_sync(kAllLanes, at);
    if (rank == lane) own = winner;
#pragma unroll
    for (unsigned k = 0; k < kItems; ++k)
      if (winner == k * kWarp + lane) key[k] = 0;
  }
  return own;
}

// Of a warp, in shared memory.
struct RouteShared {
  std::uint32_t heads[kWarp], found[kWarp];
  unsigned found_at[kWarp];
  float logits[kWarp], weights[kWarp];
};

// What the lane of a rank below `used` gets.
struct Routed {
  std::int32_t expert;  // -1 in a row with a NaN
  float weight;
};
// Row r of the logits, by all lanes of a warp.
__device__ inline Routed route_row(const ConstDeviceRows& logits, std::size_t r, unsigned used, std::int32_t* bad,
                                   RouteShared& shared) {
  const unsigned lane = threadIdx.x % kWarp;
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
    return {-1, 0.0F};
  }
  // The lanes' best keys in order: the one of rank `used` - 1 bounds what can be chosen, and few keys reach it.
  const std::uint32_t best = best_key(key);
  shared.heads[lane] = best;
  __syncwarp();
  unsigned before = 0;
#pragma unroll
  for (unsigned l = 0; l < kWarp; ++l)
    before += shared.heads[l] > best || (shared.heads[l] == best && l < lane) ? 1U : 0U;
  const unsigned last = __ballot_sync(kAllLanes, before == used - 1);
  const std::uint32_t bound = max(__shfl_sync(kAllLanes, best, __ffs(static_cast<int>(last)) - 1), 1U);
  const unsigned below = (1U << lane) - 1;
  unsigned reach = 0;
#pragma unroll
  for (unsigned k = 0; k < kItems; ++k) {
    const bool mine = key[k] >= bound;
    const unsigned lanes = __ballot_sync(kAllLanes, mine);
    const unsigned at = reach + __popc(lanes & below);
    if (mine && at < kWarp) {
      shared.found[at] = key[k];
      shared.found_at[at] = k * kWarp + lane;
    }
    reach += __popc(lanes);
  }
  __syncwarp();
  unsigned own = 0;  // lane k gets the expert of rank k
  if (reach <= kWarp) {
    // Found in ascending order of expert, so the earlier of two equal ones goes first.
    const std::uint32_t mine = lane < reach ? shared.found[lane] : 0;
    const unsigned mine_at = lane < reach ? shared.found_at[lane] : 0;
    unsigned rank = 0;
    for (unsigned i = 0; i < reach; ++i)
      rank += shared.found[i] > mine || (shared.found[i] == mine && i < lane) ? 1U : 0U;
    __syncwarp();
    if (lane < reach) {
      shared.found_at[rank] = mine_at;
      shared.logits[rank] = from_ordered(mine);
    }
    __syncwarp();
    own = shared.found_at[lane];
  } else {
    own = take_best(key, used);
    if (lane < used) shared.logits[lane] = row[own];
    __syncwarp();
  }
  const float e = lane < used ? exp_c(shared.logits[lane] - shared.logits[0]) : 0.0F;
  shared.weights[lane] = e;
  __syncwarp();
  float total = 0.0F;
#pragma unroll 8
  for (unsigned k = 0; k < used; ++k) total = total + shared.weights[k];
  return {static_cast<std::int32_t>(own), e / total};
}

}  // namespace tandem::gpu
