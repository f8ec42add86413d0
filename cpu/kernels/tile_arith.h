// Tile kernels of the types whose codes are bit fields: see tile_driver.h for what a type provides, runtime/tile.h for
// the layouts.
#pragma once

#include "cpu/kernels/tile_driver.h"
#include "runtime/quant.h"

namespace tandem {
namespace {

// ---- planes ---------------------------------------------------------------------------------------------------------

inline void plane8(const std::uint8_t* p, I* out) {
  for (int g = 0; g < 8; ++g) out[g] = Isa::from_signed(Isa::load(p + 64 * g));
}
inline void plane4(const std::uint8_t* p, I* out) {
  const I mask = Isa::set1_byte(15);
  for (int g = 0; g < 4; ++g) {
    const I x = Isa::load(p + 64 * g);
    out[g] = Isa::bit_and(x, mask);
    out[g + 4] = Isa::bit_and(Isa::right<4>(x), mask);
  }
}
inline void plane2(const std::uint8_t* p, I* out) {
  const I mask = Isa::set1_byte(3);
  for (int h = 0; h < 2; ++h) {
    const I x = Isa::load(p + 64 * h);
    out[4 * h] = Isa::bit_and(x, mask);
    out[4 * h + 1] = Isa::bit_and(Isa::right<2>(x), mask);
    out[4 * h + 2] = Isa::bit_and(Isa::right<4>(x), mask);
    out[4 * h + 3] = Isa::bit_and(Isa::right<6>(x), mask);
  }
}
// out[g] |= bit g of the plane, as 1 << Bit.
template <int Bit>
inline void or_plane1(const std::uint8_t* p, I* out) {
  const I x = Isa::load(p), mask = Isa::set1_byte(static_cast<std::int8_t>(1 << Bit));
  const auto take = [&]<int G>() {
    I moved = x;
    if constexpr (G > Bit) moved = Isa::right<G - Bit>(x);
    if constexpr (G < Bit) moved = Isa::left<Bit - G>(x);
    out[G] = Isa::bit_or(out[G], Isa::bit_and(moved, mask));
  };
  take.template operator()<0>();
  take.template operator()<1>();
  take.template operator()<2>();
  take.template operator()<3>();
  take.template operator()<4>();
  take.template operator()<5>();
  take.template operator()<6>();
  take.template operator()<7>();
}
// out[g] |= the 2-bit field of a P2 plane, as bits 4 and 5.
inline void or_plane2_high(const std::uint8_t* p, I* out) {
  const I mask = Isa::set1_byte(0x30);
  for (int h = 0; h < 2; ++h) {
    const I x = Isa::load(p + 64 * h);
    out[4 * h] = Isa::bit_or(out[4 * h], Isa::bit_and(Isa::left<4>(x), mask));
    out[4 * h + 1] = Isa::bit_or(out[4 * h + 1], Isa::bit_and(Isa::left<2>(x), mask));
    out[4 * h + 2] = Isa::bit_or(out[4 * h + 2], Isa::bit_and(x, mask));
    out[4 * h + 3] = Isa::bit_or(out[4 * h + 3], Isa::bit_and(Isa::right<2>(x), mask));
  }
}

inline __m128i bytes16(const std::uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

// ---- 32-column formats: f16 d[nb] (and m[nb]), then codes
// --------------------------------------------------------------

template <int CodeBytes, bool Offset>
struct Plain {
  static constexpr int kHalves = 1;
  static constexpr bool kMultiplier = false, kOffset = Offset;
  static constexpr std::size_t bytes(std::size_t nb) { return nb * (CodeBytes + (Offset ? 64 : 32)); }
  struct Segment {
    const std::uint8_t *scales, *offsets, *code;
    Segment(const std::uint8_t* p, std::size_t nb)
        : scales(p), offsets(p + 32 * nb), code(p + (Offset ? 64 : 32) * nb) {}
  };
  static F d(const Segment& s, std::size_t b) { return Isa::half16(s.scales + 32 * b); }
  static F e(const Segment& s, std::size_t b) { return Isa::half16(s.offsets + 32 * b); }
  static const std::uint8_t* block(const Segment& s, std::size_t b) { return s.code + CodeBytes * b; }
};

struct TileQ4_0 : Plain<256, false> {
  static constexpr bool kSigned = false;
  static constexpr int kBias = 8, kMaxCode = 15;
  static void codes(const Segment& s, std::size_t b, I* out) { plane4(block(s, b), out); }
};
struct TileQ4_1 : Plain<256, true> {
  static constexpr bool kSigned = false;
  static constexpr int kBias = 0, kMaxCode = 15;
  static void codes(const Segment& s, std::size_t b, I* out) { plane4(block(s, b), out); }
};
template <bool Offset>
struct TileQ5 : Plain<320, Offset> {
  using Base = Plain<320, Offset>;
  static constexpr bool kSigned = false;
  static constexpr int kBias = Offset ? 0 : 16, kMaxCode = 31;
  static void codes(const typename Base::Segment& s, std::size_t b, I* out) {
    plane4(Base::block(s, b), out);
    or_plane1<4>(Base::block(s, b) + 256, out);
  }
};
using TileQ5_0 = TileQ5<false>;
using TileQ5_1 = TileQ5<true>;
struct TileQ8_0 : Plain<512, false> {
  static constexpr bool kSigned = true;
  static constexpr int kBias = 0, kMaxCode = 128;
  static void codes(const Segment& s, std::size_t b, I* out) { plane8(block(s, b), out); }
};

// The 16 values of IQ4_NL and IQ4_XS; as unsigned codes where signed ones are biased.
alignas(16) inline constexpr std::int8_t kLut4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                      1,    13,   25,  38,  53,  69,  89,  113};
inline void lookup4(const std::uint8_t* p, I* out) {
  const I table = Isa::from_signed(Isa::table16(kLut4));
  plane4(p, out);
  for (int g = 0; g < 8; ++g) out[g] = Isa::lookup(table, out[g]);
}
struct TileIQ4_NL : Plain<256, false> {
  static constexpr bool kSigned = true;
  static constexpr int kBias = 0, kMaxCode = 128;
  static void codes(const Segment& s, std::size_t b, I* out) { lookup4(block(s, b), out); }
};

// FP4 times two, plus 12.
alignas(16) inline constexpr std::int8_t kFp4Plus12[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
struct TileMXFP4 {
  static constexpr int kHalves = 1;
  static constexpr bool kMultiplier = false, kOffset = false, kSigned = false;
  static constexpr int kBias = 12, kMaxCode = 24;
  static constexpr std::size_t bytes(std::size_t nb) { return nb * (256 + 16); }
  struct Segment {
    const std::uint8_t *exponents, *code;
    Segment(const std::uint8_t* p, std::size_t nb) : exponents(p), code(p + 16 * nb) {}
  };
  static F d(const Segment& s, std::size_t b) { return Isa::exp2_minus128(bytes16(s.exponents + 16 * b)); }
  static void codes(const Segment& s, std::size_t b, I* out) {
    const I table = Isa::table16(kFp4Plus12);
    plane4(s.code + 256 * b, out);
    for (int g = 0; g < 8; ++g) out[g] = Isa::lookup(table, out[g]);
  }
};

struct TileQ2_0 {
  static constexpr int kHalves = 1;
  static constexpr bool kMultiplier = false, kOffset = false, kSigned = false;
  static constexpr int kBias = 1, kMaxCode = 3;
  static constexpr std::size_t bytes(std::size_t nb) { return nb * 128 + nb / 2 * 32; }
  struct Segment {
    const std::uint8_t *scales, *code;
    Segment(const std::uint8_t* p, std::size_t nb) : scales(p), code(p + nb / 2 * 32) {}
  };
  static F d(const Segment& s, std::size_t b) { return Isa::half16(s.scales + b / 2 * 32); }
  static void codes(const Segment& s, std::size_t b, I* out) { plane2(s.code + 128 * b, out); }
};

// ---- 256-column formats
// -------------------------------------------------------------------------------------------------

// Q4_K and Q5_K: d, dmin, twelve scale bytes holding eight 6-bit pairs (S, M).
template <int CodeBytes>
struct PairScaled {
  static constexpr int kHalves = 1;
  static constexpr bool kMultiplier = true, kOffset = true, kSigned = false;
  static constexpr int kBias = 0;
  static constexpr std::size_t bytes(std::size_t nb) { return 64 + 192 + nb * CodeBytes; }
  struct Segment {
    const std::uint8_t *p, *code;
    F scale, minus_min;
    Segment(const std::uint8_t* at, std::size_t)
        : p(at + 64),
          code(at + 256),
          scale(Isa::half16(at)),
          minus_min(Isa::mul(Isa::fset1(-1.0F), Isa::half16(at + 32))) {}
  };
  static __m128i low(const Segment& s, std::size_t i) {
    return _mm_and_si128(bytes16(s.p + 16 * i), _mm_set1_epi8(63));
  }
  // Bits 6 and 7 of byte i, moved to bits 4 and 5.
  static __m128i top(const Segment& s, std::size_t i) {
    return _mm_and_si128(_mm_srli_epi16(bytes16(s.p + 16 * i), 2), _mm_set1_epi8(0x30));
  }
  static F d(const Segment& s, std::size_t) { return s.scale; }
  static F e(const Segment& s, std::size_t) { return s.minus_min; }
  static F m(const Segment& s, std::size_t b, int) {
    if (b < 4) return Isa::u8(low(s, b));
    return Isa::u8(_mm_or_si128(_mm_and_si128(bytes16(s.p + 16 * (b + 4)), _mm_set1_epi8(15)), top(s, b - 4)));
  }
  static F n(const Segment& s, std::size_t b, int) {
    if (b < 4) return Isa::u8(low(s, b + 4));
    const __m128i nibble = _mm_and_si128(_mm_srli_epi16(bytes16(s.p + 16 * (b + 4)), 4), _mm_set1_epi8(15));
    return Isa::u8(_mm_or_si128(nibble, top(s, b)));
  }
};
struct TileQ4_K : PairScaled<256> {
  static constexpr int kMaxCode = 15;
  static void codes(const Segment& s, std::size_t b, I* out) { plane4(s.code + 256 * b, out); }
};
struct TileQ5_K : PairScaled<320> {
  static constexpr int kMaxCode = 31;
  static void codes(const Segment& s, std::size_t b, I* out) {
    plane4(s.code + 320 * b, out);
    or_plane1<4>(s.code + 320 * b + 256, out);
  }
};

struct TileQ2_K {
  static constexpr int kHalves = 2;
  static constexpr bool kMultiplier = true, kOffset = true, kSigned = false;
  static constexpr int kBias = 0, kMaxCode = 3;
  static constexpr std::size_t bytes(std::size_t nb) { return 64 + 256 + nb * 128; }
  struct Segment {
    const std::uint8_t *p, *code;
    F scale, minus_min;
    Segment(const std::uint8_t* at, std::size_t)
        : p(at + 64),
          code(at + 320),
          scale(Isa::half16(at)),
          minus_min(Isa::mul(Isa::fset1(-1.0F), Isa::half16(at + 32))) {}
  };
  static F d(const Segment& s, std::size_t) { return s.scale; }
  static F e(const Segment& s, std::size_t) { return s.minus_min; }
  static F m(const Segment& s, std::size_t b, int half) {
    return Isa::u8(_mm_and_si128(bytes16(s.p + 16 * (2 * b + static_cast<std::size_t>(half))), _mm_set1_epi8(15)));
  }
  static F n(const Segment& s, std::size_t b, int half) {
    return Isa::u8(_mm_and_si128(_mm_srli_epi16(bytes16(s.p + 16 * (2 * b + static_cast<std::size_t>(half))), 4),
                                 _mm_set1_epi8(15)));
  }
  static void codes(const Segment& s, std::size_t b, I* out) { plane2(s.code + 128 * b, out); }
};

struct TileQ3_K {
  static constexpr int kHalves = 2;
  static constexpr bool kMultiplier = true, kOffset = false, kSigned = false;
  static constexpr int kBias = 4, kMaxCode = 7;
  static constexpr std::size_t bytes(std::size_t nb) { return 32 + 192 + nb * 192; }
  struct Segment {
    const std::uint8_t *p, *code;
    F scale;
    Segment(const std::uint8_t* at, std::size_t) : p(at + 32), code(at + 224), scale(Isa::half16(at)) {}
  };
  static F d(const Segment& s, std::size_t) { return s.scale; }
  // Scale k: four low bits in byte k mod 8, two high bits in byte 8 + k mod 4 at 2 (k div 4); minus 32.
  static F m(const Segment& s, std::size_t b, int half) {
    const std::size_t k = 2 * b + static_cast<std::size_t>(half);
    const __m128i nibbles = bytes16(s.p + 16 * (k % 8)), pairs = bytes16(s.p + 16 * (8 + k % 4));
    const __m128i low = _mm_and_si128(k < 8 ? nibbles : _mm_srli_epi16(nibbles, 4), _mm_set1_epi8(15));
    const __m128i pair =
        _mm_and_si128(_mm_srl_epi16(pairs, _mm_cvtsi32_si128(static_cast<int>(2 * (k / 4)))), _mm_set1_epi8(3));
    return Isa::i8(_mm_sub_epi8(_mm_or_si128(low, _mm_slli_epi16(pair, 4)), _mm_set1_epi8(32)));
  }
  static void codes(const Segment& s, std::size_t b, I* out) {
    plane2(s.code + 192 * b, out);
    or_plane1<2>(s.code + 192 * b + 128, out);
  }
};

struct TileQ6_K {
  static constexpr int kHalves = 2;
  static constexpr bool kMultiplier = true, kOffset = false, kSigned = false;
  static constexpr int kBias = 32, kMaxCode = 63;
  static constexpr std::size_t bytes(std::size_t nb) { return 32 + 256 + nb * 384; }
  struct Segment {
    const std::uint8_t *p, *code;
    F scale;
    Segment(const std::uint8_t* at, std::size_t) : p(at + 32), code(at + 288), scale(Isa::half16(at)) {}
  };
  static F d(const Segment& s, std::size_t) { return s.scale; }
  static F m(const Segment& s, std::size_t b, int half) {
    return Isa::i8(bytes16(s.p + 16 * (2 * b + static_cast<std::size_t>(half))));
  }
  static void codes(const Segment& s, std::size_t b, I* out) {
    plane4(s.code + 384 * b, out);
    or_plane2_high(s.code + 384 * b + 256, out);
  }
};

struct TileIQ4_XS {
  static constexpr int kHalves = 1;
  static constexpr bool kMultiplier = true, kOffset = false, kSigned = true;
  static constexpr int kBias = 0, kMaxCode = 128;
  static constexpr std::size_t bytes(std::size_t nb) { return 32 + 32 + 64 + nb * 256; }
  struct Segment {
    const std::uint8_t *p, *code;
    F scale;
    __m128i high_low, high_high;  // scales_h of blocks 0-3 and of blocks 4-7, one byte per row
    Segment(const std::uint8_t* at, std::size_t) : p(at + 64), code(at + 128), scale(Isa::half16(at)) {
      const __m128i a = bytes16(at + 32), b = bytes16(at + 48), low = _mm_set1_epi16(255);
      high_low = _mm_packus_epi16(_mm_and_si128(a, low), _mm_and_si128(b, low));
      high_high = _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8));
    }
  };
  static F d(const Segment& s, std::size_t) { return s.scale; }
  static F m(const Segment& s, std::size_t b, int) {
    const __m128i nibbles = bytes16(s.p + 16 * (b / 2));
    const __m128i low = _mm_and_si128(b % 2 == 0 ? nibbles : _mm_srli_epi16(nibbles, 4), _mm_set1_epi8(15));
    const __m128i pairs = b < 4 ? s.high_low : s.high_high;
    const __m128i pair =
        _mm_and_si128(_mm_srl_epi16(pairs, _mm_cvtsi32_si128(static_cast<int>(2 * (b % 4)))), _mm_set1_epi8(3));
    return Isa::i8(_mm_sub_epi8(_mm_or_si128(low, _mm_slli_epi16(pair, 4)), _mm_set1_epi8(32)));
  }
  static void codes(const Segment& s, std::size_t b, I* out) { lookup4(s.code + 256 * b, out); }
};

}  // namespace
}  // namespace tandem
