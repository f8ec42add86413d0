// Implements  products of a list of experts (R3, R4), and the gate/up half of the expert FFN (R5) with the quantised
//             hidden row.
// When        the experts on the card in a pass of few rows; 1 to kJobPairs rows of a job.
// How         The grid fills the card once, and each block takes items (some tiles of a job's expert) one after the
//             other. A warp takes units: one segment of two tiles, gate and up of 16 hidden rows or two tiles of one
//             matrix. A half warp has a tile, a lane a row (dp4a): no work is done twice, and a row that a job does not
//             have costs nothing. Weights and activations of a unit come to shared memory that is the warp's own, the
//             next ones as soon as it has been through these, of the next item, too. More units in flight per warp were
//             slower than more warps, as they are the others' instructions that fill the time; two of them at one row
//             were slower, too. Sums of segments go to one of two buffers; the last warp adds them by the tree, and for
//             gate and up multiplies and quantises, while the others go on. A named barrier tells it that a buffer is
//             full, and a count in shared memory tells them that it is free again: a barrier for that made the warps of
//             a block wait for each other once an item, an eighth of their time.
//             Whatever is the same for all items or all units is worked out once, since a unit is only some 550 to 700
//             instructions of products. Most jobs have one row: they have a loop of their own, without branches.
//             Tables in shared memory once per bank, free of conflicts, gained nothing.
// Measured    docs/decisions.md, 2026-11-30 and 2026-12-01, "The card's experts as one stream"; bench_gpu_kernels.
#pragma once

#include "gpu/kernels/tile_product.cuh"

namespace tandem {
namespace {

// Barrier of the buffer 0 or 1: it is full; 0 is __syncthreads.
constexpr int kFullBarrier = 1;

__device__ __forceinline__ void arrive_at(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(blockDim.x) : "memory");
}
__device__ __forceinline__ void meet_at(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(blockDim.x) : "memory");
}
// How many items the last warp is through with, in shared memory: what the others wait for is that, never each other.
__device__ __forceinline__ void publish(std::uint32_t* finished, int items) {
  const auto at = static_cast<unsigned>(__cvta_generic_to_shared(finished));
  asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(at), "r"(items) : "memory");
}
__device__ __forceinline__ void wait_for(const std::uint32_t* finished, int items) {
  const auto at = static_cast<unsigned>(__cvta_generic_to_shared(finished));
  int now;
  while (true) {
    asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(now) : "r"(at) : "memory");
    if (now >= items) break;
    __nanosleep(20);
  }
}

// Which item of its block a warp is at: a job of the list and a group of the matrix's tiles.
struct ExpertItem {
  int job, group;

  __device__ __forceinline__ ExpertItem(const ExpertProduct& p, int item) : job(item / p.groups) {
    group = item - job * p.groups;
  }
  __device__ __forceinline__ void next(const ExpertProduct& p) {
    job += p.step_jobs;
    group += p.step_groups;
    if (group < p.groups) return;
    group -= p.groups;
    ++job;
  }
};

// A warp's units, one after the other, and what a lane copies of them. Worked out as seldom as it can be: where a lane
// is in a tile once, where the tiles and the activations are once an item.
template <class T, int V>
class ExpertFeed {
 public:
  using Acts = Activations<T, V>;
  static constexpr int kSegmentBytes = T::bytes(kSegmentBlocks), kPitch = kTilePitch<kSegmentBytes>;

  __device__ __forceinline__ ExpertFeed(const ExpertProduct& p, int warps, int warp, int lane)
      : item_(p, static_cast<int>(blockIdx.x)), warps_(warps), warp_(warp), lane_(lane), segment0_(warp) {
    while (segment0_ >= p.segments) {
      segment0_ -= p.segments;
      ++pair0_;
    }
    start();
  }
  // Before anything else, when the list is there. A first entry that nobody filled is read, but not used.
  __device__ __forceinline__ void open(const ExpertProduct& p) {
    job_count_ = *p.job_count;
    enter(p);
  }
  __device__ __forceinline__ bool more() const { return item_.job < job_count_; }
  __device__ __forceinline__ int rows() const { return V == 1 ? 1 : count_; }
  __device__ __forceinline__ int blocks(const ExpertProduct& p) const {
    return T::kBlockCols == 256 || segment_ < p.segments - 1 ? kSegmentBlocks
                                                             : p.blocks - kSegmentBlocks * (p.segments - 1);
  }
  // Where the sums of the lane's row go, of the item's.
  __device__ __forceinline__ int result(const ExpertProduct& p) const {
    return ((2 * pair_ + lane_ / kRows) * p.segments + segment_) * (V * kRows);
  }

  // Begin the copies of the unit, by all lanes. `to`: shared memory, 2 * kPitch and the activations.
  __device__ __forceinline__ void issue_tiles(const ExpertProduct& p, std::uint8_t* to) const {
    const int half = lane_ / kRows, chunk = lane_ % kRows;
    // Fused: gate and up of a tile. Otherwise two tiles; where there is no second one the first again.
    const int tile =
        p.fused ? item_.group * (p.slots / 2) + pair_ : min(item_.group * p.slots + 2 * pair_ + half, p.tiles - 1);
    const std::uint8_t* const from = tiles_ + (static_cast<unsigned>(tile) * static_cast<unsigned>(p.tile_bytes) +
                                               static_cast<unsigned>(segment_) * static_cast<unsigned>(kSegmentBytes));
    const unsigned at =
        static_cast<unsigned>(__cvta_generic_to_shared(to)) + static_cast<unsigned>(half * kPitch + 16 * chunk);
    const int nb = blocks(p);
    if (T::kBlockCols == 256 || nb == kSegmentBlocks) {
#pragma unroll
      for (int i = 0; i < kSegmentBytes; i += 16 * kRows)
        if (i + 16 * kRows <= kSegmentBytes || i + 16 * chunk < kSegmentBytes)
          copy16(at + static_cast<unsigned>(i), from + i);
    } else {
      const int bytes = T::bytes(nb) - 16 * chunk;
      for (int i = 0; i < bytes; i += 16 * kRows) copy16(at + static_cast<unsigned>(i), from + i);
    }
  }
  __device__ __forceinline__ void issue_activations(const ExpertProduct& p, std::uint8_t* to) const {
    constexpr unsigned kSums = V * Acts::kRowBytes, kScales = kSums + V * 4 * Acts::kSumWords;
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to)) + 2 * kPitch;
    const int half = lane_ / kRows, chunk = lane_ % kRows, nb = blocks(p), count = rows();
    const auto segment = static_cast<unsigned>(segment_);
#pragma unroll
    for (int i = 0; i < kRowPairs; ++i)
      if (2 * i + half < count && chunk < 2 * nb)
        copy_small<16>(at + static_cast<unsigned>((2 * i + half) * Acts::kRowBytes + 16 * chunk),
                       p.x.q + (q_[i] + 32 * kSegmentBlocks * segment));
    const int row = lane_ / kSegmentBlocks, block = lane_ % kSegmentBlocks;
    if (row >= min(V, count) || block >= nb) return;
    const unsigned k = d_ + kSegmentBlocks * segment;
    if constexpr (kNeedsSums<T>)
      copy_small<8>(at + kSums + static_cast<unsigned>(4 * (Acts::kSumWords * row + 2 * block)), p.x.s + 2 * k);
    copy_small<4>(at + kScales + static_cast<unsigned>(4 * (Acts::kScaleWords * row + block)), p.x.d + k);
  }
  // Goes on to the next unit; false when that is in another item.
  __device__ __forceinline__ bool advance(const ExpertProduct& p) {
    unit_ += warps_;
    if (unit_ < p.units) {
      segment_ += warps_;
      while (segment_ >= p.segments) {
        segment_ -= p.segments;
        ++pair_;
      }
      return true;
    }
    item_.next(p);
    start();
    if (more()) enter(p);
    return false;
  }

 private:
  static constexpr int kRowPairs = (V + 1) / 2;

  __device__ __forceinline__ void start() {
    unit_ = warp_;
    pair_ = pair0_;
    segment_ = segment0_;
  }
  __device__ __forceinline__ void enter(const ExpertProduct& p) {
    const ExpertJob& job = p.jobs[item_.job];
    const int half = lane_ / kRows, chunk = lane_ % kRows;
    // Rows that are not there are read, so that no load waits for the number of rows, and not used.
    const std::int32_t* const rows = p.by_pair ? job.pair : job.row;
    const auto blocks = static_cast<unsigned>(p.blocks);
    if constexpr (V > 1) count_ = job.count;
    tiles_ = job.blob + (p.offset[p.fused ? half : 0] + static_cast<unsigned>(16 * chunk));
#pragma unroll
    for (int i = 0; i < kRowPairs; ++i)
      q_[i] = 32 * static_cast<unsigned>(rows[(2 * i + half) % V]) * blocks + static_cast<unsigned>(16 * chunk);
    d_ = static_cast<unsigned>(rows[lane_ / kSegmentBlocks % V]) * blocks +
         static_cast<unsigned>(lane_ % kSegmentBlocks);
  }

  ExpertItem item_;
  int warps_, warp_, lane_;
  int pair0_ = 0, segment0_;  // of the warp's first unit of an item
  int unit_, pair_, segment_;
  int job_count_ = 0, count_ = 0;        // jobs; rows of the item's
  const std::uint8_t* tiles_ = nullptr;  // half a warp a tile
  unsigned q_[kRowPairs] = {};           // half a warp a row
  unsigned d_ = 0;                       // eight lanes a row
};

// The columns of a segment's activations in the order of mixed_row_codes (tile_types.cuh), in place.
template <class T, int V>
__device__ __forceinline__ void mix_columns(std::uint8_t* acts, int count, int lane) {
  auto* at = reinterpret_cast<std::uint32_t*>(acts + 32 * (lane / 4) + 4 * (lane % 4));
#pragma unroll 1
  for (int i = 0; i < count; ++i, at += Activations<T, V>::kRowBytes / 4) {
    const std::uint32_t first = at[0], second = at[4];
    at[0] = permute(first, second, 0x5140U);
    at[4] = permute(first, second, 0x7362U);
  }
  __syncwarp();
}

// What the last warp of a block needs of an item, read before its sums are there; of the first pair of the job.
struct ExpertFinish {
  const ExpertJob* job;
  int count, pair, bad;
  float scale[2];

  __device__ __forceinline__ ExpertFinish(const ExpertProduct& p, const ExpertItem& at) : job(p.jobs + at.job) {
    count = job->count;
    pair = job->pair[0];
    bad = p.out.bad != nullptr && !p.fused ? p.out.bad[pair] : 0;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      scale[m] = p.scale[m];
      if (p.expert_scale[m] != nullptr) scale[m] = scale[m] * p.expert_scale[m][job->expert];
    }
  }
};

// The last warp of a block: results of a full buffer.
template <int V>
__device__ __forceinline__ void finish_item(const ExpertProduct& p, const ExpertItem& at, const ExpertFinish& item,
                                            const float* part, int lane) {
  const int row = lane % kRows, half = lane / kRows;
  const auto sums = [&](int slot, int n) { return part + slot * p.segments * (V * kRows) + kRows * n + row; };
  if (p.fused) {
#pragma unroll 1
    for (int n = 0; n < item.count; ++n) {
      const auto product = [&](int matrix) {
        return tree_over(sums(2 * half + matrix, n), V * kRows, p.segments, p.padded_segments) * item.scale[matrix];
      };
      hidden_block(p.out, p.rows / 32, product(0), product(1), n == 0 ? item.pair : item.job->pair[n], at.group, lane);
    }
    return;
  }
  const int tile0 = at.group * p.slots, slots = min(p.slots, p.tiles - tile0);
#pragma unroll 1
  for (int n = 0; n < item.count; ++n) {
    const int pair = n == 0 ? item.pair : item.job->pair[n];
    const bool bad = n == 0 ? item.bad != 0 : p.out.bad != nullptr && p.out.bad[pair] != 0;
    float* const y = p.out.y + static_cast<std::size_t>(pair) * p.out.y_stride + (kRows * tile0 + row);
    const int rows = p.rows - (kRows * tile0 + row);
    const auto write = [&](int slot, float sum) {
      if (kRows * slot < rows) y[kRows * slot] = bad ? not_a_number() : sum * item.scale[0];
    };
    if (p.segments <= 4) {
#pragma unroll 4
      for (int slot = half; slot < slots; slot += 2) write(slot, tree_over_4(sums(slot, n), V * kRows, p.segments));
    } else {
#pragma unroll 1
      for (int slot = half; slot < slots; slot += 2)
        write(slot, tree_over(sums(slot, n), V * kRows, p.segments, p.padded_segments));
    }
  }
}

template <class T, int V>
__global__ void __launch_bounds__(kMaxExpertThreads, 2) expert_product_kernel(const ExpertProduct p) {
  using Acts = Activations<T, V>;
  using Feed = ExpertFeed<T, V>;
  extern __shared__ __align__(16) std::uint8_t shared[];
  const int warps = static_cast<int>(blockDim.x) / 32 - 1, warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, half = lane / kRows;
  auto* const finished = reinterpret_cast<std::uint32_t*>(shared);
  std::uint8_t* const units = shared + kExpertHeadBytes;
  auto* const table = reinterpret_cast<std::uint32_t*>(units + warps * p.warp_bytes);
  auto* const part = reinterpret_cast<float*>(units + warps * p.warp_bytes + 4 * T::kTable);
  const int part_floats = p.slots * p.segments * (V * kRows);
  if (threadIdx.x == 0) *finished = 0;
  if constexpr (T::kTable > 0)
    for (int i = static_cast<int>(threadIdx.x); i < T::kTable; i += static_cast<int>(blockDim.x)) table[i] = p.table[i];
  // The list of a product after the first was written before the kernel before this one began.
  const bool early = kEarlyStarts && p.list_ready;
  std::uint8_t* const unit = units + warp * p.warp_bytes;
  Feed feed(p, warps, warp, lane);
  if (!early) begin_kernel();
  if (warp < warps) {
    feed.open(p);
    if (early && feed.more()) feed.issue_tiles(p, unit);
  }
  if (early) begin_kernel();
  __syncthreads();  // the table, and the count; one place for all warps, which part after it
  if (warp == warps) {
    ExpertItem at(p, static_cast<int>(blockIdx.x));
    const int job_count = *p.job_count;
    for (int done = 0; at.job < job_count; ++done) {
      const ExpertFinish item(p, at);
      meet_at(kFullBarrier + done % 2);
      finish_item<V>(p, at, item, part + done % 2 * part_floats, lane);
      __syncwarp();
      if (lane == 0) publish(finished, done + 1);
      at.next(p);
    }
    return;
  }
  std::uint8_t* const acts = unit + 2 * Feed::kPitch;
  bool copied = early, entered = true;
  for (int done = 0; feed.more();) {
    if (!copied) feed.issue_tiles(p, unit);
    copied = false;
    feed.issue_activations(p, unit);
    commit_copies();
    const int count = feed.rows(), nb = feed.blocks(p), buffer = done % 2;
    float* const result = part + (buffer * part_floats + feed.result(p));
    const bool last = !feed.advance(p);
    if (entered && done >= 2) wait_for(finished, done - 1);
    entered = last;
    wait_copies<0>();
    __syncwarp();
    if constexpr (T::kMixes) mix_columns<T, V>(acts, count, lane);
    const std::uint8_t* const segment = unit + half * Feed::kPitch;
    if (V == 1 || count == 1)
      segment_dot<T, V, 1, T::kMixes>(segment, nb, nb, Acts(acts), 1, table, lane % kRows, true, result);
    else
      segment_dot<T, V, V, T::kMixes>(segment, nb, nb, Acts(acts), count, table, lane % kRows, true, result);
    __syncwarp();
    if (last) {
      arrive_at(kFullBarrier + buffer);
      ++done;
    }
  }
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
