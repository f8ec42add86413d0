// Implements  products of a list of experts (R3, R4), and the gate/up half of the expert FFN (R5) with the quantised
//             hidden row.
// When        the experts on the card in a pass of few rows; 1 to kJobPairs rows of a job.
// How         The grid fills the card once, and each block takes items (some tiles of a job's expert) one after the
//             other: weights of the next item are on their way while the last one is worked on, so that neither the
//             start nor the end of an item is waited for. A warp takes units: one segment of two tiles, gate and up of
//             16 hidden rows or two tiles of one matrix. A half warp has a tile, a lane a row (dp4a): no work is done
//             twice, and a row that a job does not have costs nothing. Weights and activations of a unit come to shared
//             memory that is the warp's own, the next ones as soon as it has been through these. More units in flight
//             per warp were slower than more warps, as they are the others' instructions that fill the time. Sums of
//             segments go to one of two buffers; the last warp adds them by the tree, and for gate and up multiplies
//             and quantises, while the others go on: named barriers tell it that a buffer is full and them that it is
//             free again.
// Measured    docs/decisions.md, 2026-11-30, "The card's experts as one stream"; bench_gpu_kernels.
#pragma once

#include "gpu/kernels/tile_product.cuh"

namespace tandem {
namespace {

// Barriers of the buffer 0 or 1; 0 is __syncthreads.
constexpr int kFullBarrier = 1, kFreeBarrier = 3;

__device__ __forceinline__ void arrive_at(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(blockDim.x) : "memory");
}
__device__ __forceinline__ void meet_at(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(blockDim.x) : "memory");
}

// Which unit of which item a warp is at.
struct ExpertPlace {
  int job, group;  // of the item: the list's job and the group of tiles
  int pair, segment;

  __device__ __forceinline__ ExpertPlace(const ExpertProduct& p, int item, int warp) {
    job = item / p.groups;
    group = item - job * p.groups;
    first_unit(p, warp);
  }
  __device__ __forceinline__ void first_unit(const ExpertProduct& p, int warp) {
    pair = 0;
    segment = warp;
    settle(p);
  }
  // False when the item has no more units for this warp.
  __device__ __forceinline__ bool next_unit(const ExpertProduct& p, int warps) {
    segment += warps;
    settle(p);
    return 2 * pair < p.slots;
  }
  __device__ __forceinline__ void next_item(const ExpertProduct& p) {
    job += p.step_jobs;
    group += p.step_groups;
    if (group < p.groups) return;
    group -= p.groups;
    ++job;
  }
  __device__ __forceinline__ void settle(const ExpertProduct& p) {
    while (segment >= p.segments) {
      segment -= p.segments;
      ++pair;
    }
  }
};

// Where a lane copies an item's weights and activations from: worked out once an item.
template <class T, int V>
struct ExpertSource {
  static constexpr int kSegmentBytes = T::bytes(kSegmentBlocks), kPitch = kTilePitch<kSegmentBytes>;
  static constexpr int kRowPairs = (V + 1) / 2;
  using Acts = Activations<T, V>;
  const std::uint8_t* tiles;        // half a warp a tile
  int last;                         // the lane's last pair
  const std::int8_t* q[kRowPairs];  // half a warp a row; null: none
  const float* d;                   // eight lanes a row; null: none
  const std::int32_t* s;

  __device__ __forceinline__ void enter(const ExpertProduct& p, const ExpertPlace& at, int lane) {
    const ExpertJob& job = p.jobs[at.job];
    const int half = lane / kRows, chunk = lane % kRows;
    const std::int32_t* const rows = p.by_pair ? job.pair : job.row;
    const auto blocks = static_cast<std::size_t>(p.blocks);
    const std::int32_t count = job.count;
#pragma unroll
    for (int i = 0; i < kRowPairs; ++i) {
      const int row = 2 * i + half;
      q[i] = row < count ? p.x.q + 32 * static_cast<std::size_t>(rows[row % V]) * blocks + 16 * chunk : nullptr;
    }
    const int row = lane / kSegmentBlocks, block = lane % kSegmentBlocks;
    const bool there = row < min(V, count);
    const std::size_t first = there ? static_cast<std::size_t>(rows[row % V]) * blocks : 0;
    d = there ? p.x.d + first + block : nullptr;
    s = p.x.s + 2 * (first + static_cast<std::size_t>(block));
    // Fused: gate and up of a tile. Otherwise two tiles; where there is no second one the first again.
    const int tile = p.fused ? at.group * (p.slots / 2) : min(at.group * p.slots + half, p.tiles - 1);
    last = p.fused ? p.slots : (p.tiles - 1 - tile) / 2;
    tiles = job.blob + p.offset[p.fused ? half : 0] + static_cast<std::size_t>(tile) * p.tile_bytes + 16 * chunk;
  }
  // Begin the copies of a unit of nb blocks, by all lanes.
  __device__ __forceinline__ void issue_tiles(const ExpertProduct& p, const ExpertPlace& at, std::uint8_t* unit, int nb,
                                              int lane) const {
    const std::uint8_t* const from = tiles +
                                     static_cast<std::size_t>(min(at.pair, last) * (p.fused ? 1 : 2)) * p.tile_bytes +
                                     at.segment * kSegmentBytes;
    const int chunk = lane % kRows, bytes = T::kBlockCols == 256 ? kSegmentBytes : T::bytes(nb);
    std::uint8_t* const to = unit + lane / kRows * kPitch + 16 * chunk;
#pragma unroll
    for (int i = 0; i < kSegmentBytes; i += 16 * kRows)
      if (i + 16 * chunk < bytes) copy16(to + i, from + i);
  }
  __device__ __forceinline__ void issue_activations(const ExpertPlace& at, std::uint8_t* unit, int nb, int lane) const {
    std::uint8_t* const to = unit + 2 * kPitch;
    const int half = lane / kRows, chunk = lane % kRows;
#pragma unroll
    for (int i = 0; i < kRowPairs; ++i)
      if (q[i] != nullptr && chunk < 2 * nb)
        copy_small<16>(to + (2 * i + half) * Acts::kRowBytes + 16 * chunk, q[i] + 256 * at.segment);
    const int row = lane / kSegmentBlocks, block = lane % kSegmentBlocks;
    if (d == nullptr || block >= nb) return;
    const int k = kSegmentBlocks * at.segment;
    if constexpr (kNeedsSums<T>)
      copy_small<8>(to + V * Acts::kRowBytes + 4 * (Acts::kSumWords * row + 2 * block), s + 2 * k);
    copy_small<4>(to + V * (Acts::kRowBytes + 4 * Acts::kSumWords) + 4 * (Acts::kScaleWords * row + block), d + k);
  }
};

// The last warp of a block: results of a full buffer.
template <int V>
__device__ __forceinline__ void finish_item(const ExpertProduct& p, const ExpertPlace& at, const float* part,
                                            int lane) {
  const ExpertJob& job = p.jobs[at.job];
  const auto product = [&](int slot, int n, int row, int matrix) {
    const float* first = part + slot * p.segments * (V * kRows) + kRows * n + row;
    float scale = p.scale[matrix];
    if (p.expert_scale[matrix] != nullptr) scale = scale * p.expert_scale[matrix][job.expert];
    return tree_over(first, V * kRows, p.segments, p.padded_segments) * scale;
  };
  const int row = lane % kRows, half = lane / kRows;
  if (p.fused) {
    for (int n = 0; n < job.count; ++n)
      hidden_block(p.out, p.rows / 32, product(2 * half, n, row, 0), product(2 * half + 1, n, row, 1), job.pair[n],
                   at.group, lane);
    return;
  }
  const int tile0 = at.group * p.slots, slots = min(p.slots, p.tiles - tile0);
  for (int i = half; i < slots * job.count; i += 2) {
    const int n = i / slots, slot = i - n * slots, y_col = kRows * (tile0 + slot) + row;
    if (y_col >= p.rows) continue;
    const int pair = job.pair[n];
    float y = product(slot, n, row, 0);
    if (p.out.bad != nullptr && p.out.bad[pair] != 0) y = not_a_number();
    p.out.y[static_cast<std::size_t>(pair) * p.out.y_stride + static_cast<std::size_t>(y_col)] = y;
  }
}

template <class T, int V>
__global__ void __launch_bounds__(kMaxExpertThreads, 2) expert_product_kernel(const ExpertProduct p) {
  using Acts = Activations<T, V>;
  using Source = ExpertSource<T, V>;
  extern __shared__ __align__(16) std::uint8_t shared[];
  const int warps = static_cast<int>(blockDim.x) / 32 - 1, warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, half = lane / kRows;
  std::uint8_t* const unit = shared + warp * p.warp_bytes;
  auto* const table = reinterpret_cast<std::uint32_t*>(shared + warps * p.warp_bytes);
  auto* const part = reinterpret_cast<float*>(shared + warps * p.warp_bytes + 4 * T::kTable);
  const int part_floats = p.slots * p.segments * (V * kRows);
  if constexpr (T::kTable > 0)
    for (int i = static_cast<int>(threadIdx.x); i < T::kTable; i += static_cast<int>(blockDim.x)) table[i] = p.table[i];
  // The list of a product after the first was written before the kernel before this one began.
  const bool early = kEarlyStarts && p.list_ready;
  if (!early) begin_kernel();
  const int job_count = *p.job_count, last_segment = p.segments - 1;
  const auto blocks_of = [&](int segment) {
    return T::kBlockCols == 256 || segment < last_segment ? kSegmentBlocks : p.blocks - kSegmentBlocks * last_segment;
  };
  ExpertPlace at(p, static_cast<int>(blockIdx.x), warp);
  Source source;
  ExpertPlace ahead = at;
  if (warp < warps) {
    source.enter(p, ahead, lane);
    if (early && ahead.job < job_count) source.issue_tiles(p, ahead, unit, blocks_of(ahead.segment), lane);
  }
  if (early) begin_kernel();
  __syncthreads();  // the table
  if (warp == warps) {
    for (int buffer = 0; at.job < job_count; buffer ^= 1) {
      meet_at(kFullBarrier + buffer);
      finish_item<V>(p, at, part + buffer * part_floats, lane);
      at.next_item(p);
      ExpertPlace later = at;  // the item that will fill this buffer
      later.next_item(p);
      if (later.job < job_count) arrive_at(kFreeBarrier + buffer);
    }
    return;
  }
  const auto issue = [&](bool tiles) {
    if (ahead.job < job_count) {
      const int nb = blocks_of(ahead.segment);
      if (tiles) source.issue_tiles(p, ahead, unit, nb, lane);
      source.issue_activations(ahead, unit, nb, lane);
      if (!ahead.next_unit(p, warps)) {
        ahead.next_item(p);
        ahead.first_unit(p, warp);
        if (ahead.job < job_count) source.enter(p, ahead, lane);
      }
    }
    commit_copies();
  };
  issue(!early);
  for (int done = 0; at.job < job_count; ++done) {
    const int count = V == 1 ? 1 : p.jobs[at.job].count, buffer = done % 2;
    float* const results = part + buffer * part_floats;
    if (done >= 2) meet_at(kFreeBarrier + buffer);
    do {
      wait_copies<0>();
      __syncwarp();
      const int nb = blocks_of(at.segment);
      segment_dot<T, V>(unit + half * Source::kPitch, nb, nb, Acts(unit + 2 * Source::kPitch), count, table,
                        lane % kRows, results + ((2 * at.pair + half) * p.segments + at.segment) * (V * kRows));
      __syncwarp();
      issue(true);
    } while (at.next_unit(p, warps));
    arrive_at(kFullBarrier + buffer);
    at.next_item(p);
    at.first_unit(p, warp);
  }
  wait_copies<0>();
}

template <class T>
constexpr TileKernels tile_kernels_of() {
  constexpr int kBytes = T::bytes(kSegmentBlocks);
  return {
      {&tile_product_kernel<T, 1>, &tile_product_kernel<T, 2>, &tile_product_kernel<T, 4>, &tile_product_kernel<T, 8>},
      {&expert_product_kernel<T, 1>, &expert_product_kernel<T, 2>, &expert_product_kernel<T, 4>},
      &T::bytes,
      {kTileStages<2 * kBytes>, kTileStages<2 * kBytes>, kTileStages<kBytes>, kTileStages<kBytes>},
      kTilePitch<kBytes>,
      4 * T::kTable};
}

}  // namespace
}  // namespace tandem
