// Implements  the product with packed tiles (R3, R4), and the gate/up half of the shared expert's FFN (R5) with the
//             quantised hidden row.
// When        every block-format matrix on the card that all rows use; 1 to 8 activation rows at a time. Lists of
// experts:
//             expert_product.cuh, with the same steps.
// How         A warp owns one unit of a row's segments (256 columns each) in a block's tiles. Tiles and the activations
//             of the unit stream through a ring in shared memory, private to the warp, by asynchronous copies of 16
//             bytes, so that the bytes in flight do not depend on registers and no warp waits for another. The sums of
//             a segment go to shared memory; after one barrier a thread per result adds them by the tree.
//   V = 1, 2  dp4a. A half warp has a segment, a lane a row: no work is done twice, and no lanes talk.
//   V = 4     mma.m16n8k32. A lane has the rows 2g, 2g + 1 (g = lane / 4) and eight of a block's 32 columns, the A
//             fragment as the planes lie. Activation row i is in column 2i. The odd columns hold the second half block
//             where a type has two multipliers (its first half in the even ones), so that one mma gives both sums.
//   V = 8     mma with a row per column; two of them where a type has two multipliers.
//             An accumulator starts at the bits of 1.5 * 2^23 (minus the bias of the codes), so that the integer result
//             is a float once 1.5 * 2^23 is taken away: exact, as |P| < 2^22.
// Measured    docs/decisions.md, 2026-11-30; bench_gpu_kernels.
#pragma once

#include "gpu/kernels/launch.cuh"
#include "gpu/kernels/quantize.cuh"
#include "gpu/kernels/tile_common.cuh"
#include "gpu/kernels/tile_kernel_table.h"
#include "gpu/kernels/tile_types.cuh"
#include "runtime/exact_math.h"

namespace tandem {
namespace {

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
// Waits until the oldest of `stages` <= 4 groups of copies has arrived.
__device__ __forceinline__ void wait_for_stage(int stages) {
  switch (stages) {
    case 1:
      return wait_copies<0>();
    case 2:
      return wait_copies<1>();
    case 3:
      return wait_copies<2>();
    default:
      return wait_copies<3>();
  }
}

// ---- activations of one segment, in shared memory -------------------------------------------------------------------

template <class T>
constexpr bool kNeedsSums = T::kOffset || T::kBias != 0;

// Rows of the activations that a block works on.
struct ActRows {
  const std::int32_t* row;
  int count;
};

// V rows of one segment, private to a warp. Rows that do not exist are not copied: what lies there goes into results
// that nobody reads. Distances between rows are such that the lanes of a load meet no bank twice.
template <class T, int V>
struct Activations {
  static constexpr int kRowBytes = T::kOctets ? 288 : 272;
  static constexpr int kScaleWords = 9, kSumWords = 18;
  static constexpr int kBytes = kTileActivationBytes<V>;
  static_assert(V * (kRowBytes + 4 * kScaleWords + 4 * kSumWords) <= kBytes);

  const std::uint8_t* q;
  const float* d;
  const std::int32_t* s;

  __device__ __forceinline__ explicit Activations(const std::uint8_t* shared)
      : q(shared),
        s(reinterpret_cast<const std::int32_t*>(shared + V * kRowBytes)),
        d(reinterpret_cast<const float*>(shared + V * (kRowBytes + 4 * kSumWords))) {}

  // Begins the copy of a segment of nb blocks of rows of x, which have `blocks_of_row`.
  static __device__ __forceinline__ void issue(std::uint8_t* shared, const DeviceQuant& x, int blocks_of_row,
                                               const ActRows& rows, int segment, int nb, int lane) {
    const auto blocks = static_cast<std::size_t>(blocks_of_row);
    const std::size_t first = kSegmentBlocks * static_cast<std::size_t>(segment);
    const int chunk = lane % 16, pair = lane / 16;
#pragma unroll
    for (int r = 0; r < V; r += 2) {
      const int row = r + pair;
      if (row < rows.count && chunk < 2 * nb)
        copy_small<16>(shared + row * kRowBytes + 16 * chunk,
                       x.q + 32 * (static_cast<std::size_t>(rows.row[row]) * blocks + first) + 16 * chunk);
    }
    const int k = lane % kSegmentBlocks;
#pragma unroll
    for (int r = 0; r < V; r += 4) {
      const int row = r + lane / kSegmentBlocks;
      if (row >= rows.count || k >= nb) continue;
      const std::size_t at = static_cast<std::size_t>(rows.row[row]) * blocks + first + static_cast<std::size_t>(k);
      if constexpr (kNeedsSums<T>) copy_small<8>(shared + V * kRowBytes + 4 * (kSumWords * row + 2 * k), x.s + 2 * at);
      copy_small<4>(shared + V * (kRowBytes + 4 * kSumWords) + 4 * (kScaleWords * row + k), x.d + at);
    }
  }

  // The words of a lane's columns in block k.
  __device__ __forceinline__ uint2 columns(int row, int k, int t) const {
    const std::uint8_t* at = q + row * kRowBytes + 32 * k;
    if constexpr (T::kOctets) return *reinterpret_cast<const uint2*>(at + 8 * t);
    return make_uint2(*reinterpret_cast<const std::uint32_t*>(at + 4 * t),
                      *reinterpret_cast<const std::uint32_t*>(at + 16 + 4 * t));
  }
  __device__ __forceinline__ uint4 half_block(int row, int k, int half) const {
    return *reinterpret_cast<const uint4*>(q + row * kRowBytes + 32 * k + 16 * half);
  }
  __device__ __forceinline__ float scale(int row, int k) const {
    return d[kScaleWords * row + k];
  }
  // The sums of the half blocks; x is the sum of both where a type has one multiplier.
  __device__ __forceinline__ IntPair sums(int row, int k) const {
    const int2 v = *reinterpret_cast<const int2*>(s + kSumWords * row + 2 * k);
    if constexpr (T::kHalves == 1) return {v.x + v.y, 0};
    return {v.x, v.y};
  }
};

// ---- one segment ----------------------------------------------------------------------------------------------------

__device__ __forceinline__ float pick(FloatPair v, int odd) {
  return odd != 0 ? v.y : v.x;
}
__device__ __forceinline__ int pick(IntPair v, int odd) {
  return odd != 0 ? v.y : v.x;
}

// dp4a: lane r of a half warp has row r of the half warp's own segment of nb blocks; the longer one of the two has
// `most`. 1 <= `count` <= Rows <= V activation rows. result[count][16] in shared memory, where `keep`. Mixed: x has its
// columns in the order of mixed_row_codes.
template <class T, int V, int Rows = V, bool Mixed = false>
__device__ __forceinline__ void segment_dot(const std::uint8_t* segment, int nb, int most, const Activations<T, V>& x,
                                            int count, const std::uint32_t* table, int r, bool keep, float* result) {
  const OneRow l{r};
  const typename T::Head head(segment, nb, l);
  float acc[Rows] = {};
#pragma unroll kDotUnroll
  for (int k = 0; k < kSegmentBlocks; ++k) {
    if (T::kBlockCols < 256 && k >= most) break;
    std::uint32_t c[8];
    if constexpr (Mixed)
      T::mixed_row_codes(T::block(segment, nb, k), r, c);
    else
      T::row_codes(T::block(segment, nb, k), r, table, c);
    float m[2] = {1.0F, 1.0F};
    if constexpr (T::kFloatMultiplier) {
      m[0] = T::row_multiplier(segment, nb, k, r);
    } else if constexpr (T::kMultiplier) {
#pragma unroll
      for (int h = 0; h < T::kHalves; ++h) m[h] = small_int(T::m(head, segment, nb, k, l, h).x);
    }
    const float d = T::d(head, segment, nb, k, l).x;
#pragma unroll
    for (int i = 0; i < Rows; ++i) {
      if (i > 0 && i >= count) break;
      IntPair s{0, 0};
      if constexpr (kNeedsSums<T>) s = x.sums(i, k);
      const uint4 first = x.half_block(i, k, 0), second = x.half_block(i, k, 1);
      int low = T::kHalves == 1 ? kMagic - T::kBias * s.x : kMagic - T::kBias * s.x;
      int high = T::kHalves == 1 ? 0 : kMagic - T::kBias * s.y;
      low = dot4(c[3], first.w, dot4(c[2], first.z, dot4(c[1], first.y, dot4(c[0], first.x, low))));
      high = dot4(c[7], second.w, dot4(c[6], second.z, dot4(c[5], second.y, dot4(c[4], second.x, high))));
      float product;
      if constexpr (T::kHalves == 1) {
        product = magic_float(low + high);
        if constexpr (T::kMultiplier) product = __fmaf_rn(product, m[0], 0.0F);
      } else {
        product = __fmaf_rn(magic_float(high), m[1], __fmaf_rn(magic_float(low), m[0], 0.0F));
      }
      const float da = x.scale(i, k);
      float next = __fmaf_rn(d * da, product, acc[i]);
      if constexpr (T::kOffset) {
        int sum = s.x;
        if constexpr (T::kMultiplier) sum *= T::n(head, segment, nb, k, l, 0).x;
        if constexpr (T::kHalves == 2) sum += T::n(head, segment, nb, k, l, 1).x * s.y;
        next = __fmaf_rn(T::e(head, segment, nb, k, l).x * da, small_int(sum), next);
      }
      if (T::kBlockCols == 256 || k < nb) acc[i] = next;
    }
  }
  if (!keep) return;
#pragma unroll
  for (int i = 0; i < Rows; ++i)
    if (i == 0 || i < count) result[kRows * i + r] = acc[i];
}

// mma. result[V][16] in shared memory.
template <class T, int V>
__device__ __forceinline__ void segment_mma(const std::uint8_t* segment, int nb, const Activations<T, V>& x,
                                            const std::uint32_t* table, int lane, float* result) {
  constexpr int kCols = V / 4;  // results per weight row of a lane: activation rows kCols * t ...
  const int g = lane / 4, t = lane % 4;
  const TwoRows l{g};
  const typename T::Head head(segment, nb, l);
  // Whether the first or second word of a lane belongs to the half block of its column of B (V = 4, two multipliers).
  const bool second = g % 2 == 1;
  const bool use0 = T::kOctets ? (t >= 2) == second : !second, use1 = T::kOctets ? use0 : second;
  float acc[2][kCols] = {};
#pragma unroll kTileUnroll
  for (int k = 0; k < nb; ++k) {
    std::uint32_t a[4];
    T::codes(T::block(segment, nb, k), g, t, table, a);
    IntPair s[kCols];
    if constexpr (kNeedsSums<T>) {
#pragma unroll
      for (int i = 0; i < kCols; ++i) s[i] = x.sums(kCols * t + i, k);
    }
    // c[half]: [row 2g: columns 2t, 2t + 1; row 2g + 1: the same]
    int c[2][4] = {{kMagic, kMagic, kMagic, kMagic}, {kMagic, kMagic, kMagic, kMagic}};
    if constexpr (T::kBias != 0) {
#pragma unroll
      for (int i = 0; i < kCols; ++i)
#pragma unroll
        for (int h = 0; h < T::kHalves; ++h) {
          const int start = kMagic - T::kBias * (h == 0 ? s[i].x : s[i].y);
          if constexpr (V == 4)
            c[0][h] = c[0][2 + h] = start;
          else
            c[h][i] = c[h][2 + i] = start;
        }
    }
    uint2 b = x.columns(V == 4 ? g / 2 : g, k, t);
    if constexpr (V == 4 && T::kHalves == 2) b = make_uint2(use0 ? b.x : 0U, use1 ? b.y : 0U);
    if constexpr (V == 4 || T::kHalves == 1) {
      mma_k32(c[0], a, b.x, b.y);
    } else if constexpr (T::kOctets) {
      mma_k32(c[0], a, t < 2 ? b.x : 0U, t < 2 ? b.y : 0U);
      mma_k32(c[1], a, t < 2 ? 0U : b.x, t < 2 ? 0U : b.y);
    } else {
      mma_k16(c[0], a[0], a[1], b.x);
      mma_k16(c[1], a[2], a[3], b.y);
    }
    FloatPair m[2];
    if constexpr (T::kMultiplier) {
#pragma unroll
      for (int h = 0; h < T::kHalves; ++h) {
        const IntPair v = T::m(head, segment, nb, k, l, h);
        m[h] = {small_int(v.x), small_int(v.y)};
      }
    }
    const FloatPair d = T::d(head, segment, nb, k, l);
    float da[kCols];
#pragma unroll
    for (int i = 0; i < kCols; ++i) da[i] = x.scale(kCols * t + i, k);
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
        acc[r][i] = __fmaf_rn(pick(d, r) * da[i], product, acc[r][i]);
      }
    if constexpr (T::kOffset) {
      const FloatPair e = T::e(head, segment, nb, k, l);
      IntPair n[2] = {{1, 1}, {1, 1}};
      if constexpr (T::kMultiplier) {
#pragma unroll
        for (int h = 0; h < T::kHalves; ++h) n[h] = T::n(head, segment, nb, k, l, h);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int i = 0; i < kCols; ++i) {
          int sum = s[i].x;
          if constexpr (T::kMultiplier) sum *= pick(n[0], r);
          if constexpr (T::kHalves == 2) sum += pick(n[1], r) * s[i].y;
          acc[r][i] = __fmaf_rn(pick(e, r) * da[i], small_int(sum), acc[r][i]);
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
// tree_sum of the n <= 4 values v[0], v[stride], ...
__device__ __forceinline__ float tree_over_4(const float* v, int stride, int n) {
  if (n == 1) return v[0];
  const float low = v[0] + v[stride];
  if (n == 2) return low;
  return low + (v[2 * stride] + (n > 3 ? v[3 * stride] : 0.0F));
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

// Where a warp is: a unit of the row's segments and one of the block's tiles.
struct Cursor {
  int unit, slot, buffer;  // buffer: of the segment's activations
};

// The hidden values of a block of 32, one per lane, quantised: to block `block` of row `row` of hidden rows of
// `blocks`.
__device__ __forceinline__ void hidden_block(const TileResults& out, int blocks, float gate, float up, int row,
                                             int block, int lane) {
  const float hidden = silu_c(gate) * up;
  const std::size_t at =
      static_cast<std::size_t>(row) * static_cast<std::size_t>(blocks) + static_cast<std::size_t>(block);
  quantize_block(hidden, static_cast<unsigned>(lane), at, out.hidden_q, out.hidden_d, out.hidden_s);
  if (!is_finite(hidden)) out.bad[row] = 1;
}

// A result row that a hidden overflow has spoilt.
__device__ __forceinline__ float not_a_number() {
  return __uint_as_float(0x7FC00000U);
}

// The matrix that a block works on.
struct Matrix {
  const std::uint8_t* data;
  float scale;
  int rows, tiles;
  float* y;
  std::size_t y_stride;
};

template <class T, int V>
__device__ __forceinline__ void run(const TileProduct& p, const Matrix& m, int count, int tile0, int first_row,
                                    const std::int32_t* act_row) {
  constexpr int kTogether = kSegmentsTogether<V>;  // segments of a unit: neighbours in memory
  constexpr int kStages = kTileStages<kTogether * T::bytes(kSegmentBlocks)>;
  using Acts = Activations<T, V>;
  extern __shared__ __align__(16) std::uint8_t shared[];
  const int warps = static_cast<int>(blockDim.x) / 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  std::uint8_t* const ring = shared + warp * p.warp_bytes;
  std::uint8_t* const acts = ring + p.stages * p.stage_bytes;
  auto* const table = reinterpret_cast<std::uint32_t*>(shared + warps * p.warp_bytes);
  auto* const part = reinterpret_cast<float*>(shared + warps * p.warp_bytes + 4 * T::kTable);

  const int slots = p.fused ? 4 : min(p.slots, m.tiles - tile0);
  int slot0 = 0, unit0 = warp, unit_step = warps;
  if (p.groups > 1) {
    slot0 = warp / p.units;
    unit0 = warp - slot0 * p.units;
    unit_step = p.units;
  }
  const auto valid = [&](const Cursor& c) { return c.unit < p.units && c.slot < slots; };
  const auto advance = [&](Cursor& c) {
    c.slot += p.groups;
    if (c.slot < slots) return;
    c.slot = slot0;
    c.unit += unit_step;
    c.buffer ^= 1;
  };
  const auto blocks_of = [&](int segment) {
    return T::kBlockCols == 256 ? kSegmentBlocks : min(kSegmentBlocks, p.blocks - kSegmentBlocks * segment);
  };
  const auto issue_tile = [&](const Cursor& c, int stage) {
    const int first = kTogether * c.unit, segments = min(kTogether, p.segments - first);
    const int bytes = (segments - 1) * T::bytes(kSegmentBlocks) + T::bytes(blocks_of(first + segments - 1));
    const int matrix = p.fused ? c.slot >> 1 : 0, tile = p.fused ? tile0 + (c.slot & 1) : tile0 + c.slot;
    const std::uint8_t* from = (matrix == 0 ? m.data : p.data[1]) + static_cast<std::size_t>(tile) * p.tile_bytes +
                               static_cast<std::size_t>(first) * T::bytes(kSegmentBlocks);
    std::uint8_t* to = ring + stage * p.stage_bytes;
    for (int i = 16 * lane; i < bytes; i += 16 * 32) copy16(to + i, from + i);
  };
  const auto issue_activations = [&](const Cursor& c) {
    if (c.slot != slot0) return;
    const int first = kTogether * c.unit, segments = min(kTogether, p.segments - first);
    for (int i = 0; i < segments; ++i)
      Acts::issue(acts + (kTogether * c.buffer + i) * Acts::kBytes, p.x, p.blocks, {act_row, count}, first + i,
                  blocks_of(first + i), lane);
  };

  // A segment's activations are copied with its first tile, to one of two buffers: so the copies may be ahead by the
  // tiles that share a segment, and by one.
  const bool deep = slots - slot0 > (kStages - 2) * p.groups;
  const int stages = deep ? p.stages : min(p.stages, 2);
  Cursor ahead{unit0, slot0, 0};
  if (kEarlyStarts) {
    // Tiles are on their way before the activations are there. They count as part of the first group of copies.
    Cursor tile = ahead;
    for (int i = 0; i < stages && valid(tile); ++i, advance(tile)) issue_tile(tile, i);
    begin_kernel();
  }
  for (int i = 0; i < stages; ++i) {
    if (valid(ahead)) {
      if (!kEarlyStarts) issue_tile(ahead, i);
      issue_activations(ahead);
      advance(ahead);
    }
    commit_copies();
  }
  if constexpr (T::kTable > 0) {
    for (int i = static_cast<int>(threadIdx.x); i < T::kTable; i += static_cast<int>(blockDim.x)) table[i] = p.table[i];
    __syncthreads();
  }
  int stage = 0;
  for (Cursor c{unit0, slot0, 0}; valid(c); advance(c)) {
    wait_for_stage(stages);
    __syncwarp();
    const int first = kTogether * c.unit;
    float* const result = part + (c.slot * p.segments + first) * (V * kRows);
    const std::uint8_t* const segment = ring + stage * p.stage_bytes;
    if constexpr (kTogether == 2) {
      // The second half warp has the next segment; where there is none it repeats the first.
      const int half = lane / kRows, own = first + half < p.segments ? half : 0;
      const Acts x(acts + (kTogether * c.buffer + own) * Acts::kBytes);
      segment_dot<T, V>(segment + own * T::bytes(kSegmentBlocks), blocks_of(first + own), blocks_of(first), x, V, table,
                        lane % kRows, own == half, result + half * (V * kRows));
    } else {
      segment_mma<T, V>(segment, blocks_of(first), Acts(acts + c.buffer * Acts::kBytes), table, lane, result);
    }
    __syncwarp();
    if (valid(ahead)) {
      issue_tile(ahead, stage);
      issue_activations(ahead);
      advance(ahead);
    }
    commit_copies();
    stage = stage + 1 == stages ? 0 : stage + 1;
  }
  wait_copies<0>();
  __syncthreads();

  const auto product = [&](int slot, int i, int row, int matrix) {
    const float* first = part + slot * p.segments * (V * kRows) + kRows * i + row;
    return tree_over(first, V * kRows, p.segments, p.padded_segments) * (matrix == 0 ? m.scale : p.scale[1]);
  };
  if (!p.fused) {
    const int row = static_cast<int>(threadIdx.x) % kRows;
    for (int i = static_cast<int>(threadIdx.x) / kRows; i < slots * count; i += static_cast<int>(blockDim.x) / kRows) {
      const int n = slots == 1 ? i : i / slots, slot = i - n * slots;
      const int y_col = kRows * (tile0 + slot) + row;
      if (y_col >= m.rows) continue;
      float y = product(slot, n, row, 0);
      if (p.out.bad != nullptr && p.out.bad[first_row + n] != 0) y = not_a_number();
      m.y[static_cast<std::size_t>(first_row + n) * m.y_stride + static_cast<std::size_t>(y_col)] = y;
    }
    return;
  }
  for (int n = warp; n < count; n += warps)
    hidden_block(p.out, p.rows / 32, product(lane / kRows, n, lane % kRows, 0),
                 product(2 + lane / kRows, n, lane % kRows, 1), first_row + n, tile0 / 2, lane);
}

template <class T, int V>
__global__ void __launch_bounds__(kMaxTileThreads, 1) tile_product_kernel(const TileProduct p) {
  __shared__ std::int32_t act_row[8];
  int count = p.width, tile_group = static_cast<int>(blockIdx.x), first = 0;
  if (count > V) {  // groups of rows side by side, so that the second one finds the tiles in the L2 cache
    const int row_groups = (count + V - 1) / V;
    tile_group /= row_groups;
    first = (static_cast<int>(blockIdx.x) - tile_group * row_groups) * V;
    count = min(V, count - first);
  }
  if (static_cast<int>(threadIdx.x) < count) act_row[threadIdx.x] = first + static_cast<int>(threadIdx.x);
  __syncthreads();
  Matrix m{p.data[0], p.scale[0], p.rows, p.tiles, p.out.y, p.out.y_stride};
  if (p.parts > 0) {
    int i = 0;
    while (i + 1 < p.parts && tile_group >= p.part[i + 1].first_group) ++i;
    const TilePart& part = p.part[i];
    tile_group -= part.first_group;
    m = {part.data, part.scale, part.rows, part.tiles, part.y, part.y_stride};
  }
  const int tile0 = tile_group * (p.fused ? 2 : p.slots);
  if constexpr (V == 8) {
    if (count <= 4) return run<T, 4>(p, m, count, tile0, first, act_row);
  }
  run<T, V>(p, m, count, tile0, first, act_row);
}

}  // namespace
}  // namespace tandem
