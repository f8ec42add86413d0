#include "gpu/kernels/attention.h"

#include <cuda_fp16.h>

#include "gpu/cuda_check.h"
#include "gpu/kernels/elementwise.cuh"
#include "gpu/kernels/kv_types.cuh"
#include "gpu/kernels/launch.cuh"
#include "gpu/kernels/launch_check.h"
#include "gpu/kernels/reduce.cuh"

namespace tandem::gpu {

namespace {

constexpr unsigned kEntries = kKeySegment;  // list entries of a segment
// Groups of segments that one list is cut into at most: many where few rows have to fill the card; few where rows do,
// as every group reads the queries and leaves its sums in memory.
constexpr unsigned kMostGroups = 64, kFewGroups = 8;
constexpr std::size_t kManyRows = 17;
constexpr unsigned kScoreWarps = 8;
constexpr unsigned kBatch = 4;            // keys in flight in a warp
constexpr unsigned kValuesInFlight = 32;  // in a thread

__device__ float widen(float v) {
  return v;
}
__device__ float widen(__half v) {
  return __half2float(v);
}

template <typename T>
struct StoreBody {
  ConstDeviceRows k, v;
  T* keys;
  T* values;
  DeviceCount position;
  std::size_t capacity;
  __device__ void operator()(std::size_t r, unsigned c) const {
    const std::size_t at = static_cast<std::size_t>(*position) + r;
    if (at >= capacity) return;
    narrow(k.data[r * k.stride + c], keys[at * k.cols + c]);
    narrow(v.data[r * v.stride + c], values[at * k.cols + c]);
  }
};

struct Args {
  const float* q;
  std::size_t q_stride;
  const void* k;
  const void* v;
  const std::int32_t* positions;
  const std::int32_t* count;
  std::size_t list_stride;
  unsigned longest, heads, kv_heads, per_kv, dim, groups, most_groups;
  float scale;
  const float* gate;
  std::size_t gate_row, gate_stride;
  float* out;
  std::size_t out_stride;
  // Work memory: scores [rows, heads, longest]; of every group its largest score [rows, heads, groups], the sum of its
  // weights and of its weighted values [rows, heads, groups (, dim)].
  float* scores;
  float* top;
  float* weight_sum;
  float* value_sum;

  __device__ unsigned entries(unsigned r) const { return min(static_cast<unsigned>(count[r]), longest); }
  // Segments of one group of a list: a power of two, so that a group's sum is a node of the tree over all of them.
  __device__ unsigned group_segments(unsigned entries) const {
    const unsigned segments = (entries + kEntries - 1) / kEntries;
    unsigned size = 1;
    while (size * most_groups < segments) size *= 2;
    return size;
  }
  __device__ std::size_t cell(unsigned r, unsigned head, unsigned group) const {
    return (std::size_t{r} * heads + head) * groups + group;
  }
  __device__ float* score_row(unsigned r, unsigned head) const {
    return scores + (std::size_t{r} * heads + head) * longest;
  }
};

// Block: group of segments x, part y of the kv heads' query heads, row z.
template <unsigned kHeads>
struct Place {
  unsigned group, first_head, kv_head, row, entries, per_group, begin, end;  // begin, end: list entries
  __device__ explicit Place(const Args& a) {
    const unsigned parts = a.per_kv / kHeads;
    group = blockIdx.x;
    kv_head = blockIdx.y / parts;
    first_head = kv_head * a.per_kv + blockIdx.y % parts * kHeads;
    row = blockIdx.z;
    entries = a.entries(row);
    per_group = a.group_segments(entries);
    begin = group * per_group * kEntries;
    end = min(begin + per_group * kEntries, entries);
  }
};

__host__ __device__ constexpr unsigned padded_heads(unsigned heads) {
  return heads <= 1 ? 1 : heads <= 2 ? 2 : heads <= 4 ? 4 : heads <= 8 ? 8 : 16;
}

template <typename T, unsigned kHeads>
__global__ void __launch_bounds__(kScoreWarps* kWarp) score_kernel(const __grid_constant__ Args a) {
  begin_kernel();
  constexpr unsigned kPadded = padded_heads(kHeads);
  __shared__ float warp_top[kScoreWarps][kHeads];
  const Place<kHeads> at(a);
  if (at.begin >= at.entries) return;
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const std::size_t width = std::size_t{a.kv_heads} * a.dim;
  const T* keys = static_cast<const T*>(a.k) + std::size_t{at.kv_head} * a.dim;
  const std::int32_t* positions = a.positions + at.row * a.list_stride;
  float q[kHeads][kSegmentSteps];
#pragma unroll
  for (unsigned h = 0; h < kHeads; ++h)
#pragma unroll
    for (unsigned k = 0; k < kSegmentSteps; ++k) {
      const unsigned i = k * kLanes + lane;
      q[h][k] = i < a.dim ? a.q[at.row * a.q_stride + std::size_t{at.first_head + h} * a.dim + i] : 0.0F;
    }
  const unsigned own = lane_value<kPadded>(lane);  // the head whose score this lane ends up with
  float* scores = own < kHeads ? a.score_row(at.row, at.first_head + own) : nullptr;
  float top = -HUGE_VALF;
  for (unsigned first = at.begin; first < at.end; first += kEntries) {
    const unsigned n = min(kEntries, at.end - first);
    // Entry warp + e * kScoreWarps of the segment is this warp's e-th; lane e reads its position.
    const unsigned entry = warp + lane * kScoreWarps;
    const std::int32_t listed = entry < n ? positions[first + entry] : 0;
#pragma unroll
    for (unsigned batch = 0; batch < kEntries / kScoreWarps; batch += kBatch) {
      if (warp + batch * kScoreWarps >= n) break;
      T raw[kBatch][kSegmentSteps];
#pragma unroll
      for (unsigned e = 0; e < kBatch; ++e) {
        const T* key = keys + static_cast<std::size_t>(__shfl_sync(kAllLanes, listed, batch + e)) * width;
#pragma unroll
        for (unsigned k = 0; k < kSegmentSteps; ++k)
          if (k * kLanes + lane < a.dim) raw[e][k] = key[k * kLanes + lane];
      }
#pragma unroll
      for (unsigned e = 0; e < kBatch; ++e) {
        float dot[kPadded] = {};
#pragma unroll
        for (unsigned k = 0; k < kSegmentSteps; ++k)
          if (k * kLanes + lane < a.dim) {
            const float value = widen(raw[e][k]);
#pragma unroll
            for (unsigned h = 0; h < kHeads; ++h) dot[h] = __fmaf_rn(q[h][k], value, dot[h]);
          }
        const float score = warp_trees<kPadded>(dot) * a.scale;
        const unsigned i = warp + (batch + e) * kScoreWarps;
        if (i < n) {
          top = fmaxf(top, score);
          if (own < kHeads && lane < kPadded) scores[first + i] = score;
        }
      }
    }
  }
  if (own < kHeads && lane < kPadded) warp_top[warp][own] = top;
  __syncthreads();
  if (threadIdx.x < kHeads) {
    top = warp_top[0][threadIdx.x];
    for (unsigned w = 1; w < kScoreWarps; ++w) top = fmaxf(top, warp_top[w][threadIdx.x]);
    a.top[a.cell(at.row, at.first_head + threadIdx.x, at.group)] = top;
  }
}

// Sums node by node of the tree while the segments come one after the other: a binary counter, whose bit k holds the
// sum of 2^k segments. In local memory: it is touched once per segment, and registers are short.
constexpr unsigned kGroupLevels = 11;  // 1024 segments of a group at most
struct Counter {
  float level[kGroupLevels];
  // `index` segments came before.
  __device__ void add(unsigned index, float v) {
    unsigned k = 0;
#pragma unroll 1
    for (; (index & 1U) != 0; index >>= 1, ++k) v = level[k] + v;
    level[k] = v;
  }
  // The node over `size` (a power of two) segments of which `count` came, the others +0.
  __device__ float finish(unsigned count, unsigned size) const {
    float v = 0.0F;
    bool have = false;
    unsigned k = 0;
#pragma unroll 1
    for (; size > 1; size >>= 1, count >>= 1, ++k) {
      if ((count & 1U) != 0) {
        v = level[k] + (have ? v : 0.0F);
        have = true;
      } else if (have) {
        v = v + 0.0F;
      }
    }
    return count != 0 ? level[k] : v;
  }
};

// blockDim = dim rounded up to warps, and one warp more, whose lanes sum the weights of a head each.
template <typename T, unsigned kHeads>
__global__ void __launch_bounds__(kSegment + kWarp) sum_kernel(const __grid_constant__ Args a) {
  begin_kernel();
  __shared__ alignas(16) float weight[kEntries][padded_heads(kHeads)];
  __shared__ std::int32_t position[kEntries];
  __shared__ float top[kHeads];
  const Place<kHeads> at(a);
  if (at.begin >= at.entries) return;
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  const unsigned live = (at.entries + at.per_group * kEntries - 1) / (at.per_group * kEntries);
  for (unsigned h = warp; h < kHeads; h += warps) {
    float largest = -HUGE_VALF;
    for (unsigned g = lane; g < live; g += kWarp) largest = fmaxf(largest, a.top[a.cell(at.row, at.first_head + h, g)]);
#pragma unroll
    for (unsigned stride = 1; stride < kWarp; stride *= 2)
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, stride));
    if (lane == 0) top[h] = largest;
  }
  const std::size_t width = std::size_t{a.kv_heads} * a.dim;
  const bool column = threadIdx.x < a.dim;
  const bool summing = threadIdx.x >= blockDim.x - kWarp && lane < kHeads;
  const T* values = static_cast<const T*>(a.v) + std::size_t{at.kv_head} * a.dim + threadIdx.x;
  Counter sums[kHeads];
  Counter total;
  const unsigned segments = (at.end - at.begin + kEntries - 1) / kEntries;
  for (unsigned s = 0; s < segments; ++s) {
    const unsigned first = at.begin + s * kEntries, n = min(kEntries, at.end - first);
    __syncthreads();
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x)
      position[i] = a.positions[at.row * a.list_stride + first + i];
    __syncthreads();
    T raw[kValuesInFlight];
    const auto read = [&](unsigned batch) {
#pragma unroll
      for (unsigned i = 0; i < kValuesInFlight; ++i)
        if (batch + i < n) raw[i] = values[static_cast<std::size_t>(position[batch + i]) * width];
    };
    if (column) read(0);  // on their way while the weights are made
    for (unsigned i = threadIdx.x; i < kEntries * kHeads; i += blockDim.x) {
      const unsigned h = i / kEntries, entry = i % kEntries;
      if (entry < n) weight[entry][h] = exp_c(a.score_row(at.row, at.first_head + h)[first + entry] - top[h]);
    }
    __syncthreads();
    if (column) {
      float acc[kHeads] = {};
      for (unsigned batch = 0; batch < n; batch += kValuesInFlight) {
        if (batch > 0) read(batch);
#pragma unroll
        for (unsigned i = 0; i < kValuesInFlight; ++i)
          if (batch + i < n) {
            const float v = widen(raw[i]);
#pragma unroll
            for (unsigned h = 0; h < kHeads; ++h) acc[h] = __fmaf_rn(weight[batch + i][h], v, acc[h]);
          }
      }
#pragma unroll
      for (unsigned h = 0; h < kHeads; ++h) sums[h].add(s, acc[h]);
    } else if (summing) {
      float acc = 0.0F;
#pragma unroll 8
      for (unsigned i = 0; i < n; ++i) acc = acc + weight[i][lane];
      total.add(s, acc);
    }
  }
  if (column) {
#pragma unroll
    for (unsigned h = 0; h < kHeads; ++h)
      a.value_sum[a.cell(at.row, at.first_head + h, at.group) * a.dim + threadIdx.x] =
          sums[h].finish(segments, at.per_group);
  } else if (summing) {
    a.weight_sum[a.cell(at.row, at.first_head + lane, at.group)] = total.finish(segments, at.per_group);
  }
}

// Block: head x, row y; a thread per value column.
__global__ void combine_kernel(const __grid_constant__ Args a) {
  begin_kernel();
  const unsigned head = blockIdx.x, r = blockIdx.y, j = threadIdx.x;
  if (j >= a.dim) return;
  const unsigned entries = a.entries(r), per_group = a.group_segments(entries) * kEntries;
  const unsigned groups = (entries + per_group - 1) / per_group;
  const std::size_t cell = a.cell(r, head, 0);
  float sum = 0.0F, total = 0.0F;
  if (groups > 0) {
    sum = strided_tree(a.value_sum + cell * a.dim + j, a.dim, groups);
    total = strided_tree(a.weight_sum + cell, 1, groups);
  }
  const float gate = a.gate[r * a.gate_row + head * a.gate_stride + j];
  a.out[r * a.out_stride + std::size_t{head} * a.dim + j] = (sum / total) * sigmoid_c(gate);
}

// Scores with kHeads query heads of a kv head per block, sums with kSumHeads.
template <typename T, unsigned kHeads, unsigned kSumHeads>
void launch_parts(const Args& a, unsigned rows, DeviceStream stream) {
  launch_kernel(score_kernel<T, kHeads>, dim3(a.groups, a.heads / kHeads, rows), kScoreWarps * kWarp, 0, stream, a);
  const unsigned columns = (a.dim + kWarp - 1) / kWarp * kWarp;
  launch_kernel(sum_kernel<T, kSumHeads>, dim3(a.groups, a.heads / kSumHeads, rows), columns + kWarp, 0, stream, a);
}

template <typename T>
void launch_attention(const Args& a, unsigned rows, DeviceStream stream) {
  // All heads of a kv head read a value once; with few rows the card is filled by halves.
  if (a.per_kv == 12 && rows > 1)
    launch_parts<T, 6, 12>(a, rows, stream);
  else if (a.per_kv % 6 == 0)
    launch_parts<T, 6, 6>(a, rows, stream);
  else if (a.per_kv % 4 == 0)
    launch_parts<T, 4, 4>(a, rows, stream);
  else if (a.per_kv % 2 == 0)
    launch_parts<T, 2, 2>(a, rows, stream);
  else
    launch_parts<T, 1, 1>(a, rows, stream);
  launch_kernel(combine_kernel, dim3(a.heads, rows), (a.dim + kWarp - 1) / kWarp * kWarp, 0, stream, a);
}

unsigned most_groups(std::size_t rows) {
  return rows < kManyRows ? kMostGroups : kFewGroups;
}
unsigned group_count(std::size_t rows, std::size_t longest) {
  const std::size_t segments = (longest + kEntries - 1) / kEntries, most = most_groups(rows);
  return static_cast<unsigned>(segments < most ? segments : most);
}

}  // namespace

void kv_store(const DeviceKv& kv, DeviceCount position, ConstDeviceRows k, ConstDeviceRows v, DeviceStream stream) {
  LAUNCH_CHECK(k.cols == kv.kv_heads * kv.head_dim && v.cols == k.cols && v.rows == k.rows, k.rows, k.cols, v.rows,
               v.cols, kv.kv_heads, kv.head_dim);
  if (kv.half)
    launch_columns(
        k.rows, k.cols,
        StoreBody<__half>{k, v, static_cast<__half*>(kv.k), static_cast<__half*>(kv.v), position, kv.capacity}, stream);
  else
    launch_columns(k.rows, k.cols,
                   StoreBody<float>{k, v, static_cast<float*>(kv.k), static_cast<float*>(kv.v), position, kv.capacity},
                   stream);
}

std::size_t attention_bytes(std::size_t rows, std::size_t heads, std::size_t head_dim, std::size_t longest) {
  return rows * heads * (longest + group_count(rows, longest) * (head_dim + 2)) * sizeof(float);
}

void attention(ConstDeviceRows q, const DeviceKv& kv, const DeviceLists& lists, std::size_t longest, float scale,
               ConstDeviceRows gate, std::size_t gate_stride, DeviceRows out, void* work, DeviceStream stream) {
  const std::size_t dim = kv.head_dim;
  LAUNCH_CHECK(dim > 0 && dim <= kSegment && q.cols % (dim * kv.kv_heads) == 0 && out.cols == q.cols &&
                   lists.rows == q.rows && longest > 0 && longest <= lists.stride && q.rows <= 65535,
               dim, kv.kv_heads, q.rows, q.cols, out.cols, lists.rows, lists.stride, longest);
  if (q.rows == 0) return;
  const std::size_t heads = q.cols / dim, rows = q.rows;
  const unsigned groups = group_count(rows, longest);
  LAUNCH_CHECK(longest <= std::size_t{kFewGroups} * kEntries << (kGroupLevels - 1), longest);
  const auto narrowed = [](std::size_t n) { return static_cast<unsigned>(n); };
  auto* scores = static_cast<float*>(work);
  float* top = scores + rows * heads * longest;
  float* weight_sum = top + rows * heads * groups;
  float* value_sum = weight_sum + rows * heads * groups;
  const Args args{q.data,
                  q.stride,
                  kv.k,
                  kv.v,
                  lists.positions,
                  lists.count,
                  lists.stride,
                  narrowed(longest),
                  narrowed(heads),
                  narrowed(kv.kv_heads),
                  narrowed(heads / kv.kv_heads),
                  narrowed(dim),
                  groups,
                  most_groups(rows),
                  scale,
                  gate.data,
                  gate.stride,
                  gate_stride,
                  out.data,
                  out.stride,
                  scores,
                  top,
                  weight_sum,
                  value_sum};
  if (kv.half)
    launch_attention<__half>(args, narrowed(rows), stream);
  else
    launch_attention<float>(args, narrowed(rows), stream);
}

}  // namespace tandem::gpu
