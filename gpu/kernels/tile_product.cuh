// Implements  the product with packed tiles (R3, R4), for dense matrices and for lists of experts, and the gate/up half
//             of the expert FFN (R5) with the quantised hidden row.
// When        every block-format matrix on the card; 1 to 8 activation rows at a time.
// How         A warp owns one segment (256 columns) of a block's tiles and keeps the activations of that segment in
//             registers. Tiles stream through a ring in shared memory, private to the warp, by 16-byte asynchronous
//             copies, so that the bytes in flight do not depend on registers and no warp waits for another. A lane has
//             the rows 2g, 2g + 1 (g = lane / 4) and eight of a block's 32 columns, the A fragment of mma.m16n8k32.
//             The sums of a segment go to shared memory; after one barrier a thread per result adds them by the tree.
//   V = 1, 2  dp4a. The four lanes of a row pair exchange their partial integers so that each ends with one result.
//   V = 4     mma with activation row i in column 2i. The odd columns hold the second half block where a type has two
//             multipliers (its first half in the even ones), so that one mma gives both sums.
//   V = 8     mma with a row per column; two of them where a type has two multipliers. Scales in shared memory.
//             An accumulator starts at the bits of 1.5 * 2^23 (minus the bias of the codes), so that the integer result
//             is a float once 1.5 * 2^23 is taken away: exact, as |P| < 2^22.
// Measured    bench/results/gpu_kernels_h200.csv.
#pragma once

#include "gpu/kernels/expert_jobs.h"
#include "gpu/kernels/quantize.cuh"
#include "gpu/kernels/tile_kernel_table.h"
#include "gpu/kernels/tile_types.cuh"
#include "runtime/exact_math.h"

namespace tandem {
namespace {

constexpr int kMagic = 0x4B400000;          // 1.5 * 2^23
constexpr float kMagicFloat = 12582912.0F;  // as a float
constexpr int kSegmentBlocks = 8;
constexpr int kRows = 16;  // of a tile

__device__ __forceinline__ void mma_k32(int* c, const std::uint32_t* a, std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_k16(int* c, std::uint32_t a0, std::uint32_t a1, std::uint32_t b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(b));
}
__device__ __forceinline__ int dot4(std::uint32_t a, std::uint32_t b, int c) {
  return __dp4a(static_cast<int>(a), static_cast<int>(b), c);
}
__device__ __forceinline__ void copy16(std::uint8_t* to, const std::uint8_t* from) {
  const auto at = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int Pending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}
__device__ __forceinline__ float small_int(int v) {  // |v| < 2^22, without the slow conversion
  return __int_as_float(kMagic + v) - kMagicFloat;
}
__device__ __forceinline__ float magic_float(int bits) {
  return __int_as_float(bits) - kMagicFloat;
}

// ---- activations of one segment, as a lane needs them ---------------------------------------------------------------

template <class T>
constexpr bool kNeedsSums = T::kOffset || T::kBias != 0;

// Rows of the activations that a block works on.
struct ActRows {
  const std::int32_t* row;  // in shared memory
  int count;
  __device__ __forceinline__ int at(int i) const { return row[i < count ? i : count - 1]; }
};

// The words of a lane's columns: q points at the block.
template <class T>
__device__ __forceinline__ void load_columns(const std::int8_t* q, int t, std::uint32_t* b) {
  if constexpr (T::kOctets) {
    const uint2 w = *reinterpret_cast<const uint2*>(q + 8 * t);
    b[0] = w.x;
    b[1] = w.y;
  } else {
    b[0] = *reinterpret_cast<const std::uint32_t*>(q + 4 * t);
    b[1] = *reinterpret_cast<const std::uint32_t*>(q + 16 + 4 * t);
  }
}

template <class T, int V>
struct Activations {
  static constexpr int kVectors = V <= 2 ? V : 1;  // activation rows that a lane has columns of
  static constexpr int kSums = kNeedsSums<T> ? T::kHalves : 0;
  std::uint32_t b[kVectors][kSegmentBlocks][2];
  float da[kSegmentBlocks];
  int s[kSegmentBlocks][kSums > 0 ? kSums : 1];

  // The activation row that a lane's result belongs to.
  static __device__ __forceinline__ int result_row(int t) { return V == 4 ? t : V == 2 ? t >> 1 : 0; }

  __device__ __forceinline__ void load(const TileProduct& p, const ActRows& rows, int segment, int nb, int lane,
                                       std::uint8_t*) {
    const int g = lane / 4, t = lane % 4;
    const std::size_t blocks = static_cast<std::size_t>(p.blocks), first = 8 * static_cast<std::size_t>(segment);
    const auto own = static_cast<std::size_t>(rows.at(result_row(t))) * blocks + first;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const auto at = static_cast<std::size_t>(rows.at(V == 4 ? g / 2 : i)) * blocks + first;
#pragma unroll
      for (int k = 0; k < kSegmentBlocks; ++k) {
        b[i][k][0] = b[i][k][1] = 0;
        if (k < nb) load_columns<T>(p.x.q + 32 * (at + k), t, b[i][k]);
        if constexpr (V == 4 && T::kHalves == 2) {  // even columns: the first half block; odd ones: the second
          const bool second = g % 2 == 1;
          if (T::kOctets ? (t >= 2) != second : second) b[i][k][0] = 0;
          if (T::kOctets ? (t >= 2) != second : !second) b[i][k][1] = 0;
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kSegmentBlocks; ++k) {
      da[k] = k < nb ? p.x.d[own + k] : 0.0F;
      if constexpr (kSums > 0) {
        const int2 sums = k < nb ? *reinterpret_cast<const int2*>(p.x.s + 2 * (own + k)) : make_int2(0, 0);
        if constexpr (kSums == 1) {
          s[k][0] = sums.x + sums.y;
        } else {
          s[k][0] = sums.x;
          s[k][1] = sums.y;
        }
      }
    }
  }
  __device__ __forceinline__ float scale(int k, int, int) const {
    return da[k];
  }
  __device__ __forceinline__ int sum(int k, int, int, int half) const {
    return s[k][half];
  }
};

// Eight rows: the scales and sums of the warp's segment lie in shared memory.
template <class T>
struct Activations<T, 8> {
  static constexpr int kSums = kNeedsSums<T> ? T::kHalves : 0;
  std::uint32_t b[1][kSegmentBlocks][2];
  const float* da;        // [block][row]
  const std::int32_t* s;  // [block][half][row]

  __device__ __forceinline__ void load(const TileProduct& p, const ActRows& rows, int segment, int nb, int lane,
                                       std::uint8_t* shared) {
    const int g = lane / 4, t = lane % 4;
    const std::size_t blocks = static_cast<std::size_t>(p.blocks), first = 8 * static_cast<std::size_t>(segment);
    const auto at = static_cast<std::size_t>(rows.at(g)) * blocks + first;
    auto* scales = reinterpret_cast<float*>(shared);
    auto* sums = reinterpret_cast<std::int32_t*>(shared + 4 * kSegmentBlocks * 8);
#pragma unroll
    for (int k = 0; k < kSegmentBlocks; ++k) {
      b[0][k][0] = b[0][k][1] = 0;
      if (k < nb) load_columns<T>(p.x.q + 32 * (at + k), t, b[0][k]);
    }
    __syncwarp();  // all lanes are done with the last segment
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int k = 2 * t + i;
      scales[8 * k + g] = k < nb ? p.x.d[at + k] : 0.0F;
      if constexpr (kSums > 0) {
        const int2 pair = k < nb ? *reinterpret_cast<const int2*>(p.x.s + 2 * (at + k)) : make_int2(0, 0);
        if constexpr (kSums == 1) {
          sums[8 * k + g] = pair.x + pair.y;
        } else {
          sums[16 * k + g] = pair.x;
          sums[16 * k + 8 + g] = pair.y;
        }
      }
    }
    __syncwarp();
    da = scales;
    s = sums;
  }
  __device__ __forceinline__ float scale(int k, int t, int i) const {
    return da[8 * k + 2 * t + i];
  }
  __device__ __forceinline__ int sum(int k, int t, int i, int half) const {
    return s[8 * (kSums * k + half) + 2 * t + i];
  }
};
// Bytes of shared memory per warp.
constexpr int kActivationBytes = 4 * kSegmentBlocks * 8 * 3;

// ---- one segment ----------------------------------------------------------------------------------------------------

__device__ __forceinline__ float pick(FloatPair v, int odd) {
  return odd != 0 ? v.y : v.x;
}
__device__ __forceinline__ int pick(IntPair v, int odd) {
  return odd != 0 ? v.y : v.x;
}

// dp4a. result[V][16] in shared memory.
template <class T, int V>
__device__ __forceinline__ void segment_dot(const std::uint8_t* segment, int nb, const Activations<T, V>& x,
                                            const std::uint32_t* table, int lane, float* result) {
  const int g = lane / 4, t = lane % 4, odd = t & 1, upper = t >> 1;
  const typename T::Head head(segment, nb, g);
  float acc = 0.0F;
#pragma unroll
  for (int k = 0; k < kSegmentBlocks; ++k) {
    if (T::kBlockCols < 256 && k >= nb) break;
    std::uint32_t a[4];
    T::codes(T::block(segment, nb, k), g, t, table, a);
    IntPair m[2] = {{1, 1}, {1, 1}};
    if constexpr (T::kMultiplier) {
      m[0] = T::m(head, segment, nb, k, g, 0);
      if constexpr (T::kHalves == 2) m[1] = T::m(head, segment, nb, k, g, 1);
    }
    int own[V];  // of the row that this lane keeps
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const std::uint32_t* b = x.b[i][k];
      int first, second;
      if constexpr (T::kHalves == 1) {
        first = dot4(a[2], b[1], dot4(a[0], b[0], 0));
        second = dot4(a[3], b[1], dot4(a[1], b[0], 0));
      } else if constexpr (T::kOctets) {
        const IntPair mine = upper != 0 ? m[1] : m[0];
        first = mine.x * dot4(a[2], b[1], dot4(a[0], b[0], 0));
        second = mine.y * dot4(a[3], b[1], dot4(a[1], b[0], 0));
      } else {
        first = m[0].x * dot4(a[0], b[0], 0) + m[1].x * dot4(a[2], b[1], 0);
        second = m[0].y * dot4(a[1], b[0], 0) + m[1].y * dot4(a[3], b[1], 0);
      }
      own[i] = (odd != 0 ? second : first) + __shfl_xor_sync(~0U, odd != 0 ? first : second, 1);
    }
    int sum;
    if constexpr (V == 1)
      sum = own[0] + __shfl_xor_sync(~0U, own[0], 2);
    else
      sum = (upper != 0 ? own[1] : own[0]) + __shfl_xor_sync(~0U, upper != 0 ? own[0] : own[1], 2);
    float product;
    if constexpr (T::kHalves == 1) {
      if constexpr (T::kBias != 0) sum -= T::kBias * x.sum(k, t, 0, 0);
      product = small_int(sum);
      if constexpr (T::kMultiplier) product = __fmaf_rn(product, small_int(pick(m[0], odd)), 0.0F);
    } else {
      if constexpr (T::kBias != 0)
        sum -= T::kBias * (pick(m[0], odd) * x.sum(k, t, 0, 0) + pick(m[1], odd) * x.sum(k, t, 0, 1));
      product = __int2float_rn(sum);
    }
    const float da = x.scale(k, t, 0);
    acc = __fmaf_rn(pick(T::d(head, segment, nb, k, g), odd) * da, product, acc);
    if constexpr (T::kOffset) {
      int r = x.sum(k, t, 0, 0);
      if constexpr (T::kHalves == 2)
        r = pick(T::n(head, segment, nb, k, g, 0), odd) * r +
            pick(T::n(head, segment, nb, k, g, 1), odd) * x.sum(k, t, 0, 1);
      else if constexpr (T::kMultiplier)
        r *= pick(T::n(head, segment, nb, k, g, 0), odd);
      acc = __fmaf_rn(pick(T::e(head, segment, nb, k, g), odd) * da, small_int(r), acc);
    }
  }
  if (V == 2 || upper == 0) result[kRows * upper + 2 * g + odd] = acc;
}

// mma. result[V][16] in shared memory.
template <class T, int V>
__device__ __forceinline__ void segment_mma(const std::uint8_t* segment, int nb, const Activations<T, V>& x,
                                            const std::uint32_t* table, int lane, float* result) {
  constexpr int kCols = V / 4;  // results per weight row of a lane
  const int g = lane / 4, t = lane % 4;
  const typename T::Head head(segment, nb, g);
  float acc[2][kCols] = {};
#pragma unroll
  for (int k = 0; k < kSegmentBlocks; ++k) {
    if (T::kBlockCols < 256 && k >= nb) break;
    std::uint32_t a[4];
    T::codes(T::block(segment, nb, k), g, t, table, a);
    // c[half]: [row 2g: columns 2t, 2t + 1; row 2g + 1: the same]
    int c[2][4] = {{kMagic, kMagic, kMagic, kMagic}, {kMagic, kMagic, kMagic, kMagic}};
    if constexpr (T::kBias != 0) {
#pragma unroll
      for (int i = 0; i < kCols; ++i)
#pragma unroll
        for (int h = 0; h < T::kHalves; ++h) {
          const int start = kMagic - T::kBias * x.sum(k, t, i, h);
          if constexpr (V == 4)
            c[0][h] = c[0][2 + h] = start;
          else
            c[h][i] = c[h][2 + i] = start;
        }
    }
    const std::uint32_t b0 = x.b[0][k][0], b1 = x.b[0][k][1];
    if constexpr (V == 4 || T::kHalves == 1) {
      mma_k32(c[0], a, b0, b1);
    } else if constexpr (T::kOctets) {
      mma_k32(c[0], a, t < 2 ? b0 : 0U, t < 2 ? b1 : 0U);
      mma_k32(c[1], a, t < 2 ? 0U : b0, t < 2 ? 0U : b1);
    } else {
      mma_k16(c[0], a[0], a[1], b0);
      mma_k16(c[1], a[2], a[3], b1);
    }
    FloatPair m[2];
    if constexpr (T::kMultiplier) {
#pragma unroll
      for (int h = 0; h < T::kHalves; ++h) {
        const IntPair v = T::m(head, segment, nb, k, g, h);
        m[h] = {small_int(v.x), small_int(v.y)};
      }
    }
    const FloatPair d = T::d(head, segment, nb, k, g);
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int i = 0; i < kCols; ++i) {
        float product;
        if constexpr (T::kHalves == 1) {
          product = magic_float(c[0][2 * r + i]);
          if constexpr (T::kMultiplier) product = __fmaf_rn(product, pick(m[0], r), 0.0F);
        } else {
          const float low = magic_float(V == 4 ? c[0][2 * r] : c[0][2 * r + i]);
          const float high = magic_float(V == 4 ? c[0][2 * r + 1] : c[1][2 * r + i]);
          product = __fmaf_rn(high, pick(m[1], r), __fmaf_rn(low, pick(m[0], r), 0.0F));
        }
        acc[r][i] = __fmaf_rn(pick(d, r) * x.scale(k, t, i), product, acc[r][i]);
      }
    if constexpr (T::kOffset) {
      const FloatPair e = T::e(head, segment, nb, k, g);
      IntPair n[2] = {{1, 1}, {1, 1}};
      if constexpr (T::kMultiplier) {
#pragma unroll
        for (int h = 0; h < T::kHalves; ++h) n[h] = T::n(head, segment, nb, k, g, h);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int i = 0; i < kCols; ++i) {
          int sum = x.sum(k, t, i, 0);
          if constexpr (T::kMultiplier) sum *= pick(n[0], r);
          if constexpr (T::kHalves == 2) sum += pick(n[1], r) * x.sum(k, t, i, 1);
          acc[r][i] = __fmaf_rn(pick(e, r) * x.scale(k, t, i), small_int(sum), acc[r][i]);
        }
    }
  }
#pragma unroll
  for (int i = 0; i < kCols; ++i)
    *reinterpret_cast<float2*>(result + kRows * (kCols * t + i) + 2 * g) = make_float2(acc[0][i], acc[1][i]);
}

// ---- the tree over the segments -------------------------------------------------------------------------------------

// Levels of the tree on 16 values, as long as the stride is below `padded`.
__device__ __forceinline__ float tree_of_16(float* v, int padded) {
#pragma unroll
  for (int stride = 1; stride < 16; stride *= 2) {
    if (stride < padded) {
#pragma unroll
      for (int i = 0; i < 16; i += 2 * stride) v[i] = v[i] + v[i + stride];
    }
  }
  return v[0];
}
// tree_sum of the n values v[0], v[stride], ... REQUIRES n <= 128.
__device__ __forceinline__ float tree_over(const float* v, int stride, int n, int padded) {
  float group[16], top[8];
  if (n <= 16) {
#pragma unroll
    for (int i = 0; i < 16; ++i) group[i] = i < n ? v[i * stride] : 0.0F;
    return tree_of_16(group, padded);
  }
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    top[k] = 0.0F;
    if (16 * k >= n) continue;
#pragma unroll
    for (int i = 0; i < 16; ++i) group[i] = 16 * k + i < n ? v[(16 * k + i) * stride] : 0.0F;
    top[k] = tree_of_16(group, 16);
  }
#pragma unroll
  for (int step = 1; step < 8; step *= 2) {
    if (16 * step < padded) {
#pragma unroll
      for (int i = 0; i < 8; i += 2 * step) top[i] = top[i] + top[i + step];
    }
  }
  return top[0];
}

// ---- the kernel -----------------------------------------------------------------------------------------------------

// Where a warp is: a segment of the row and one of the block's tiles.
struct Cursor {
  int segment, slot;
};

// A result row that a hidden overflow has spoilt.
__device__ __forceinline__ float not_a_number() {
  return __uint_as_float(0x7FC00000U);
}

template <class T, int V>
__device__ __forceinline__ void run(const TileProduct& p, const std::uint8_t* blob, int expert, int count, int tile0,
                                    const std::int32_t* act_row, const std::int32_t* out_row) {
  constexpr int kStages = kTileStages<T::bytes(kSegmentBlocks)>;
  extern __shared__ __align__(16) std::uint8_t shared[];
  const int warps = static_cast<int>(blockDim.x) / 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  std::uint8_t* const ring = shared + warp * kStages * p.segment_bytes;
  std::uint8_t* at = shared + warps * kStages * p.segment_bytes;
  std::uint8_t* const scales = at + warp * kActivationBytes;
  if (p.wide) at += warps * kActivationBytes;
  auto* const table = reinterpret_cast<std::uint32_t*>(at);
  auto* const part = reinterpret_cast<float*>(at + 4 * T::kTable);

  const int slots = p.fused ? 4 : min(p.slots, p.tiles - tile0);
  const int slot0 = p.groups > 1 ? warp / p.segments : 0;
  const int segment_step = p.groups > 1 ? p.segments : warps;
  const Cursor begin{p.groups > 1 ? warp % p.segments : warp, slot0};
  const auto valid = [&](const Cursor& c) { return c.segment < p.segments && c.slot < slots; };
  const auto advance = [&](Cursor& c) {
    c.slot += p.groups;
    if (c.slot < slots) return;
    c.slot = slot0;
    c.segment += segment_step;
  };
  const auto blocks_of = [&](int segment) {
    return T::kBlockCols == 256 ? kSegmentBlocks : min(kSegmentBlocks, p.blocks - kSegmentBlocks * segment);
  };
  const auto issue = [&](const Cursor& c, int stage) {
    const int matrix = p.fused ? c.slot >> 1 : 0, tile = p.fused ? tile0 + (c.slot & 1) : tile0 + c.slot;
    const std::uint8_t* from = (p.data[matrix] != nullptr ? p.data[matrix] : blob + p.offset[matrix]) +
                               static_cast<std::size_t>(tile) * p.tile_bytes +
                               static_cast<std::size_t>(c.segment) * T::bytes(kSegmentBlocks);
    std::uint8_t* to = ring + stage * p.segment_bytes;
    const int bytes = T::bytes(blocks_of(c.segment));
#pragma unroll 3
    for (int i = 16 * lane; i < bytes; i += 16 * 32) copy16(to + i, from + i);
  };

  Cursor ahead = begin;
#pragma unroll
  for (int i = 0; i < kStages; ++i) {
    if (valid(ahead)) {
      issue(ahead, i);
      advance(ahead);
    }
    commit_copies();
  }
  if constexpr (T::kTable > 0) {
    for (int i = static_cast<int>(threadIdx.x); i < T::kTable; i += static_cast<int>(blockDim.x)) table[i] = p.table[i];
    __syncthreads();
  }

  Activations<T, V> x;
  int loaded = -1, stage = 0;
  for (Cursor c = begin; valid(c); advance(c)) {
    const int nb = blocks_of(c.segment);
    if (c.segment != loaded) {
      x.load(p, {act_row, count}, c.segment, nb, lane, scales);
      loaded = c.segment;
    }
    wait_copies<kStages - 1>();
    __syncwarp();
    float* const result = part + (c.slot * p.segments + c.segment) * (V * kRows);
    if constexpr (V <= 2)
      segment_dot<T, V>(ring + stage * p.segment_bytes, nb, x, table, lane, result);
    else
      segment_mma<T, V>(ring + stage * p.segment_bytes, nb, x, table, lane, result);
    __syncwarp();
    if (valid(ahead)) {
      issue(ahead, stage);
      advance(ahead);
    }
    commit_copies();
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  wait_copies<0>();
  __syncthreads();

  const auto product = [&](int slot, int i, int row, int matrix) {
    const float* first = part + slot * p.segments * (V * kRows) + kRows * i + row;
    float scale = p.scale[matrix];
    if (p.expert_scale[matrix] != nullptr) scale = scale * p.expert_scale[matrix][expert];
    return tree_over(first, V * kRows, p.segments, p.padded_segments) * scale;
  };
  if (!p.fused) {
    for (int i = static_cast<int>(threadIdx.x); i < slots * count * kRows; i += static_cast<int>(blockDim.x)) {
      const int row = i % kRows, slot = i / kRows % slots, n = i / (kRows * slots);
      const int y_col = kRows * (tile0 + slot) + row;
      if (y_col >= p.rows) continue;
      float y = product(slot, n, row, 0);
      if (p.bad != nullptr && p.bad[out_row[n]] != 0) y = not_a_number();
      p.y[static_cast<std::size_t>(out_row[n]) * p.y_stride + static_cast<std::size_t>(y_col)] = y;
    }
    return;
  }
  // Gate and up of 32 rows: the hidden values of one block, quantised on the spot.
  for (int n = warp; n < count; n += warps) {
    const float gate = product(lane / kRows, n, lane % kRows, 0), up = product(2 + lane / kRows, n, lane % kRows, 1);
    const float hidden = silu_c(gate) * up;
    float amax = fabsf(hidden);
    for (int step = 16; step > 0; step /= 2) amax = fmaxf(amax, __shfl_xor_sync(~0U, amax, step));
    const BlockScale scale = block_scale(amax);
    const int q = __float2int_rn(hidden * scale.inverse);
    int sum = q;
    for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(~0U, sum, step);
    const auto block = static_cast<std::size_t>(out_row[n]) * static_cast<std::size_t>(p.rows / 32) +
                       static_cast<std::size_t>(tile0 / 2);
    p.hidden_q[32 * block + lane] = static_cast<std::int8_t>(q);
    if (lane == 0) p.hidden_d[block] = scale.d;
    if (lane % kRows == 0) p.hidden_s[2 * block + lane / kRows] = sum;
    if (!is_finite(hidden)) p.bad[out_row[n]] = 1;
  }
}

template <class T, int V>
__global__ void __launch_bounds__(kMaxTileThreads, 2) tile_product_kernel(const TileProduct p) {
  __shared__ std::int32_t act_row[8], out_row[8];
  const std::uint8_t* blob = nullptr;
  int expert = 0, count = p.width, tile_group = static_cast<int>(blockIdx.x), first = 0;
  const ExpertJob* job = nullptr;
  if (p.jobs != nullptr) {
    if (static_cast<int>(blockIdx.y) >= *p.job_count) return;
    job = p.jobs + blockIdx.y;
    blob = job->blob;
    expert = job->expert;
    count = job->count;
  } else {  // groups of rows side by side, so that the second one finds the tiles in the L2 cache
    const int row_groups = (p.width + V - 1) / V;
    first = tile_group % row_groups * V;
    tile_group /= row_groups;
    count = min(V, p.width - first);
  }
  if (threadIdx.x < 8 && static_cast<int>(threadIdx.x) < count) {
    const int pair = job != nullptr ? job->pair[threadIdx.x] : first + static_cast<int>(threadIdx.x);
    out_row[threadIdx.x] = pair;
    act_row[threadIdx.x] = pair / p.divide;
  }
  __syncthreads();
  const int tile0 = tile_group * (p.fused ? 2 : p.slots);
  if constexpr (V == 8) {
    if (count <= 4) return run<T, 4>(p, blob, expert, count, tile0, act_row, out_row);
  }
  run<T, V>(p, blob, expert, count, tile0, act_row, out_row);
}

template <class T>
constexpr TileKernels tile_kernels_of() {
  return {
      {&tile_product_kernel<T, 1>, &tile_product_kernel<T, 2>, &tile_product_kernel<T, 4>, &tile_product_kernel<T, 8>},
      &T::bytes,
      kTileStages<T::bytes(kSegmentBlocks)>,
      4 * T::kTable};
}

}  // namespace
}  // namespace tandem
