// The packed block types (runtime/tile.h, docs/formats.md) as the card reads them: device twin of
// cpu/kernels/tile_arith.h and tile_lattice.h, the same integers for the same bytes.
//
// A lane reads two neighbouring rows, 2g and 2g + 1 (g = lane / 4), of a segment that lies in shared memory. A type is
// a struct with
//   kHalves      1: one multiplier per block; 2: one per 16 columns
//   kMultiplier, kOffset   whether m() and e(), n() are used
//   kBias        codes() yields c + kBias (0: signed codes)
//   kOctets      which columns a lane t = lane % 4 has: 4t.. and 16 + 4t.. (false), or 8t.. and 8t + 4.. (true)
//   kTable       words of the look-up table (0: none; gpu/kernels/lattice.h)
//   bytes(nb)    bytes of a segment of nb blocks
//   Head(segment, nb, l)          what is worth decoding once per segment, for the rows of lane l
//   codes(block, g, t, table, a)  codes of block(segment, nb, b): a[0] row 2g, first four columns; a[1] row 2g + 1;
//   a[2],
//                                 a[3] the second four: the order of mma's A fragment
//   row_codes(block, r, table, c) all codes of row r: c[g] has columns 4g .. 4g + 3
//   kMixes, mixed_row_codes(block, r, c) where another order is cheaper: c[g] has columns 4g, 16 + 4g, 4g + 1,
//                                 16 + 4g + 1 and c[4 + g] the same two further on (g < 4)
//   d(head, segment, nb, b, l)    scales of the rows of l; e(...) likewise; m(..., half), n(..., half) integers
//   kFloatMultiplier, row_multiplier(segment, nb, b, r) where m of row r is had sooner as a float
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "runtime/quant.h"

namespace tandem {
namespace {

// Of the rows 2g and 2g + 1.
struct FloatPair {
  float x, y;
};
struct IntPair {
  int x, y;
};

__device__ __forceinline__ std::uint32_t word(const std::uint8_t* p) {
  return *reinterpret_cast<const std::uint32_t*>(p);
}
__device__ __forceinline__ uint2 words(const std::uint8_t* p) {
  return *reinterpret_cast<const uint2*>(p);
}
// Two neighbouring bytes.
__device__ __forceinline__ std::uint32_t byte_pair(const std::uint8_t* p) {
  return *reinterpret_cast<const std::uint16_t*>(p);
}
__device__ __forceinline__ FloatPair half_pair(std::uint32_t bits) {
  const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&bits));
  return {v.x, v.y};
}

// Which rows of a tile a lane reads, and its bytes, 16-bit words and 32-bit words in a field [16 rows]. A single row
// fills the low part, and the x of a pair; y then means nothing.
struct TwoRows {  // 2g and 2g + 1
  int g;
  __device__ __forceinline__ std::uint32_t bytes(const std::uint8_t* p) const { return byte_pair(p + 2 * g); }
  __device__ __forceinline__ std::uint32_t shorts(const std::uint8_t* p) const { return word(p + 4 * g); }
  __device__ __forceinline__ uint2 ints(const std::uint8_t* p) const { return words(p + 8 * g); }
};
struct OneRow {
  int r;
  __device__ __forceinline__ std::uint32_t bytes(const std::uint8_t* p) const { return p[r]; }
  __device__ __forceinline__ std::uint32_t shorts(const std::uint8_t* p) const { return byte_pair(p + 2 * r); }
  __device__ __forceinline__ uint2 ints(const std::uint8_t* p) const { return make_uint2(word(p + 4 * r), 0U); }
};
template <class Lane>
__device__ __forceinline__ FloatPair halves(const Lane& l, const std::uint8_t* p) {
  return half_pair(l.shorts(p));
}
// Byte i of the result is byte (nibble i of selector) of a, b; only the low four nibbles count. REQUIRES nibbles < 8.
__device__ __forceinline__ std::uint32_t permute(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
  std::uint32_t out;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(selector));
  return out;
}
__device__ __forceinline__ IntPair signed_bytes(std::uint32_t pair) {
  return {static_cast<std::int8_t>(pair & 255U), static_cast<std::int8_t>(pair >> 8)};
}
__device__ __forceinline__ IntPair unsigned_bytes(std::uint32_t pair) {
  return {static_cast<int>(pair & 255U), static_cast<int>(pair >> 8)};
}

constexpr std::uint32_t kOnes = 0x01010101U;

// One, in a way that the compiler does not see (blocks have one layer). A difference or an address made by a
// multiplication and addition runs beside the logical operations, which are what decoding is bound by, not among them;
// and a constant times one stays in a register instead of being copied there for every byte permutation.
__device__ __forceinline__ std::uint32_t one() {
  return blockDim.z;
}

// ---- planes ---------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void plane8(const std::uint8_t* p, int g, int t, std::uint32_t* a) {
  const uint2 first = words(p + 64 * t + 8 * g), second = words(p + 256 + 64 * t + 8 * g);
  a[0] = first.x;
  a[1] = first.y;
  a[2] = second.x;
  a[3] = second.y;
}
__device__ __forceinline__ void plane4(const std::uint8_t* p, int g, int t, std::uint32_t* a) {
  const uint2 w = words(p + 64 * t + 8 * g);
  a[0] = w.x & 0x0F0F0F0FU;
  a[1] = w.y & 0x0F0F0F0FU;
  a[2] = (w.x >> 4) & 0x0F0F0F0FU;
  a[3] = (w.y >> 4) & 0x0F0F0F0FU;
}
__device__ __forceinline__ void plane2(const std::uint8_t* p, int g, int t, std::uint32_t* a) {
  const uint2 first = words(p + 8 * g), second = words(p + 64 + 8 * g);
  a[0] = (first.x >> (2 * t)) & 0x03030303U;
  a[1] = (first.y >> (2 * t)) & 0x03030303U;
  a[2] = (second.x >> (2 * t)) & 0x03030303U;
  a[3] = (second.y >> (2 * t)) & 0x03030303U;
}
// Adds the bit of a P1 plane as 1 << Bit.
template <int Bit>
__device__ __forceinline__ void or_plane1(const std::uint8_t* p, int g, int t, std::uint32_t* a) {
  const uint2 w = words(p + 8 * g);
  a[0] |= ((w.x >> t) & kOnes) << Bit;
  a[1] |= ((w.y >> t) & kOnes) << Bit;
  a[2] |= ((w.x >> (4 + t)) & kOnes) << Bit;
  a[3] |= ((w.y >> (4 + t)) & kOnes) << Bit;
}
// The eight nibbles of a word through a table of 16 bytes, in their order: the first four to `x`.
struct Table16 {
  std::uint32_t entry[4];
};
__device__ __forceinline__ void lookup_in_order(const Table16& table, std::uint32_t w, std::uint32_t& x,
                                                std::uint32_t& y) {
  const std::uint32_t index = w & 0x77777777U;                         // within half a table
  const std::uint32_t upper = ((w & 0x88888888U) >> 1) | 0x32103210U;  // and which half
  x = permute(permute(table.entry[0], table.entry[1], index), permute(table.entry[2], table.entry[3], index), upper);
  y = permute(permute(table.entry[0], table.entry[1], index >> 16),
              permute(table.entry[2], table.entry[3], index >> 16), upper >> 16);
}
// Low nibbles to `low`, high ones to `high`.
__device__ __forceinline__ void lookup_nibbles(const Table16& table, std::uint32_t w, std::uint32_t& low,
                                               std::uint32_t& high) {
  std::uint32_t x, y;
  lookup_in_order(table, w, x, y);
  low = permute(x, y, 0x6420U);
  high = permute(x, y, 0x7531U);
}
__device__ __forceinline__ void plane4_table(const Table16& table, const std::uint8_t* p, int g, int t,
                                             std::uint32_t* a) {
  const uint2 w = words(p + 64 * t + 8 * g);
  lookup_nibbles(table, w.x, a[0], a[2]);
  lookup_nibbles(table, w.y, a[1], a[3]);
}

// The same for one row r: c[g] holds columns 4g .. 4g + 3 of the block.
__device__ __forceinline__ void row_plane8(const std::uint8_t* p, int r, std::uint32_t* c) {
#pragma unroll
  for (int g = 0; g < 8; ++g) c[g] = word(p + 64 * g + 4 * r);
}
__device__ __forceinline__ void row_plane4(const std::uint8_t* p, int r, std::uint32_t* c) {
#pragma unroll
  for (int g = 0; g < 4; ++g) {
    const std::uint32_t w = word(p + 64 * g + 4 * r);
    c[g] = w & 0x0F0F0F0FU;
    c[4 + g] = (w >> 4) & 0x0F0F0F0FU;
  }
}
__device__ __forceinline__ std::uint32_t moved(std::uint32_t w, int left) {
  return left >= 0 ? w << left : w >> -left;
}
// Adds the two bits of a P2 plane at bit Bit, or the bit of a P1 plane.
template <int Bit>
__device__ __forceinline__ void row_or_plane2(const std::uint8_t* p, int r, std::uint32_t* c) {
  const std::uint32_t first = word(p + 4 * r), second = word(p + 64 + 4 * r);
#pragma unroll
  for (int g = 0; g < 4; ++g) {
    c[g] |= moved(first, Bit - 2 * g) & (0x03030303U << Bit);
    c[4 + g] |= moved(second, Bit - 2 * g) & (0x03030303U << Bit);
  }
}
template <int Bit>
__device__ __forceinline__ void row_or_plane1(const std::uint8_t* p, int r, std::uint32_t* c) {
  const std::uint32_t w = word(p + 4 * r);
#pragma unroll
  for (int g = 0; g < 8; ++g) c[g] |= moved(w, Bit - g) & (kOnes << Bit);
}
__device__ __forceinline__ void clear(std::uint32_t* c) {
#pragma unroll
  for (int g = 0; g < 8; ++g) c[g] = 0;
}
__device__ __forceinline__ Table16 in_registers(const Table16& constants) {
  return {
      {constants.entry[0] * one(), constants.entry[1] * one(), constants.entry[2] * one(), constants.entry[3] * one()}};
}
__device__ __forceinline__ void row_plane4_table(const Table16& constants, const std::uint8_t* p, int r,
                                                 std::uint32_t* c) {
  const Table16 table = in_registers(constants);
#pragma unroll
  for (int g = 0; g < 4; ++g) lookup_nibbles(table, word(p + 64 * g + 4 * r), c[g], c[4 + g]);
}
__device__ __forceinline__ void mixed_row_plane4_table(const Table16& constants, const std::uint8_t* p, int r,
                                                       std::uint32_t* c) {
  const Table16 table = in_registers(constants);
#pragma unroll
  for (int g = 0; g < 4; ++g) lookup_in_order(table, word(p + 64 * g + 4 * r), c[g], c[4 + g]);
}

// ---- types with a scale per block of 32 -----------------------------------------------------------------------------

struct NoHead {
  template <class Lane>
  __device__ __forceinline__ NoHead(const std::uint8_t*, int, const Lane&) {}
};

// f16 d[nb] (and m[nb]), then codes.
template <int CodeBytes, bool Offset, int Bias>
struct SmallType {
  static constexpr int kHalves = 1, kBias = Bias, kTable = 0, kBlockCols = 32;
  static constexpr bool kMultiplier = false, kOffset = Offset, kOctets = false, kMixes = false;
  static constexpr bool kFloatMultiplier = false;
  static constexpr int kHeadBytes = Offset ? 64 : 32;
  static constexpr __host__ __device__ int bytes(int nb) { return nb * (CodeBytes + kHeadBytes); }
  using Head = NoHead;
  static __device__ __forceinline__ const std::uint8_t* block(const std::uint8_t* s, int nb, int b) {
    return s + kHeadBytes * nb + CodeBytes * b;
  }
  template <class Lane>
  static __device__ __forceinline__ FloatPair d(const Head&, const std::uint8_t* s, int, int b, const Lane& l) {
    return halves(l, s + 32 * b);
  }
  template <class Lane>
  static __device__ __forceinline__ FloatPair e(const Head&, const std::uint8_t* s, int nb, int b, const Lane& l) {
    return halves(l, s + 32 * (nb + b));
  }
};

template <bool Offset>
struct CardQ4 : SmallType<256, Offset, Offset ? 0 : 8> {
  static __device__ __forceinline__ void codes(const std::uint8_t* p, int g, int t, const std::uint32_t*,
                                               std::uint32_t* a) {
    plane4(p, g, t, a);
  }
  static __device__ __forceinline__ void row_codes(const std::uint8_t* p, int r, const std::uint32_t*,
                                                   std::uint32_t* c) {
    row_plane4(p, r, c);
  }
};
template <bool Offset>
struct CardQ5 : SmallType<320, Offset, Offset ? 0 : 16> {
  static __device__ __forceinline__ void codes(const std::uint8_t* p, int g, int t, const std::uint32_t*,
                                               std::uint32_t* a) {
    plane4(p, g, t, a);
    or_plane1<4>(p + 256, g, t, a);
  }
  static __device__ __forceinline__ void row_codes(const std::uint8_t* p, int r, const std::uint32_t*,
                                                   std::uint32_t* c) {
    row_plane4(p, r, c);
    row_or_plane1<4>(p + 256, r, c);
  }
};
struct CardQ8_0 : SmallType<512, false, 0> {
  static __device__ __forceinline__ void codes(const std::uint8_t* p, int g, int t, const std::uint32_t*,
                                               std::uint32_t* a) {
    plane8(p, g, t, a);
  }
  static __device__ __forceinline__ void row_codes(const std::uint8_t* p, int r, const std::uint32_t*,
                                                   std::uint32_t* c) {
    row_plane8(p, r, c);
  }
};
// kIq4Values of runtime/iq_grids.h.
__device__ __forceinline__ Table16 iq4_values() {
  return {{0xBFAD9881U, 0xF6EADDCFU, 0x26190D01U, 0x71594535U}};
}
struct CardIQ4_NL : SmallType<256, false, 0> {
  static __device__ __forceinline__ void codes(const std::uint8_t* p, int g, int t, const std::uint32_t*,
                                               std::uint32_t* a) {
    plane4_table(iq4_values(), p, g, t, a);
  }
  static __device__ __forceinline__ void row_codes(const std::uint8_t* p, int r, const std::uint32_t*,
                                                   std::uint32_t* c) {
    row_plane4_table(iq4_values(), p, r, c);
  }
  static constexpr bool kMixes = true;
  static __device__ __forceinline__ void mixed_row_codes(const std::uint8_t* p, int r, std::uint32_t* c) {
    mixed_row_plane4_table(iq4_values(), p, r, c);
  }
};
// kFp4Values.
__device__ __forceinline__ Table16 fp4_values() {
  return {{0x03020100U, 0x0C080604U, 0xFDFEFF00U, 0xF4F8FAFCU}};
}
// u8 e[nb]; codes are FP4 times two.
struct CardMXFP4 : SmallType<256, false, 0> {
  static constexpr int kHeadBytes = 16;
  static constexpr __host__ __device__ int bytes(int nb) { return nb * (256 + kHeadBytes); }
  static __device__ __forceinline__ const std::uint8_t* block(const std::uint8_t* s, int nb, int b) {
    return s + kHeadBytes * nb + 256 * b;
  }
  static __device__ __forceinline__ float power(std::uint32_t e) {  // 2^(e - 128)
    return __uint_as_float(e < 2 ? 0x00200000U << e : (e - 1) << 23);
  }
  template <class Lane>
  static __device__ __forceinline__ FloatPair d(const Head&, const std::uint8_t* s, int, int b, const Lane& l) {
    const std::uint32_t pair = l.bytes(s + 16 * b);
    return {power(pair & 255U), power(pair >> 8)};
  }
  static __device__ __forceinline__ void codes(const std::uint8_t* p, int g, int t, const std::uint32_t*,
                                               std::uint32_t* a) {
    plane4_table(fp4_values(), p, g, t, a);
  }
  static __device__ __forceinline__ void row_codes(const std::uint8_t* p, int r, const std::uint32_t*,
                                                   std::uint32_t* c) {
    row_plane4_table(fp4_values(), p, r, c);
  }
  static constexpr bool kMixes = true;
  static __device__ __forceinline__ void mixed_row_codes(const std::uint8_t* p, int r, std::uint32_t* c) {
    mixed_row_plane4_table(fp4_values(), p, r, c);
  }
};
// f16 d[nb / 2], one per 64 columns.
struct CardQ2_0 : SmallType<128, false, 1> {
  static constexpr int kBlockCols = 64;
  static constexpr __host__ __device__ int bytes(int nb) { return nb * 128 + nb / 2 * 32; }
  static __device__ __forceinline__ const std::uint8_t* block(const std::uint8_t* s, int nb, int b) {
    return s + nb / 2 * 32 + 128 * b;
  }
  template <class Lane>
  static __device__ __forceinline__ FloatPair d(const Head&, const std::uint8_t* s, int, int b, const Lane& l) {
    return halves(l, s + b / 2 * 32);
  }
  static __device__ __forceinline__ void codes(const std::uint8_t* p, int g, int t, const std::uint32_t*,
                                               std::uint32_t* a) {
    plane2(p, g, t, a);
  }
  static __device__ __forceinline__ void row_codes(const std::uint8_t* p, int r, const std::uint32_t*,
                                                   std::uint32_t* c) {
    clear(c);
    row_or_plane2<0>(p, r, c);
  }
};

// ---- types with a scale per 256 columns -----------------------------------------------------------------------------

// f16 d at the start of a segment, times Factor (a power of two: exact).
template <int HeadBytes, int CodeBytes>
struct WideType {
  static constexpr int kBlockCols = 256, kTable = 0;
  static constexpr bool kMultiplier = true, kOffset = false, kOctets = false, kMixes = false;
  static constexpr bool kFloatMultiplier = false;
  static constexpr __host__ __device__ int bytes(int nb) { return HeadBytes + CodeBytes * nb; }
  static __device__ __forceinline__ const std::uint8_t* block(const std::uint8_t* s, int, int b) {
    return s + HeadBytes + CodeBytes * b;
  }
};
struct ScaleHead {
  FloatPair scale;
  template <class Lane>
  __device__ __forceinline__ ScaleHead(const std::uint8_t* s, int, const Lane& l) : scale(halves(l, s)) {}
};
// f16 d, f16 dmin; the offset is -dmin.
struct ScaleMinHead {
  FloatPair scale, minus_min;
  template <class Lane>
  __device__ __forceinline__ ScaleMinHead(const std::uint8_t* s, int, const Lane& l) : scale(halves(l, s)) {
    const FloatPair min = halves(l, s + 32);
    minus_min = {-min.x, -min.y};
  }
};

// Q4_K and Q5_K: d, dmin, twelve bytes holding eight 6-bit pairs (S, M).
template <int CodeBytes>
struct PairScaledType : WideType<256, CodeBytes> {
  static constexpr int kHalves = 1, kBias = 0;
  static constexpr bool kOffset = true;
  using Head = ScaleMinHead;
  template <class Lane>
  static __device__ __forceinline__ FloatPair d(const Head& h, const std::uint8_t*, int, int, const Lane&) {
    return h.scale;
  }
  template <class Lane>
  static __device__ __forceinline__ FloatPair e(const Head& h, const std::uint8_t*, int, int, const Lane&) {
    return h.minus_min;
  }
  template <class Lane>
  static __device__ __forceinline__ std::uint32_t pair(const std::uint8_t* s, int i, const Lane& l) {
    return l.bytes(s + 64 + 16 * i);
  }
  // Both rows at once: bits 6 and 7 of a byte of scales move to bits 4 and 5.
  template <class Lane>
  static __device__ __forceinline__ IntPair m(const Head&, const std::uint8_t* s, int, int b, const Lane& l, int) {
    if (b < 4) return unsigned_bytes(pair(s, b, l) & 0x3F3FU);
    return unsigned_bytes((pair(s, b + 4, l) & 0x0F0FU) | ((pair(s, b - 4, l) >> 2) & 0x3030U));
  }
  template <class Lane>
  static __device__ __forceinline__ IntPair n(const Head&, const std::uint8_t* s, int, int b, const Lane& l, int) {
    if (b < 4) return unsigned_bytes(pair(s, b + 4, l) & 0x3F3FU);
    return unsigned_bytes(((pair(s, b + 4, l) >> 4) & 0x0F0FU) | ((pair(s, b, l) >> 2) & 0x3030U));
  }
};
struct CardQ4_K : PairScaledType<256> {
  static __device__ __forceinline__ void codes(const std::uint8_t* p, int g, int t, const std::uint32_t*,
                                               std::uint32_t* a) {
    plane4(p, g, t, a);
  }
  static __device__ __forceinline__ void row_codes(const std::uint8_t* p, int r, const std::uint32_t*,
                                                   std::uint32_t* c) {
    row_plane4(p, r, c);
  }
};
struct CardQ5_K : PairScaledType<320> {
  static __device__ __forceinline__ void codes(const std::uint8_t* p, int g, int t, const std::uint32_t*,
                                               std::uint32_t* a) {
    plane4(p, g, t, a);
    or_plane1<4>(p + 256, g, t, a);
  }
  static __device__ __forceinline__ void row_codes(const std::uint8_t* p, int r, const std::uint32_t*,
                                                   std::uint32_t* c) {
    row_plane4(p, r, c);
    row_or_plane1<4>(p + 256, r, c);
  }
};

struct CardQ2_K : WideType<320, 128> {
  static constexpr int kHalves = 2, kBias = 0;
  static constexpr bool kOffset = true;
  using Head = ScaleMinHead;
  template <class Lane>
  static __device__ __forceinline__ FloatPair d(const Head& h, const std::uint8_t*, int, int, const Lane&) {
    return h.scale;
  }
  template <class Lane>
  static __device__ __forceinline__ FloatPair e(const Head& h, const std::uint8_t*, int, int, const Lane&) {
    return h.minus_min;
  }
  template <class Lane>
  static __device__ __forceinline__ std::uint32_t pair(const std::uint8_t* s, int b, const Lane& l, int half) {
    return l.bytes(s + 64 + 16 * (2 * b + half));
  }
  template <class Lane>
  static __device__ __forceinline__ IntPair m(const Head&, const std::uint8_t* s, int, int b, const Lane& l, int half) {
    return unsigned_bytes(pair(s, b, l, half) & 0x0F0FU);
  }
  template <class Lane>
  static __device__ __forceinline__ IntPair n(const Head&, const std::uint8_t* s, int, int b, const Lane& l, int half) {
    return unsigned_bytes((pair(s, b, l, half) >> 4) & 0x0F0FU);
  }
  static __device__ __forceinline__ void codes(const std::uint8_t* p, int g, int t, const std::uint32_t*,
                                               std::uint32_t* a) {
    plane2(p, g, t, a);
  }
  static __device__ __forceinline__ void row_codes(const std::uint8_t* p, int r, const std::uint32_t*,
                                                   std::uint32_t* c) {
    clear(c);
    row_or_plane2<0>(p, r, c);
  }
};

struct CardQ3_K : WideType<224, 192> {
  static constexpr int kHalves = 2, kBias = 4;
  using Head = ScaleHead;
  template <class Lane>
  static __device__ __forceinline__ FloatPair d(const Head& h, const std::uint8_t*, int, int, const Lane&) {
    return h.scale;
  }
  // Scale k: four low bits in byte k mod 8, two high bits in byte 8 + k mod 4 at 2 (k div 4); minus 32.
  template <class Lane>
  static __device__ __forceinline__ IntPair m(const Head&, const std::uint8_t* s, int, int b, const Lane& l, int half) {
    const int k = 2 * b + half;
    const std::uint32_t low = (l.bytes(s + 32 + 16 * (k % 8)) >> (k < 8 ? 0 : 4)) & 0x0F0FU;
    const std::uint32_t high = (l.bytes(s + 32 + 16 * (8 + k % 4)) >> (2 * (k / 4))) & 0x0303U;
    const IntPair both = unsigned_bytes(low | high << 4);
    return {both.x - 32, both.y - 32};
  }
  static __device__ __forceinline__ void codes(const std::uint8_t* p, int g, int t, const std::uint32_t*,
                                               std::uint32_t* a) {
    plane2(p, g, t, a);
    or_plane1<2>(p + 128, g, t, a);
  }
  static __device__ __forceinline__ void row_codes(const std::uint8_t* p, int r, const std::uint32_t*,
                                                   std::uint32_t* c) {
    clear(c);
    row_or_plane2<0>(p, r, c);
    row_or_plane1<2>(p + 128, r, c);
  }
};

struct CardQ6_K : WideType<288, 384> {
  static constexpr int kHalves = 2, kBias = 32;
  using Head = ScaleHead;
  template <class Lane>
  static __device__ __forceinline__ FloatPair d(const Head& h, const std::uint8_t*, int, int, const Lane&) {
    return h.scale;
  }
  template <class Lane>
  static __device__ __forceinline__ IntPair m(const Head&, const std::uint8_t* s, int, int b, const Lane& l, int half) {
    return signed_bytes(l.bytes(s + 32 + 16 * (2 * b + half)));
  }
  static __device__ __forceinline__ void codes(const std::uint8_t* p, int g, int t, const std::uint32_t*,
                                               std::uint32_t* a) {
    std::uint32_t high[4];
    plane4(p, g, t, a);
    plane2(p + 256, g, t, high);
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] |= high[i] << 4;
  }
  static __device__ __forceinline__ void row_codes(const std::uint8_t* p, int r, const std::uint32_t*,
                                                   std::uint32_t* c) {
    row_plane4(p, r, c);
    row_or_plane2<4>(p + 256, r, c);
  }
};

struct CardIQ4_XS : WideType<128, 256> {
  static constexpr int kHalves = 1, kBias = 0;
  using Head = ScaleHead;
  template <class Lane>
  static __device__ __forceinline__ FloatPair d(const Head& h, const std::uint8_t*, int, int, const Lane&) {
    return h.scale;
  }
  template <class Lane>
  static __device__ __forceinline__ IntPair m(const Head&, const std::uint8_t* s, int, int b, const Lane& l, int) {
    const std::uint32_t high = l.shorts(s + 32) >> (2 * b);  // two bits of either row
    const std::uint32_t low = (l.bytes(s + 64 + 16 * (b / 2)) >> (4 * (b % 2))) & 0x0F0FU;
    const IntPair both = unsigned_bytes(low | (high & 3U) << 4 | ((high >> 16) & 3U) << 12);
    return {both.x - 32, both.y - 32};
  }
  static __device__ __forceinline__ void codes(const std::uint8_t* p, int g, int t, const std::uint32_t*,
                                               std::uint32_t* a) {
    plane4_table(iq4_values(), p, g, t, a);
  }
  static __device__ __forceinline__ void row_codes(const std::uint8_t* p, int r, const std::uint32_t*,
                                                   std::uint32_t* c) {
    row_plane4_table(iq4_values(), p, r, c);
  }
  static constexpr bool kMixes = true;
  static __device__ __forceinline__ void mixed_row_codes(const std::uint8_t* p, int r, std::uint32_t* c) {
    mixed_row_plane4_table(iq4_values(), p, r, c);
  }
};

// body(Card type{}) for the types with a scale per block; null for others.
template <class Body>
auto for_small_type(DType type, Body&& body) -> decltype(body(CardQ4<false>{})) {
  switch (type) {
    case DType::Q4_0:
      return body(CardQ4<false>{});
    case DType::Q4_1:
      return body(CardQ4<true>{});
    case DType::Q5_0:
      return body(CardQ5<false>{});
    case DType::Q5_1:
      return body(CardQ5<true>{});
    case DType::Q8_0:
      return body(CardQ8_0{});
    case DType::Q2_0:
      return body(CardQ2_0{});
    case DType::IQ4_NL:
      return body(CardIQ4_NL{});
    case DType::MXFP4:
      return body(CardMXFP4{});
    default:
      return nullptr;
  }
}
// body(Card type{}) for the types of 256 columns with plain codes; null for others.
template <class Body>
auto for_wide_type(DType type, Body&& body) -> decltype(body(CardQ2_K{})) {
  switch (type) {
    case DType::Q2_K:
      return body(CardQ2_K{});
    case DType::Q3_K:
      return body(CardQ3_K{});
    case DType::Q4_K:
      return body(CardQ4_K{});
    case DType::Q5_K:
      return body(CardQ5_K{});
    case DType::Q6_K:
      return body(CardQ6_K{});
    case DType::IQ4_XS:
      return body(CardIQ4_XS{});
    default:
      return nullptr;
  }
}

}  // namespace
}  // namespace tandem
