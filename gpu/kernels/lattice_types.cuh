// The lattice types as the card reads them: see tile_types.cuh for what a type provides, docs/formats.md for the
// fields. The codes of a point of four columns are a word of a table in shared memory. Of a point of eight columns the
// table has selectors, and one byte permutation makes four codes: half the traffic of a table of codes.
#pragma once

#include "gpu/kernels/tile_types.cuh"

namespace tandem {
namespace {

// ---- parts of a block -----------------------------------------------------------------------------------------------

// Negates the bytes of `codes` where bit `bit` of a byte of `signs` is set. REQUIRES 0 < codes < 128. A permutation
// spreads the top bit of a byte over it; no byte of the difference borrows from the next. Minus one is one() - 2: the
// compiler makes of 0 - one() a negation of its own.
__device__ __forceinline__ std::uint32_t with_signs(std::uint32_t codes, std::uint32_t signs, int bit) {
  const std::uint32_t minus = permute(signs << (7 - bit), 0U, 0xBA98U), negated = codes * (one() - 2U) + 0x01010100U;
  return (codes & ~minus) | (negated & minus);
}
// In the sign plane of IQ2_XXS, IQ2_XS and IQ3_XXS bits 1, 3, 5, 7 of a row's last byte are something else; the signs
// that belong there make the number of signs in an octet (bits 2o and 2o + 1 of all four bytes) even.
constexpr std::uint32_t kImplied = 0xAA000000U;
__device__ __forceinline__ std::uint32_t complete_signs(std::uint32_t plane) {
  const std::uint32_t given = plane & ~kImplied;
  std::uint32_t odd = given ^ (given << 16);
  odd ^= odd << 8;
  odd ^= odd << 1;
  return given | (odd & kImplied);
}
// 2 s + 1 of the 4-bit scale s that has those places.
__device__ __forceinline__ int multiplier_of_plane(std::uint32_t plane) {
  std::uint32_t x = (plane >> 25) & 0x55U;
  x = (x | x >> 1) & 0x33U;
  x = (x | x >> 2) & 0x0FU;
  return static_cast<int>(2 * x + 1);
}
// The same as a float: the bits weighed by one dot product, on top of those of 1.5 * 2^20, whose last place is an
// eighth.
__device__ __forceinline__ float multiplier_float(std::uint32_t plane) {
  const std::uint32_t bits = permute(plane, 0U, 0x3333U) & 0x80200802U;
  return __uint_as_float(__dp4a(bits, 0x01020408U, 0x49C00008U)) - 1572864.0F;
}
// 2 s + 1 of the nibbles s of two bytes.
__device__ __forceinline__ IntPair multiplier_of_nibbles(std::uint32_t pair, bool high) {
  const std::uint32_t twice = high ? pair >> 3 : pair << 1;
  return unsigned_bytes((twice & 0x1E1EU) | 0x0101U);
}

// Eight codes of two digits per code: the first four, and the last.
struct Octet {
  std::uint32_t low, high;
};
__device__ __forceinline__ Octet octet_of(std::uint32_t selectors, std::uint32_t values) {
  return {permute(values, 0U, selectors), permute(values, 0U, selectors >> 16)};
}
constexpr std::uint32_t kIq2Values = 0x002B1908U;  // 8, 25, 43

__device__ __forceinline__ std::uint32_t byte_of(std::uint32_t w, int t) {
  return permute(w, 0U, 0x4440U + static_cast<unsigned>(t));
}
// table[index], see one().
__device__ __forceinline__ std::uint32_t entry(const std::uint32_t* table, std::uint32_t index) {
  return *reinterpret_cast<const std::uint32_t*>(reinterpret_cast<const std::uint8_t*>(table) + index * (4U * one()));
}

// f16 d times 1 / Divisor.
template <int Divisor>
struct DividedHead {
  FloatPair scale;
  template <class Lane>
  __device__ __forceinline__ DividedHead(const std::uint8_t* s, int, const Lane& l) : scale(halves(l, s)) {
    constexpr float kFactor = 1.0F / Divisor;
    scale = {scale.x * kFactor, scale.y * kFactor};
  }
};
template <int HeadBytes, int CodeBytes, int Divisor, int Halves, int Table, bool Octets>
struct LatticeType : WideType<HeadBytes, CodeBytes> {
  static constexpr int kHalves = Halves, kBias = 0, kTable = Table;
  static constexpr bool kOctets = Octets;
  using Head = DividedHead<Divisor>;
  template <class Lane>
  static __device__ __forceinline__ FloatPair d(const Head& h, const std::uint8_t*, int, int, const Lane&) {
    return h.scale;
  }
};

// ---- types ----------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void iq2_codes(std::uint32_t index0, std::uint32_t index1, std::uint32_t signs0,
                                          std::uint32_t signs1, int t, const std::uint32_t* table, std::uint32_t* a) {
  const Octet x = octet_of(entry(table, index0), kIq2Values), y = octet_of(entry(table, index1), kIq2Values);
  a[0] = with_signs(x.low, signs0, 2 * t);
  a[1] = with_signs(y.low, signs1, 2 * t);
  a[2] = with_signs(x.high, signs0, 2 * t + 1);
  a[3] = with_signs(y.high, signs1, 2 * t + 1);
}

// One octet of one row.
__device__ __forceinline__ void iq2_row(std::uint32_t index, std::uint32_t signs, int o, const std::uint32_t* table,
                                        std::uint32_t* c) {
  const Octet x = octet_of(entry(table, index), kIq2Values);
  c[2 * o] = with_signs(x.low, signs, 2 * o);
  c[2 * o + 1] = with_signs(x.high, signs, 2 * o + 1);
}

struct CardIQ2_XXS : LatticeType<32, 128, 8, 1, 256, true> {
  template <class Lane>
  static __device__ __forceinline__ IntPair m(const Head&, const std::uint8_t* s, int nb, int b, const Lane& l, int) {
    const uint2 plane = l.ints(block(s, nb, b) + 64);
    return {multiplier_of_plane(plane.x), multiplier_of_plane(plane.y)};
  }
  static constexpr bool kFloatMultiplier = true;
  static __device__ __forceinline__ float row_multiplier(const std::uint8_t* s, int nb, int b, int r) {
    return multiplier_float(word(block(s, nb, b) + 64 + 4 * r));
  }
  static __device__ __forceinline__ void codes(const std::uint8_t* p, int g, int t, const std::uint32_t* table,
                                               std::uint32_t* a) {
    const uint2 low = words(p + 8 * g), plane = words(p + 64 + 8 * g);
    iq2_codes(byte_of(low.x, t), byte_of(low.y, t), complete_signs(plane.x), complete_signs(plane.y), t, table, a);
  }
  static __device__ __forceinline__ void row_codes(const std::uint8_t* p, int r, const std::uint32_t* table,
                                                   std::uint32_t* c) {
    const std::uint32_t low = word(p + 4 * r), plane = complete_signs(word(p + 64 + 4 * r));
#pragma unroll
    for (int o = 0; o < 4; ++o) iq2_row(byte_of(low, o), plane, o, table, c);
  }
};
// Two multipliers per block, in the nibbles of a byte.
template <int CodeBytes, int Table>
struct NibbleScaledType : LatticeType<32 + 128, CodeBytes, 8, 2, Table, true> {
  template <class Lane>
  static __device__ __forceinline__ IntPair m(const DividedHead<8>&, const std::uint8_t* s, int, int b, const Lane& l,
                                              int half) {
    return multiplier_of_nibbles(l.bytes(s + 32 + 16 * b), half == 1);
  }
};
struct CardIQ2_XS : NibbleScaledType<128, 512> {
  static __device__ __forceinline__ void codes(const std::uint8_t* p, int g, int t, const std::uint32_t* table,
                                               std::uint32_t* a) {
    const uint2 low = words(p + 8 * g), plane = words(p + 64 + 8 * g);
    // Bit 8 of the index of octet o is bit 25 + 2o of the plane.
    const std::uint32_t high0 = (plane.x >> (25 + 2 * t)) & 1U, high1 = (plane.y >> (25 + 2 * t)) & 1U;
    iq2_codes(byte_of(low.x, t) | high0 << 8, byte_of(low.y, t) | high1 << 8, complete_signs(plane.x),
              complete_signs(plane.y), t, table, a);
  }
  static __device__ __forceinline__ void row_codes(const std::uint8_t* p, int r, const std::uint32_t* table,
                                                   std::uint32_t* c) {
    const std::uint32_t low = word(p + 4 * r), given = word(p + 64 + 4 * r), plane = complete_signs(given);
#pragma unroll
    for (int o = 0; o < 4; ++o) iq2_row(byte_of(low, o) | (given >> (25 + 2 * o) & 1U) << 8, plane, o, table, c);
  }
};
struct CardIQ2_S : NibbleScaledType<144, 1024> {
  static __device__ __forceinline__ void codes(const std::uint8_t* p, int g, int t, const std::uint32_t* table,
                                               std::uint32_t* a) {
    const uint2 low = words(p + 8 * g), plane = words(p + 64 + 8 * g);
    const std::uint32_t high = byte_pair(p + 128 + 2 * g) >> (2 * t);
    iq2_codes(byte_of(low.x, t) | (high & 3U) << 8, byte_of(low.y, t) | (high >> 8 & 3U) << 8, plane.x, plane.y, t,
              table, a);
  }
  static __device__ __forceinline__ void row_codes(const std::uint8_t* p, int r, const std::uint32_t* table,
                                                   std::uint32_t* c) {
    const std::uint32_t low = word(p + 4 * r), plane = word(p + 64 + 4 * r), high = p[128 + r];
#pragma unroll
    for (int o = 0; o < 4; ++o) iq2_row(byte_of(low, o) | (high >> (2 * o) & 3U) << 8, plane, o, table, c);
  }
};

__device__ __forceinline__ void quad_signs(uint2 plane, int t, std::uint32_t* a) {
  a[0] = with_signs(a[0], plane.x, t);
  a[1] = with_signs(a[1], plane.y, t);
  a[2] = with_signs(a[2], plane.x, 4 + t);
  a[3] = with_signs(a[3], plane.y, 4 + t);
}
struct CardIQ3_XXS : LatticeType<32, 192, 4, 1, 256, false> {
  template <class Lane>
  static __device__ __forceinline__ IntPair m(const Head&, const std::uint8_t* s, int nb, int b, const Lane& l, int) {
    const uint2 plane = l.ints(block(s, nb, b) + 128);
    return {multiplier_of_plane(plane.x), multiplier_of_plane(plane.y)};
  }
  static constexpr bool kFloatMultiplier = true;
  static __device__ __forceinline__ float row_multiplier(const std::uint8_t* s, int nb, int b, int r) {
    return multiplier_float(word(block(s, nb, b) + 128 + 4 * r));
  }
  static __device__ __forceinline__ void codes(const std::uint8_t* p, int g, int t, const std::uint32_t* table,
                                               std::uint32_t* a) {
    const uint2 first = words(p + 8 * g), second = words(p + 64 + 8 * g), plane = words(p + 128 + 8 * g);
    a[0] = table[byte_of(first.x, t)];
    a[1] = table[byte_of(first.y, t)];
    a[2] = table[byte_of(second.x, t)];
    a[3] = table[byte_of(second.y, t)];
    quad_signs(make_uint2(complete_signs(plane.x), complete_signs(plane.y)), t, a);
  }
  static __device__ __forceinline__ void row_codes(const std::uint8_t* p, int r, const std::uint32_t* table,
                                                   std::uint32_t* c) {
    const std::uint32_t plane = complete_signs(word(p + 128 + 4 * r));
    const std::uint32_t index[2] = {word(p + 4 * r), word(p + 64 + 4 * r)};
#pragma unroll
    for (int q = 0; q < 8; ++q) c[q] = with_signs(entry(table, byte_of(index[q / 4], q % 4)), plane, q);
  }
};
struct CardIQ3_S : LatticeType<32 + 64, 208, 1, 1, 512, false> {
  template <class Lane>
  static __device__ __forceinline__ IntPair m(const Head&, const std::uint8_t* s, int, int b, const Lane& l, int) {
    return multiplier_of_nibbles(l.bytes(s + 32 + 16 * (b / 2)), b % 2 == 1);
  }
  static __device__ __forceinline__ void codes(const std::uint8_t* p, int g, int t, const std::uint32_t* table,
                                               std::uint32_t* a) {
    const uint2 first = words(p + 8 * g), second = words(p + 64 + 8 * g), plane = words(p + 128 + 8 * g);
    const std::uint32_t high = byte_pair(p + 192 + 2 * g) >> t;  // bit q of a row's byte: bit 8 of its index q
    a[0] = entry(table, byte_of(first.x, t) | (high & 1U) << 8);
    a[1] = entry(table, byte_of(first.y, t) | (high >> 8 & 1U) << 8);
    a[2] = entry(table, byte_of(second.x, t) | (high >> 4 & 1U) << 8);
    a[3] = entry(table, byte_of(second.y, t) | (high >> 12 & 1U) << 8);
    quad_signs(plane, t, a);
  }
  static __device__ __forceinline__ void row_codes(const std::uint8_t* p, int r, const std::uint32_t* table,
                                                   std::uint32_t* c) {
    const std::uint32_t plane = word(p + 128 + 4 * r), high = p[192 + r];
    const std::uint32_t low[2] = {word(p + 4 * r), word(p + 64 + 4 * r)};
#pragma unroll
    for (int q = 0; q < 8; ++q)
      c[q] = with_signs(entry(table, byte_of(low[q / 4], q % 4) | (high >> q & 1U) << 8), plane, q);
  }
};

// 8 g + 1 for g = -1, 0, 1; or 8 g - 1.
__device__ __forceinline__ std::uint32_t iq1_values(bool minus) {
  return minus ? 0x0007FFF7U : 0x000901F9U;
}
__device__ __forceinline__ void iq1_codes(std::uint32_t index0, std::uint32_t index1, bool minus0, bool minus1,
                                          const std::uint32_t* table, std::uint32_t* a) {
  const Octet x = octet_of(entry(table, index0), iq1_values(minus0)),
              y = octet_of(entry(table, index1), iq1_values(minus1));
  a[0] = x.low;
  a[1] = y.low;
  a[2] = x.high;
  a[3] = y.high;
}
struct CardIQ1_S : LatticeType<32, 96, 8, 1, 2048, true> {
  template <class Lane>
  static __device__ __forceinline__ IntPair m(const Head&, const std::uint8_t* s, int nb, int b, const Lane& l, int) {
    const std::uint32_t pair = l.shorts(block(s, nb, b) + 64);
    return {static_cast<int>(2 * (pair >> 12 & 7U) + 1), static_cast<int>(2 * (pair >> 28 & 7U) + 1)};
  }
  static __device__ __forceinline__ void codes(const std::uint8_t* p, int g, int t, const std::uint32_t* table,
                                               std::uint32_t* a) {
    const uint2 low = words(p + 8 * g);
    const std::uint32_t pair = word(p + 64 + 4 * g);
    const std::uint32_t high0 = (pair >> (3 * t)) & 7U, high1 = (pair >> (16 + 3 * t)) & 7U;
    iq1_codes(byte_of(low.x, t) | high0 << 8, byte_of(low.y, t) | high1 << 8, (pair >> 15 & 1U) != 0, pair >> 31 != 0,
              table, a);
  }
  static __device__ __forceinline__ void row_codes(const std::uint8_t* p, int r, const std::uint32_t* table,
                                                   std::uint32_t* c) {
    const std::uint32_t low = word(p + 4 * r), high = byte_pair(p + 64 + 2 * r);
    const std::uint32_t values = iq1_values((high & 0x8000U) != 0);
#pragma unroll
    for (int o = 0; o < 4; ++o) {
      const Octet x = octet_of(entry(table, byte_of(low, o) | (high >> (3 * o) & 7U) << 8), values);
      c[2 * o] = x.low;
      c[2 * o + 1] = x.high;
    }
  }
};
struct CardIQ1_M : WideType<128, 96> {
  static constexpr int kHalves = 2, kBias = 0, kTable = 2048;
  static constexpr bool kOctets = true;
  struct Head {
    FloatPair scale;
    // The top nibbles of a row's four words make a half, lowest first.
    template <class Lane>
    __device__ __forceinline__ Head(const std::uint8_t* s, int, const Lane& l) {
      std::uint32_t bits = (l.shorts(s) >> 12) & 0x000F000FU;
      bits |= (l.shorts(s + 32) >> 8) & 0x00F000F0U;
      bits |= (l.shorts(s + 64) >> 4) & 0x0F000F00U;
      bits |= l.shorts(s + 96) & 0xF000F000U;
      const FloatPair v = half_pair(bits);
      scale = {v.x * 0.125F, v.y * 0.125F};
    }
  };
  template <class Lane>
  static __device__ __forceinline__ FloatPair d(const Head& h, const std::uint8_t*, int, int, const Lane&) {
    return h.scale;
  }
  template <class Lane>
  static __device__ __forceinline__ IntPair m(const Head&, const std::uint8_t* s, int, int b, const Lane& l, int half) {
    const std::uint32_t pair = l.shorts(s + 32 * (b / 2)) >> (6 * (b % 2) + 3 * half);
    return {static_cast<int>(2 * (pair & 7U) + 1), static_cast<int>(2 * (pair >> 16 & 7U) + 1)};
  }
  static __device__ __forceinline__ void codes(const std::uint8_t* p, int g, int t, const std::uint32_t* table,
                                               std::uint32_t* a) {
    const uint2 low = words(p + 8 * g);
    const std::uint32_t pair = word(p + 64 + 4 * g) >> (4 * t);  // nibble t: three bits of the index, one for the minus
    iq1_codes(byte_of(low.x, t) | (pair & 7U) << 8, byte_of(low.y, t) | (pair >> 16 & 7U) << 8, (pair >> 3 & 1U) != 0,
              (pair >> 19 & 1U) != 0, table, a);
  }
  static __device__ __forceinline__ void row_codes(const std::uint8_t* p, int r, const std::uint32_t* table,
                                                   std::uint32_t* c) {
    const std::uint32_t low = word(p + 4 * r), high = byte_pair(p + 64 + 2 * r);
#pragma unroll
    for (int o = 0; o < 4; ++o) {
      const std::uint32_t nibble = high >> (4 * o);
      const Octet x = octet_of(entry(table, byte_of(low, o) | (nibble & 7U) << 8), iq1_values((nibble & 8U) != 0));
      c[2 * o] = x.low;
      c[2 * o + 1] = x.high;
    }
  }
};

// body(Card type{}) for the lattice types; null for others.
template <class Body>
auto for_lattice_type(DType type, Body&& body) -> decltype(body(CardIQ2_XXS{})) {
  switch (type) {
    case DType::IQ2_XXS:
      return body(CardIQ2_XXS{});
    case DType::IQ2_XS:
      return body(CardIQ2_XS{});
    case DType::IQ2_S:
      return body(CardIQ2_S{});
    case DType::IQ3_XXS:
      return body(CardIQ3_XXS{});
    case DType::IQ3_S:
      return body(CardIQ3_S{});
    case DType::IQ1_S:
      return body(CardIQ1_S{});
    case DType::IQ1_M:
      return body(CardIQ1_M{});
    default:
      return nullptr;
  }
}

}  // namespace
}  // namespace tandem
