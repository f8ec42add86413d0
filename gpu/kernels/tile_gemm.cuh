// Implements  the product of many activation rows with packed tiles (R3, R4), for dense matrices and for batches of
//             experts, and the gate/up half of the expert FFN (R5) with the quantised hidden row.
// When        passes of more than 16 rows.
// How         A block has 64 activation rows and up to eight tiles, one a warp. Per segment of 256 columns the
//             activations, which all warps share, and each warp's tile come to shared memory by asynchronous copies,
//             one segment ahead. A warp decodes a block of 32 columns once, into the A fragment of mma.m16n8k32, and
//             meets all 64 rows with it, 16 at a time. The bits of an integer result, added to those of 1.5 * 2^23, are
//             a float; times the multiplier it is exact in one fma. So a result costs three float operations a block
//             (six with an offset), and those are what bounds the kernel. The tree over the segments is a binary
//             counter: sums that wait for their partner lie in local memory, read and written once per segment.
// Measured    docs/decisions.md, 2026-11-30; bench_gpu_kernels --gemm.
#pragma once

#include "gpu/kernels/launch.cuh"
#include "gpu/kernels/quantize.cuh"
#include "gpu/kernels/tile_gemm_acts.cuh"
#include "gpu/kernels/tile_types.cuh"
#include "runtime/exact_math.h"

namespace tandem {
namespace {

constexpr int kGroups = kGemmRows / 16;
constexpr int kTreeLevels = 7;  // 128 segments

// ---- one block of 32 columns ----------------------------------------------------------------------------------------

// d = a * b + the bits of 1.5 * 2^23.
__device__ __forceinline__ void mma_k32_magic(int* d, const std::uint32_t* a, std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(kMagic));
}
__device__ __forceinline__ void mma_k16_magic(int* d, std::uint32_t a0, std::uint32_t a1, std::uint32_t b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(kMagic));
}

// What a lane knows of its two rows in one block.
template <class T>
struct RowBlock {
  std::uint32_t a[4];
  float d[2], e[2];
  float m[2][2], minus_magic[2];  // [row][half]; -1.5 * 2^23 * m of the first half
  float n[2][2];

  __device__ __forceinline__ RowBlock(const typename T::Head& head, const std::uint8_t* segment, int nb, int k,
                                      const TwoRows& l, int t, const std::uint32_t* table) {
    T::codes(T::block(segment, nb, k), l.g, t, table, a);
    if constexpr (T::kBias != 0) {  // to signed codes; no byte borrows from the next
#pragma unroll
      for (int i = 0; i < 4; ++i)
        a[i] = ((a[i] | 0x80808080U) - static_cast<std::uint32_t>(T::kBias) * kOnes) ^ 0x80808080U;
    }
    const FloatPair scale = T::d(head, segment, nb, k, l);
    d[0] = scale.x, d[1] = scale.y;
    if constexpr (T::kMultiplier) {
#pragma unroll
      for (int h = 0; h < T::kHalves; ++h) {
        const IntPair v = T::m(head, segment, nb, k, l, h);
        m[0][h] = small_int(v.x), m[1][h] = small_int(v.y);
      }
      minus_magic[0] = m[0][0] * -kMagicFloat, minus_magic[1] = m[1][0] * -kMagicFloat;
    }
    if constexpr (T::kOffset) {
      const FloatPair offset = T::e(head, segment, nb, k, l);
      e[0] = offset.x, e[1] = offset.y;
      if constexpr (T::kMultiplier) {
#pragma unroll
        for (int h = 0; h < T::kHalves; ++h) {
          const IntPair v = T::n(head, segment, nb, k, l, h);
          n[0][h] = small_int(v.x), n[1][h] = small_int(v.y);
        }
      }
    }
  }
};

// Adds the block's share of 16 activation rows: acc[4 jj + 2 r + i] is row 2 g + r, activation row 4 t + 2 jj + i.
// `sum`: the sums of the half blocks (of the whole block in sum[0] where there is one multiplier).
template <class T>
__device__ __forceinline__ void add_block(const RowBlock<T>& w, const std::uint32_t* b, const float4& scales,
                                          const float (&sum)[2][4], int t, float (&acc)[8]) {
  const float da[4] = {scales.x, scales.y, scales.z, scales.w};
#pragma unroll
  for (int jj = 0; jj < 2; ++jj) {
    int low[4], high[4];
    const std::uint32_t b0 = b[2 * jj], b1 = b[2 * jj + 1];
    if constexpr (T::kHalves == 1) {
      mma_k32_magic(low, w.a, b0, b1);
    } else if constexpr (T::kOctets) {
      mma_k32_magic(low, w.a, t < 2 ? b0 : 0U, t < 2 ? b1 : 0U);
      mma_k32_magic(high, w.a, t < 2 ? 0U : b0, t < 2 ? 0U : b1);
    } else {
      mma_k16_magic(low, w.a[0], w.a[1], b0);
      mma_k16_magic(high, w.a[2], w.a[3], b1);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float product;
        if constexpr (!T::kMultiplier)
          product = magic_float(low[2 * r + i]);
        else
          product = __fmaf_rn(__int_as_float(low[2 * r + i]), w.m[r][0], w.minus_magic[r]);
        if constexpr (T::kHalves == 2) product = __fmaf_rn(magic_float(high[2 * r + i]), w.m[r][1], product);
        const int column = 2 * jj + i;
        float next = __fmaf_rn(w.d[r] * da[column], product, acc[4 * jj + 2 * r + i]);
        if constexpr (T::kOffset) {
          float rest = sum[0][column];  // whole numbers below 2^24: exact
          if constexpr (T::kMultiplier) rest = rest * w.n[r][0];
          if constexpr (T::kHalves == 2) rest = __fmaf_rn(sum[1][column], w.n[r][1], rest);
          next = __fmaf_rn(w.e[r] * da[column], rest, next);
        }
        acc[4 * jj + 2 * r + i] = next;
      }
  }
}

// Blocks of 32 columns that are worked on together: two where registers allow it.
template <class T>
constexpr int kGemmUnroll = 1;

template <class T, bool kFull>
__device__ __forceinline__ void gemm_segment(const std::uint8_t* segment, int nb, const std::uint8_t* acts,
                                             const std::uint32_t* table, int lane, int groups,
                                             float (&acc)[kGroups][8]) {
  using Acts = GemmActs<T>;
  const int t = lane % 4;
  const TwoRows l{lane / 4};
  const typename T::Head head(segment, nb, l);
#pragma unroll kGemmUnroll < T>
  for (int k = 0; k < nb; ++k) {
    const RowBlock<T> w(head, segment, nb, k, l, t, table);
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      if (!kFull && j >= groups) break;
      std::uint32_t b[4];
      Acts::columns(acts, j, k, lane, b);
      float sum[2][4] = {};
      if constexpr (T::kOffset) {
        const int4 first = Acts::sums(acts, j, k, 0, t), second = Acts::sums(acts, j, k, 1, t);
        const int low[4] = {first.x, first.y, first.z, first.w}, high[4] = {second.x, second.y, second.z, second.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sum[0][i] = small_int(T::kHalves == 1 ? low[i] + high[i] : low[i]);
          sum[1][i] = T::kHalves == 1 ? 0.0F : small_int(high[i]);
        }
      }
      add_block<T>(w, b, Acts::scales(acts, j, k, t), sum, t, acc[j]);
    }
  }
}

// ---- the tree over the segments -------------------------------------------------------------------------------------

// Sums of 1, 2, 4, ... segments that wait for their partner. (Padding adds +0 to sums that are never -0: nothing.)
template <bool kFull>
struct GemmTree {
  float4 waiting[kTreeLevels][2 * kGroups];

  // Segment s is done; `last`: no other comes. Afterwards acc is the whole sum (last) or zero.
  __device__ __forceinline__ void add(int s, bool last, int groups, float (&acc)[kGroups][8]) {
    int level = 0;
    for (; last ? (s >> level) != 0 : (s >> level & 1) != 0; ++level) {
      if ((s >> level & 1) == 0) continue;
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        if (!kFull && j >= groups) break;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float4 v = waiting[level][2 * j + i];
          float* to = acc[j] + 4 * i;
          to[0] = v.x + to[0], to[1] = v.y + to[1], to[2] = v.z + to[2], to[3] = v.w + to[3];
        }
      }
    }
    if (last) return;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      if (!kFull && j >= groups) break;
#pragma unroll
      for (int i = 0; i < 2; ++i)
        waiting[level][2 * j + i] = make_float4(acc[j][4 * i], acc[j][4 * i + 1], acc[j][4 * i + 2], acc[j][4 * i + 3]);
#pragma unroll
      for (int i = 0; i < 8; ++i) acc[j][i] = 0.0F;
    }
  }
};

// ---- the kernel -----------------------------------------------------------------------------------------------------

// What a block multiplies: 64 rows or fewer with the tiles of its warps.
struct GemmWork {
  const std::uint8_t* data[2];  // of gate and up where fused
  int count;                    // rows
  int tile0;                    // of the first warp
};

// Writes the results of a warp's tile.
__device__ __forceinline__ void store_plain(const TileGemm& p, const TilePart& m, const GemmWork& work, int tile,
                                            int lane, const std::int32_t* out_row, const float (&acc)[kGroups][8]) {
  const int row = kRows * tile + 2 * (lane / 4), t = lane % 4;
  if (row >= m.rows) return;
  const bool pair = row + 1 < m.rows && m.y_stride % 2 == 0 && reinterpret_cast<std::uintptr_t>(m.y) % 8 == 0;
#pragma unroll
  for (int j = 0; j < kGroups; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int n = 16 * j + 4 * t + c;
      if (n >= work.count) continue;
      float first = acc[j][4 * (c / 2) + c % 2] * m.scale, second = acc[j][4 * (c / 2) + 2 + c % 2] * m.scale;
      if (p.bad != nullptr && p.bad[out_row[n]] != 0) first = second = __uint_as_float(0x7FC00000U);
      float* y = m.y + blockIdx.z * p.split_stride + static_cast<std::size_t>(out_row[n]) * m.y_stride +
                 static_cast<std::size_t>(row);
      if (pair) {
        *reinterpret_cast<float2*>(y) = make_float2(first, second);
      } else {
        y[0] = first;
        if (row + 1 < m.rows) y[1] = second;
      }
    }
}

// Gate and up: the hidden values of blocks of 32 rows, quantised. `values`: [2][kGemmRows][pitch] in shared memory.
__device__ __forceinline__ void store_hidden(const TileGemm& p, const GemmWork& work, float* values, int pitch,
                                             int tiles, const std::int32_t* out_row) {
  const int warps = static_cast<int>(blockDim.x) / 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, own_blocks = tiles / 2;
  const int blocks = p.part[0].rows / 32;
  for (int i = warp; i < work.count * own_blocks; i += warps) {
    const int n = i / own_blocks, block = work.tile0 / 2 + i % own_blocks, column = 32 * (i % own_blocks) + lane;
    if (block >= blocks) continue;
    const float gate = values[n * pitch + column] * p.part[0].scale;
    const float up = values[(kGemmRows + n) * pitch + column] * p.part[1].scale;
    const float hidden = silu_c(gate) * up;
    const BlockScale scale = block_scale(warp_max(fabsf(hidden)));
    const int q = __float2int_rn(hidden * scale.inverse);
    const HalfSums sums = half_sums(q, static_cast<unsigned>(lane));
    const std::size_t at =
        static_cast<std::size_t>(out_row[n]) * static_cast<std::size_t>(blocks) + static_cast<std::size_t>(block);
    p.hidden_q[32 * at + lane] = static_cast<std::int8_t>(q);
    if (lane < 2) p.hidden_s[2 * at + lane] = lane == 0 ? sums.low : sums.high;
    if (lane == 0) p.hidden_d[at] = scale.d;
    if (!is_finite(hidden)) p.bad[out_row[n]] = 1;
  }
}

// Begins the copy of a segment of a tile, by a warp.
template <class T>
__device__ __forceinline__ void copy_tile(std::uint8_t* to, const std::uint8_t* from, int nb, int lane) {
  constexpr int kStep = 16 * 32, kBytes = T::bytes(kSegmentBlocks);
  const auto whole = [&] {
#pragma unroll
    for (int i = 0; i < kBytes; i += kStep)
      if (i + kStep <= kBytes || i + 16 * lane < kBytes) copy16(to + 16 * lane + i, from + 16 * lane + i);
  };
  if constexpr (T::kBlockCols == 256) {
    whole();
  } else if (nb == kSegmentBlocks) {
    whole();
  } else {
#pragma unroll 1
    for (int i = 16 * lane; i < T::bytes(nb); i += kStep) copy16(to + i, from + i);
  }
}

template <class T, bool kFull>
__device__ __forceinline__ void run_gemm(const TileGemm& p, const TilePart& m, const GemmWork& work,
                                         const std::int32_t* act_row, const std::int32_t* out_row) {
  using Acts = GemmActs<T>;
  extern __shared__ __align__(16) std::uint8_t shared[];
  const int warps = static_cast<int>(blockDim.x) / 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  std::uint8_t* const ring = shared + 2 * Acts::kBytes + 2 * warp * p.stage_bytes;
  const auto* const table =
      reinterpret_cast<const std::uint32_t*>(shared + 2 * Acts::kBytes + 2 * warps * p.stage_bytes);

  const int own = p.fused ? warps / 2 : warps;                // tiles of the block
  const auto tile = [&] { return work.tile0 + warp % own; };  // read again rather than kept in a register
  const bool has_tile = tile() < m.tiles;
  const int groups = (work.count + 15) / 16;
  const auto blocks_of = [&](int segment) {
    return T::kBlockCols == 256 ? kSegmentBlocks : min(kSegmentBlocks, p.blocks - kSegmentBlocks * segment);
  };
  const auto issue = [&](int segment) {
    const int nb = blocks_of(segment), stage = segment % 2;  // a first segment is even
    Acts::issue(shared + stage * Acts::kBytes, p, act_row, work.count, segment, nb);
    if (has_tile) {
      const std::uint8_t* from = work.data[warp / own] + static_cast<std::size_t>(tile()) * p.tile_bytes +
                                 static_cast<std::size_t>(segment) * T::bytes(kSegmentBlocks);
      copy_tile<T>(ring + stage * p.stage_bytes, from, nb, lane);
    }
    commit_copies();
  };

  float acc[kGroups][8] = {};
  GemmTree<kFull> tree;
  // All segments, or those of one of the blocks that share them.
  const auto first = [&] { return p.split * static_cast<int>(blockIdx.z); };
  const auto segments = [&] { return p.split > 0 ? min(p.split, p.segments - first()) : p.segments; };
  issue(first());
  for (int s = 0; s < segments(); ++s) {
    if (s + 1 < segments()) {
      issue(first() + s + 1);
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    __syncthreads();
    if (has_tile) {
      gemm_segment<T, kFull>(ring + s % 2 * p.stage_bytes, blocks_of(first() + s), shared + s % 2 * Acts::kBytes, table,
                             lane, groups, acc);
      tree.add(s, s + 1 == segments(), groups, acc);
    }
    __syncthreads();
  }
  if (!p.fused) {
    if (has_tile) store_plain(p, m, work, tile(), lane, out_row, acc);
    return;
  }
  auto* const values = reinterpret_cast<float*>(shared);
  const int pitch = kRows * own + 4;
  if (has_tile) {
    float* to = values + warp / own * kGemmRows * pitch + kRows * (warp % own) + 2 * (lane / 4);
#pragma unroll
    for (int j = 0; j < kGroups; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        *reinterpret_cast<float2*>(to + (16 * j + 4 * (lane % 4) + c) * pitch) =
            make_float2(acc[j][4 * (c / 2) + c % 2], acc[j][4 * (c / 2) + 2 + c % 2]);
  }
  __syncthreads();
  store_hidden(p, work, values, pitch, own, out_row);
}

// Whether a full block of rows has a body without branches. With sums of activations, or two halves, it would keep
// registers in memory; so would a few other types (tile_gemm_*.cu).
template <class T>
constexpr bool kBranchFree = !T::kOffset && T::kHalves == 1;

template <class T>
__device__ __forceinline__ void run_gemm_rows(const TileGemm& p, const TilePart& m, const GemmWork& work,
                                              const std::int32_t* act_row, const std::int32_t* out_row) {
  if constexpr (kBranchFree<T>) {
    if (work.count == kGemmRows) return run_gemm<T, true>(p, m, work, act_row, out_row);
  }
  run_gemm<T, false>(p, m, work, act_row, out_row);
}

// Up to kGemmRows pairs of one expert of a batch.
struct GemmJob {
  const std::uint8_t* blob;
  int first, count;  // in the order of pairs; count 0: there is no such job
};
// Job number `index` of the batch, by one warp; the lanes have two experts each.
__device__ __forceinline__ void find_job(const TileGemm& p, int index, int lane, GemmJob* job) {
  static_assert(kBatchExperts == 64);
  int pairs[2], jobs[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int at = 2 * lane + i;
    pairs[i] = 0;
    if (at < p.batch.count) {
      const std::int32_t* first = p.sorted.first + p.batch.expert[at];
      pairs[i] = first[1] - first[0];
    }
    jobs[i] = (pairs[i] + kGemmRows - 1) / kGemmRows;
  }
  int until = jobs[0] + jobs[1];
  for (int step = 1; step < 32; step *= 2) {
    const int below = __shfl_up_sync(~0U, until, static_cast<unsigned>(step));
    if (lane >= step) until += below;
  }
  if (index >= __shfl_sync(~0U, until, 31)) {
    if (lane == 0) job->count = 0;
    return;
  }
  int before = until - jobs[0] - jobs[1];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (index >= before && index < before + jobs[i]) {
      const int at = 2 * lane + i, skipped = kGemmRows * (index - before);
      *job = {p.batch.blob[at], p.sorted.first[p.batch.expert[at]] + skipped, min(kGemmRows, pairs[i] - skipped)};
    }
    before += jobs[i];
  }
}

template <class T>
__global__ void __launch_bounds__(32 * kGemmWarps, 2) tile_gemm_kernel(const __grid_constant__ TileGemm p) {
  __shared__ std::int32_t act_row[kGemmRows], out_row[kGemmRows];
  __shared__ GemmJob job;
  __shared__ GemmWork work;  // here and not in registers, of which the accumulators leave none
  extern __shared__ __align__(16) std::uint8_t shared[];
  const int i = static_cast<int>(threadIdx.x), warps = static_cast<int>(blockDim.x) / 32;
  begin_kernel();
  if constexpr (T::kTable > 0) {
    auto* const table = reinterpret_cast<std::uint32_t*>(shared + 2 * GemmActs<T>::kBytes + 2 * warps * p.stage_bytes);
    for (int at = i; at < T::kTable; at += static_cast<int>(blockDim.x)) table[at] = p.table[at];
  }
  const int own = p.fused ? warps / 2 : warps;
  if (p.sorted.first == nullptr) {
    const int row_groups = (p.width + kGemmRows - 1) / kGemmRows;
    int tile_group = static_cast<int>(blockIdx.x) / row_groups;
    const int first = (static_cast<int>(blockIdx.x) - tile_group * row_groups) * kGemmRows;
    int part = 0;
    if (!p.fused) {
      while (part + 1 < p.parts && tile_group >= p.part[part + 1].first_group) ++part;
      tile_group -= p.part[part].first_group;
    }
    const int count = min(kGemmRows, p.width - first);
    if (i == 0) work = {{p.part[part].data, p.part[p.fused ? 1 : part].data}, count, tile_group * own};
    if (i < count) act_row[i] = out_row[i] = first + i;
    __syncthreads();
    return run_gemm_rows<T>(p, p.part[part], work, act_row, out_row);
  }
  for (int index = static_cast<int>(blockIdx.y);; index += static_cast<int>(gridDim.y)) {
    if (i < 32) find_job(p, index, i, &job);
    __syncthreads();
    const int count = job.count;
    if (count == 0) return;
    if (i < count) {
      out_row[i] = p.sorted.order[job.first + i];
      act_row[i] = out_row[i] / p.used;
    }
    if (i == 0) work = {{job.blob + p.offset[0], job.blob + p.offset[1]}, count, static_cast<int>(blockIdx.x) * own};
    __syncthreads();
    run_gemm_rows<T>(p, p.part[0], work, act_row, out_row);
    __syncthreads();
  }
}

template <class T>
constexpr TileGemmKernel gemm_kernel_of() {
  return {&tile_gemm_kernel<T>, &T::bytes, GemmActs<T>::kBytes, 4 * T::kTable};
}

}  // namespace
}  // namespace tandem
