#include "gpu/kernels/select.h"

#include "gpu/cuda_check.h"
#include "gpu/kernels/launch.cuh"
#include "gpu/kernels/launch_check.h"
#include "gpu/kernels/reduce.cuh"

namespace tandem::gpu {

namespace {

constexpr unsigned kScoreWarps = 8;
constexpr unsigned kMaxProducts = 32;  // whose queries are in shared memory

struct SelectArgs {
  ConstDeviceRows q, pooled;
  unsigned heads, dim, ratio, blocks;
  DeviceCount position;
  DeviceLists lists;
  float* scores;  // [rows, pooled.rows]
  std::int32_t* bad;

  __device__ unsigned visible(unsigned r) const { return static_cast<unsigned>(*position) + r + 1; }
};

// Scores of all complete blocks. The queries of as many rows as fit lie in shared memory. kProducts = sums of one
// exchange over the lanes: 4 where one row has only 4 heads. kKeys = pooled keys of a warp at a time.
template <unsigned kProducts, unsigned kKeys>
__global__ void __launch_bounds__(kScoreWarps* kWarp) score_kernel(const __grid_constant__ SelectArgs a) {
  begin_kernel();
  __shared__ float queries[kMaxProducts * kSegment];
  __shared__ float dots[kScoreWarps][kKeys][kMaxProducts];
  const auto rows = static_cast<unsigned>(a.q.rows);
  const unsigned most = min(a.visible(rows - 1) / a.ratio, static_cast<unsigned>(a.pooled.rows));
  const unsigned begin = blockIdx.x * kScoreWarps * kKeys;
  if (most <= a.blocks || begin >= most) return;
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const unsigned rows_at_once = kMaxProducts / a.heads, width = a.heads * a.dim;
  const unsigned own = lane_value<kProducts>(lane);
  for (unsigned first_row = 0; first_row < rows; first_row += rows_at_once) {
    const unsigned count = min(rows_at_once, rows - first_row), products = count * a.heads;
    __syncthreads();
    for (unsigned r = 0; r < count; ++r)
      for (unsigned i = threadIdx.x; i < width; i += kScoreWarps * kWarp)
        queries[r * width + i] = a.q.data[std::size_t{first_row + r} * a.q.stride + i];
    __syncthreads();
    for (unsigned block = begin + warp * kKeys; block < most; block += gridDim.x * kScoreWarps * kKeys) {
      float key[kKeys][kSegmentSteps];
#pragma unroll
      for (unsigned b = 0; b < kKeys; ++b)
#pragma unroll
        for (unsigned k = 0; k < kSegmentSteps; ++k)
          if (k * kLanes + lane < a.dim)
            key[b][k] = a.pooled.data[std::size_t{min(block + b, most - 1)} * a.pooled.stride + k * kLanes + lane];
      for (unsigned base = 0; base < products; base += kProducts) {
        float dot[kKeys][kProducts] = {};
        const float* q = queries + base * a.dim + lane;
#pragma unroll
        for (unsigned k = 0; k < kSegmentSteps; ++k)
          if (k * kLanes + lane < a.dim) {
#pragma unroll
            for (unsigned p = 0; p < kProducts; ++p) {
              const float value = q[p * a.dim + k * kLanes];
#pragma unroll
              for (unsigned b = 0; b < kKeys; ++b) dot[b][p] = __fmaf_rn(value, key[b][k], dot[b][p]);
            }
          }
#pragma unroll
        for (unsigned b = 0; b < kKeys; ++b) {
          const float sum = warp_trees<kProducts>(dot[b]);
          if (lane < kProducts && base + own < products) dots[warp][b][base + own] = sum;
        }
      }
      __syncwarp();
      for (unsigned at = lane; at < count * kKeys; at += kWarp) {
        const unsigned b = at % kKeys, row = at / kKeys, r = first_row + row;
        const unsigned complete = a.visible(r) / a.ratio;
        if (block + b >= complete || complete <= a.blocks) continue;
        float score = 0.0F;
        for (unsigned h = 0; h < a.heads; ++h) {
          const float dot = dots[warp][b][row * a.heads + h];
          score = score + (dot < 0.0F ? 0.0F : dot);
        }
        a.scores[std::size_t{r} * a.pooled.rows + block + b] = score;
        if (!isfinite(score)) atomicMin(a.bad, static_cast<std::int32_t>(r));
      }
      __syncwarp();
    }
  }
}

constexpr unsigned kSelectThreads = 1024;
constexpr unsigned kSelectWarps = kSelectThreads / kWarp;

// The keys of a row's blocks: warp w owns the `chunk` blocks from w * chunk on, lane l every 32nd of them. kItems of a
// lane are held in registers; 0: any number, read from memory each time. Scores are >= +0 (a NaN was reported), so
// their bits are ordered as they are; a key is one more than the bits, and 0 where there is no block.
template <unsigned kItems>
struct RowKeys {
  const float* scores;
  unsigned complete, chunk, base;
  std::uint32_t held[kItems == 0 ? 1 : kItems];

  __device__ RowKeys(const float* row, unsigned n) : scores(row), complete(n) {
    const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const unsigned items = kItems != 0 ? kItems : (n + kSelectThreads - 1) / kSelectThreads;
    chunk = items * kWarp;
    base = warp * chunk + lane;
    if constexpr (kItems != 0) {
#pragma unroll
      for (unsigned k = 0; k < kItems; ++k) held[k] = read(k);
    }
  }
  __device__ unsigned items() const {
    return kItems != 0 ? kItems : chunk / kWarp;
  }
  __device__ unsigned index(unsigned k) const {
    return base + k * kWarp;
  }
  __device__ std::uint32_t read(unsigned k) const {
    return index(k) < complete ? __float_as_uint(scores[index(k)]) + 1 : 0;
  }
  template <typename Body>
  __device__ void each(Body body) const {
    if constexpr (kItems != 0) {
#pragma unroll
      for (unsigned k = 0; k < kItems; ++k) body(k, held[k]);
    } else {
#pragma unroll 4
      for (unsigned k = 0; k < items(); ++k) body(k, read(k));
    }
  }
};

struct SelectShared {
  unsigned counts[2][3][kSelectWarps];
  unsigned greater[kSelectWarps], equal[kSelectWarps];
};

// The largest key that at least `wanted` keys reach.
template <unsigned kItems>
__device__ std::uint32_t rank_key(const RowKeys<kItems>& keys, unsigned wanted, SelectShared& shared) {
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  std::uint32_t key = 0;
  for (int shift = 30, parity = 0; shift >= 0; shift -= 2, parity ^= 1) {
    unsigned reach[3] = {};
    keys.each([&](unsigned, std::uint32_t v) {
#pragma unroll
      for (unsigned c = 0; c < 3; ++c) reach[c] += v >= (key | (c + 1) << shift) ? 1U : 0U;
    });
#pragma unroll
    for (unsigned c = 0; c < 3; ++c) {
      const unsigned sum = __reduce_add_sync(kAllLanes, reach[c]);
      if (lane == 0) shared.counts[parity][c][warp] = sum;
    }
    __syncthreads();
    unsigned step = 0;
    bool exact = false;
#pragma unroll
    for (unsigned c = 0; c < 3; ++c) {
      const unsigned total = __reduce_add_sync(kAllLanes, shared.counts[parity][c][lane]);
      if (total >= wanted) {
        step = c + 1;
        exact = total == wanted;
      }
    }
    key |= step << shift;
    if (exact) break;  // the keys that reach it are the wanted ones
  }
  return key;
}

template <unsigned kItems>
__device__ void write_chosen(const SelectArgs& a, unsigned r, unsigned complete, SelectShared& shared) {
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const RowKeys<kItems> keys(a.scores + std::size_t{r} * a.pooled.rows, complete);
  const std::uint32_t border = rank_key(keys, a.blocks, shared);
  unsigned greater = 0, equal = 0;
  keys.each([&](unsigned, std::uint32_t v) {
    greater += v > border ? 1U : 0U;
    equal += v == border ? 1U : 0U;
  });
  greater = __reduce_add_sync(kAllLanes, greater);
  equal = __reduce_add_sync(kAllLanes, equal);
  if (lane == 0) shared.greater[warp] = greater, shared.equal[warp] = equal;
  __syncthreads();
  const unsigned all_greater = __reduce_add_sync(kAllLanes, shared.greater[lane]);
  unsigned before_greater = __reduce_add_sync(kAllLanes, lane < warp ? shared.greater[lane] : 0);
  unsigned before_equal = __reduce_add_sync(kAllLanes, lane < warp ? shared.equal[lane] : 0);
  const unsigned wanted_equal = a.blocks - all_greater;  // of those at the border, the lowest blocks
  std::int32_t* out = a.lists.positions + r * a.lists.stride;
  const unsigned below = (1U << lane) - 1;
  keys.each([&](unsigned k, std::uint32_t v) {
    const unsigned is_greater = __ballot_sync(kAllLanes, v > border);
    const unsigned is_equal = __ballot_sync(kAllLanes, v == border);
    const unsigned equal_rank = before_equal + __popc(is_equal & below);
    const unsigned greater_rank = before_greater + __popc(is_greater & below);
    if (v > border || (v == border && equal_rank < wanted_equal)) {
      const unsigned rank = greater_rank + min(equal_rank, wanted_equal);
      for (unsigned j = 0; j < a.ratio; ++j)
        out[rank * a.ratio + j] = static_cast<std::int32_t>(keys.index(k) * a.ratio + j);
    }
    before_greater += __popc(is_greater);
    before_equal += __popc(is_equal);
  });
}

__global__ void __launch_bounds__(kSelectThreads) choose_kernel(const __grid_constant__ SelectArgs a) {
  begin_kernel();
  __shared__ SelectShared shared;
  const unsigned r = blockIdx.x, visible = a.visible(r);
  const unsigned complete = min(visible / a.ratio, static_cast<unsigned>(a.pooled.rows));
  std::int32_t* out = a.lists.positions + r * a.lists.stride;
  if (complete <= a.blocks) {
    for (unsigned p = threadIdx.x; p < visible; p += kSelectThreads) out[p] = static_cast<std::int32_t>(p);
    if (threadIdx.x == 0) a.lists.count[r] = static_cast<std::int32_t>(visible);
    return;
  }
  const unsigned tail = visible - complete * a.ratio;
  for (unsigned i = threadIdx.x; i < tail; i += kSelectThreads)
    out[a.blocks * a.ratio + i] = static_cast<std::int32_t>(complete * a.ratio + i);
  if (threadIdx.x == 0) a.lists.count[r] = static_cast<std::int32_t>(a.blocks * a.ratio + tail);
  if (complete <= kSelectThreads)
    write_chosen<1>(a, r, complete, shared);
  else if (complete <= 4 * kSelectThreads)
    write_chosen<4>(a, r, complete, shared);
  else if (complete <= 16 * kSelectThreads)
    write_chosen<16>(a, r, complete, shared);
  else
    write_chosen<0>(a, r, complete, shared);
}

constexpr unsigned kAllThreads = 256;

__global__ void all_kernel(DeviceCount position, DeviceLists lists) {
  begin_kernel();
  const unsigned r = blockIdx.y, p = blockIdx.x * kAllThreads + threadIdx.x;
  const unsigned visible = static_cast<unsigned>(*position) + r + 1;
  if (p == 0) lists.count[r] = static_cast<std::int32_t>(visible);
  if (p < visible && p < lists.stride) lists.positions[r * lists.stride + p] = static_cast<std::int32_t>(p);
}

// A warp per block that the pass may complete.
__global__ void index_kernel(const __grid_constant__ DeviceIndexBlocks a) {
  begin_kernel();
  __shared__ float normed[kSegment];
  const unsigned lane = threadIdx.x, position = static_cast<unsigned>(*a.position);
  const auto ratio = static_cast<unsigned>(a.ratio), dim = static_cast<unsigned>(a.keys.cols);
  const auto rows = static_cast<unsigned>(a.keys.rows), depth = static_cast<unsigned>(a.raw.depth);
  const unsigned block = position / ratio + blockIdx.x;
  if ((block + 1) * ratio > position + rows || block >= a.pooled.rows) return;
  const unsigned pending = a.pending == nullptr ? 0 : static_cast<unsigned>(*a.pending);
  // The row that holds position p: `back` rows before the pass.
  const auto raw = [&](unsigned p) -> const float* {
    if (p >= position) return a.keys.data + (p - position) * a.keys.stride;
    const unsigned back = position - p;
    return back <= pending ? a.raw.window + (pending - back) * a.raw.width
                           : a.raw.rows + (depth + pending - back) * a.raw.width;
  };
  float v[kSegmentSteps];
  float acc = 0.0F;
  const float* first = raw(block * ratio);
#pragma unroll
  for (unsigned k = 0; k < kSegmentSteps; ++k)
    if (k * kLanes + lane < dim) v[k] = first[k * kLanes + lane];
  for (unsigned j = 1; j < ratio; ++j) {
    const float* row = raw(block * ratio + j);
#pragma unroll
    for (unsigned k = 0; k < kSegmentSteps; ++k)
      if (k * kLanes + lane < dim) v[k] = v[k] + row[k * kLanes + lane];
  }
#pragma unroll
  for (unsigned k = 0; k < kSegmentSteps; ++k)
    if (k * kLanes + lane < dim) {
      v[k] = v[k] / static_cast<float>(ratio);
      acc = __fmaf_rn(v[k], v[k], acc);
    }
  const float inverse = 1.0F / __fsqrt_rn(warp_tree(acc) / static_cast<float>(dim) + a.eps);
#pragma unroll
  for (unsigned k = 0; k < kSegmentSteps; ++k) {
    const unsigned i = k * kLanes + lane;
    if (i < dim) normed[i] = (v[k] * inverse) * a.gamma[i];
  }
  __syncwarp();
  const auto half = static_cast<unsigned>(a.cos.cols);
  const float* cos = a.cos.data + blockIdx.x * a.cos.stride;
  const float* sin = a.sin.data + blockIdx.x * a.sin.stride;
  float* out = a.pooled.data + std::size_t{block} * a.pooled.stride;
#pragma unroll
  for (unsigned k = 0; k < kSegmentSteps; ++k) {
    const unsigned i = k * kLanes + lane;
    if (i >= dim) continue;
    const unsigned pair = i < half ? i : i < 2 * half ? i - half : 0;
    out[i] = rotated(normed, i, half, cos[pair], sin[pair]);
  }
}

template <unsigned kProducts, unsigned kKeys>
void launch_scores(const SelectArgs& args, DeviceStream stream) {
  constexpr std::size_t kPerBlock = kScoreWarps * kKeys, kMostBlocks = 1024;
  const std::size_t wanted = (args.pooled.rows + kPerBlock - 1) / kPerBlock;
  const auto grid = static_cast<unsigned>(wanted < kMostBlocks ? wanted : kMostBlocks);
  launch_kernel(score_kernel<kProducts, kKeys>, grid, kScoreWarps * kWarp, 0, stream, args);
}

}  // namespace

void select_positions(ConstDeviceRows q, std::size_t heads, ConstDeviceRows pooled, DeviceCount position,
                      std::size_t ratio, std::size_t blocks, const DeviceLists& lists, float* scores, std::int32_t* bad,
                      DeviceStream stream) {
  const std::size_t dim = q.cols / heads;
  LAUNCH_CHECK(heads > 0 && heads <= kMaxProducts && q.cols == heads * dim && dim <= kSegment && ratio > 0 &&
                   lists.rows == q.rows && lists.stride >= blocks * ratio + ratio - 1 && pooled.cols == dim,
               heads, q.rows, q.cols, ratio, blocks, lists.rows, lists.stride, pooled.rows, pooled.cols);
  if (q.rows == 0) return;
  const SelectArgs args{q,
                        pooled,
                        static_cast<unsigned>(heads),
                        static_cast<unsigned>(dim),
                        static_cast<unsigned>(ratio),
                        static_cast<unsigned>(blocks),
                        position,
                        lists,
                        scores,
                        bad};
  if (pooled.rows > blocks) {
    if (q.rows * heads <= 4)
      launch_scores<4, 4>(args, stream);
    else
      launch_scores<16, 2>(args, stream);
  }
  launch_kernel(choose_kernel, static_cast<unsigned>(q.rows), kSelectThreads, 0, stream, args);
}

void all_positions(DeviceCount position, std::size_t most, const DeviceLists& lists, DeviceStream stream) {
  if (lists.rows == 0) return;
  LAUNCH_CHECK(most > 0, most);
  const dim3 grid(static_cast<unsigned>((most + kAllThreads - 1) / kAllThreads), static_cast<unsigned>(lists.rows));
  launch_kernel(all_kernel, grid, kAllThreads, 0, stream, position, lists);
}

void index_blocks(const DeviceIndexBlocks& blocks, DeviceStream stream) {
  const std::size_t dim = blocks.keys.cols, rows = blocks.keys.rows;
  LAUNCH_CHECK(dim <= kSegment && blocks.pooled.cols == dim && blocks.raw.width == dim && blocks.ratio > 0 &&
                   blocks.raw.depth + 1 >= blocks.ratio && 2 * blocks.cos.cols <= dim &&
                   blocks.sin.cols == blocks.cos.cols,
               dim, blocks.pooled.cols, blocks.raw.width, blocks.raw.depth, blocks.ratio, blocks.cos.cols);
  if (rows == 0) return;
  const std::size_t most = (rows + blocks.ratio - 1) / blocks.ratio;
  LAUNCH_CHECK(blocks.cos.rows >= most && blocks.sin.rows >= most, blocks.cos.rows, blocks.sin.rows, most);
  launch_kernel(index_kernel, static_cast<unsigned>(most), kWarp, 0, stream, blocks);
}

}  // namespace tandem::gpu
