// The loop over a tile, shared by all types and instruction sets: R3 per block of 32 columns, R4 over the segments.
//
// A type is a struct with
//   kHalves   1: one multiplier per block; 2: one per 16 columns
//   kSigned   codes() yields Isa::from_signed form (|c| up to 128); otherwise unsigned codes u = c + kBias, u <=
//             kMaxCode
//   kMultiplier, kOffset   whether m() and e(), n() are used
//   bytes(nb)              bytes of a segment of nb blocks
//   Segment(p, nb)         pointers (and what is worth decoding once) of a segment
//   codes(segment, b, out) the eight code vectors of block b: out[g] holds columns 4g .. 4g+3 of the 16 rows
//   d(segment, b)          block scale; m(segment, b, half); e(segment, b); n(segment, b, half), all 16-lane floats
//   reorder(q, out)        only if out[g] of codes() holds other columns: brings the 256 activations of a segment into
//                          the order in which vectors g = 0 .. 7 of each block meet them. Sums are integers, so the
//                          order changes nothing; both halves of 16 columns stay apart where kHalves is 2.
// The integers P and R of R3 stay below 2^24 for every type, so products and sums of them in float are exact, and the
// result is the one of integer arithmetic. (They are formed as fma onto +0, since an integer zero is never -0.)
#pragma once

#include <algorithm>

#include "cpu/kernels/tile_isa.h"
#include "cpu/kernels/tile_kernels.h"
#include "runtime/exact_math.h"

namespace tandem {
namespace {

using I = Isa::I;
using F = Isa::F;

// The pairwise tree over a stream of segments: equal-sized neighbours are merged as they complete; at the end the
// missing ones count as +0 (which only turns -0 into +0).
struct SegmentTree {
  F value[9];
  int level[9];
  int depth = 0;

  void push(F segment) {
    int l = 0;
    while (depth > 0 && level[depth - 1] == l) {
      segment = Isa::add(value[--depth], segment);
      ++l;
    }
    value[depth] = segment;
    level[depth++] = l;
  }
  F finish() {
    while (depth > 1) {
      F right = value[--depth];
      if (level[depth] < level[depth - 1]) right = Isa::add(right, Isa::fzero());
      value[depth - 1] = Isa::add(value[depth - 1], right);
      ++level[depth - 1];
    }
    return value[0];
  }
};

// acc + dot of n code vectors with 4n activation bytes.
template <class Type, class Machine = Isa>
inline I dot_codes(I acc, const I* codes, int n, const std::int8_t* a) {
  if constexpr (Machine::kNativeDot) {
#pragma GCC unroll 8
    for (int g = 0; g < n; ++g) {
      if constexpr (Type::kSigned)
        acc = Machine::dot_s(acc, codes[g], a + 4 * g);
      else
        acc = Machine::dot_u(acc, codes[g], a + 4 * g);
    }
  } else {
    // How many pair sums fit an int16: 2 * 127 * code each.
    constexpr int kMost = 32767 / (2 * 127 * (Type::kSigned ? 128 : Type::kMaxCode));
    constexpr int kFit = kMost >= 8 ? 8 : kMost >= 4 ? 4 : kMost >= 2 ? 2 : 1;
    for (int g = 0; g < n; g += kFit) {
      I pairs{};
      for (int k = g; k < std::min(n, g + kFit); ++k) {
        I more;
        if constexpr (Type::kSigned)
          more = Machine::pairs_s(codes[k], a + 4 * k);
        else
          more = Machine::pairs_u(codes[k], a + 4 * k);
        pairs = k == g ? more : Machine::add16(pairs, more);
      }
      acc = Machine::add_pairs(acc, pairs);
    }
  }
  return acc;
}

template <class Type>
inline I start_value(std::int32_t sum) {
  constexpr int kBias = Type::kSigned ? (Isa::kBiased ? 128 : 0) : Type::kBias;
  return kBias == 0 ? Isa::zero() : Isa::set1(-kBias * sum);
}

// A segment of W activation rows in a type's own order of columns, and the start values of its products. Made once per
// segment: it is a permute for 64 columns, where a type that decodes in the rows' order needs some 16 shuffles a block.
template <class Type>
inline constexpr bool kReorders = requires {
  &Type::reorder;
};
template <class Type, std::size_t W, bool Reorders = kReorders<Type>>
struct Reordered {};
template <class Type, std::size_t W>
struct Reordered<Type, W, true> {
  static constexpr std::size_t kStarts = kSegment / 32 * Type::kHalves;
  alignas(64) std::int8_t q[W][kSegment];
  alignas(64) std::int32_t start[W][kStarts];

  void set(std::size_t t, const std::int8_t* from, const std::int32_t* s) {
    Type::reorder(from, q[t]);
    for (std::size_t i = 0; i < kStarts; ++i)
      start[t][i] = -Type::kBias * (Type::kHalves == 1 ? s[2 * i] + s[2 * i + 1] : s[i]);
  }
};

// What a block's turn asks for ahead of it, in two steps: from memory into the second-level cache, which has room for
// many lines on their way, and from there into the first-level one, which has not. A few lines a block, since a whole
// segment's at once would fill the buffers that the block's own loads need. Sapphire Rapids, two cores, cold, GB/s of
// IQ3_XXS, Q4_K, IQ4_NL at w = 1 and at w = 4: 19, 25, 27 and 15, 18, 20 with one burst a segment 4096 bytes ahead; 23,
// 26, 25 and 15, 23, 22 with that spread over the blocks; 25, 28, 28 and 17, 22, 26 as here (docs/performance.md).
constexpr std::size_t kPrefetchNear = 1024, kPrefetchFar = 8192;
template <std::size_t kBytes>
inline void prefetch_ahead(const std::uint8_t* block) {
#pragma GCC unroll 8
  for (std::size_t at = 0; at < kBytes; at += 64) {
    __builtin_prefetch(block + kPrefetchFar + at, 0, 2);
    __builtin_prefetch(block + kPrefetchNear + at, 0, 3);
  }
}

// One tile, W jobs.
template <class Type, std::size_t W>
void tile_rows(const std::uint8_t* tile, std::size_t cols, const TileJob* jobs, std::size_t rows, float scale) {
  constexpr std::size_t kBlocks = kSegment / 32;
  SegmentTree tree[W];
  // Copies, so that the compiler knows that nothing below changes them.
  const std::int8_t* row_q[W];
  const std::int32_t* row_s[W];
  const float* row_d[W];
  for (std::size_t t = 0; t < W; ++t) {
    row_q[t] = jobs[t].q;
    row_s[t] = jobs[t].s;
    row_d[t] = jobs[t].d;
  }
  const std::size_t blocks = cols / 32;
  for (std::size_t at = 0; at < kPrefetchNear; at += 64) __builtin_prefetch(tile + at, 0, 3);  // a claim may begin here
  Reordered<Type, W> own;
  for (std::size_t first = 0; first < blocks; first += kBlocks) {
    const std::size_t nb = std::min(kBlocks, blocks - first);
    const typename Type::Segment segment(tile, nb);
    F acc[W];
    for (std::size_t t = 0; t < W; ++t) acc[t] = Isa::fzero();
    if constexpr (kReorders<Type>)
      for (std::size_t t = 0; t < W; ++t) own.set(t, row_q[t] + 32 * first, row_s[t] + 2 * first);
    for (std::size_t b = 0; b < nb; ++b) {
      prefetch_ahead<Type::bytes(kBlocks) / kBlocks>(tile + Type::bytes(kBlocks) / kBlocks * b);
      I codes[8];
      Type::codes(segment, b, codes);
      const F d = Type::d(segment, b);
      const std::size_t at_q = 32 * (first + b), at_s = 2 * (first + b), at_d = first + b;
#pragma GCC unroll 8
      for (std::size_t t = 0; t < W; ++t) {
        const std::int8_t* a = row_q[t] + at_q;
        const std::int32_t* s = row_s[t] + at_s;
        const auto start = [&](int i) __attribute__((always_inline)) {
          if constexpr (kReorders<Type>)
            return Isa::set1(own.start[t][Type::kHalves * b + static_cast<std::size_t>(i)]);
          else
            return start_value<Type>(Type::kHalves == 1 ? s[0] + s[1] : s[i]);
        };
        if constexpr (kReorders<Type>) a = own.q[t] + 32 * b;
        const float da = row_d[t][at_d];
        F p;
        if constexpr (Type::kHalves == 1) {
          p = Isa::to_float(dot_codes<Type>(start(0), codes, 8, a));
          if constexpr (Type::kMultiplier) p = Isa::fma(p, Type::m(segment, b, 0), Isa::fzero());
        } else {
          const F low = Isa::to_float(dot_codes<Type>(start(0), codes, 4, a));
          const F high = Isa::to_float(dot_codes<Type>(start(1), codes + 4, 4, a + 16));
          p = Isa::fma(high, Type::m(segment, b, 1), Isa::fma(low, Type::m(segment, b, 0), Isa::fzero()));
        }
        acc[t] = Isa::fma(Isa::mul(d, Isa::fset1(da)), p, acc[t]);
        if constexpr (Type::kOffset) {
          F r;
          if constexpr (Type::kHalves == 1) {
            r = Isa::fset1(static_cast<float>(s[0] + s[1]));
            if constexpr (Type::kMultiplier) r = Isa::fma(r, Type::n(segment, b, 0), Isa::fzero());
          } else {
            r = Isa::fma(Isa::fset1(static_cast<float>(s[1])), Type::n(segment, b, 1),
                         Isa::fma(Isa::fset1(static_cast<float>(s[0])), Type::n(segment, b, 0), Isa::fzero()));
          }
          acc[t] = Isa::fma(Isa::mul(Type::e(segment, b), Isa::fset1(da)), r, acc[t]);
        }
      }
    }
    for (std::size_t t = 0; t < W; ++t) tree[t].push(acc[t]);
    tile += Type::bytes(nb);
  }
  for (std::size_t t = 0; t < W; ++t) Isa::store(jobs[t].y, rows, Isa::mul(tree[t].finish(), Isa::fset1(scale)));
}

template <class Type>
void tile_entry(const std::uint8_t* tile, std::size_t cols, const TileJob* jobs, std::size_t job_count,
                std::size_t rows, float scale) {
  for (; job_count >= 8; job_count -= 8, jobs += 8) tile_rows<Type, 8>(tile, cols, jobs, rows, scale);
  switch (job_count) {
    case 1:
      return tile_rows<Type, 1>(tile, cols, jobs, rows, scale);
    case 2:
      return tile_rows<Type, 2>(tile, cols, jobs, rows, scale);
    case 3:
      return tile_rows<Type, 3>(tile, cols, jobs, rows, scale);
    case 4:
      return tile_rows<Type, 4>(tile, cols, jobs, rows, scale);
    case 5:
      return tile_rows<Type, 5>(tile, cols, jobs, rows, scale);
    case 6:
      tile_rows<Type, 3>(tile, cols, jobs, rows, scale);
      return tile_rows<Type, 3>(tile, cols, jobs + 3, rows, scale);
    case 7:
      tile_rows<Type, 4>(tile, cols, jobs, rows, scale);
      return tile_rows<Type, 3>(tile, cols, jobs + 4, rows, scale);
    default:
      return;
  }
}

}  // namespace
}  // namespace tandem
