// Implements  the tile kernels of IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ1_S, IQ1_M (docs/numerics.md R3).
// When        any width; K a multiple of 256.
// How         tile_driver.h says what a type provides, docs/formats.md where its fields lie, tile_lattice_codes.h how
//             points are looked up and signed. Codes are biased so that they are unsigned with either sign. On AVX-512
//             codes stay where they were looked up, one column of four points to a vector, and activations are brought
//             into that order.
// Measured    see "Static counts" of docs/performance.md: cycles of a block, counted and measured.
#pragma once

#include "cpu/kernels/tile_lattice_codes.h"

namespace tandem {
namespace {

// ---- parts of a block -----------------------------------------------------------------------------------------------

// 2 s + 1 of the low or high nibbles s of 16 bytes.
TANDEM_LATTICE_INLINE F multiplier_of_nibble(const std::uint8_t* p, bool high) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i twice = high ? _mm_srli_epi16(bytes, 3) : _mm_slli_epi16(bytes, 1);
  return Isa::u8(_mm_or_si128(_mm_and_si128(twice, _mm_set1_epi8(30)), _mm_set1_epi8(1)));
}
// 2 s + 1 of the three bits s at `shift` of 16 words of 16 bits.
TANDEM_LATTICE_INLINE F multiplier_of_word(const std::uint8_t* p, int shift) {
  const auto* at = reinterpret_cast<const __m128i*>(p);
  const __m128i places = _mm_cvtsi32_si128(shift), seven = _mm_set1_epi16(7);
  const __m128i a = _mm_and_si128(_mm_srl_epi16(_mm_loadu_si128(at), places), seven);
  const __m128i b = _mm_and_si128(_mm_srl_epi16(_mm_loadu_si128(at + 1), places), seven);
  const __m128i s = _mm_packus_epi16(a, b);
  return Isa::u8(_mm_or_si128(_mm_add_epi8(s, s), _mm_set1_epi8(1)));
}

// ---- types ----------------------------------------------------------------------------------------------------------

// What they share: one scale per segment, d / Divisor; scale bytes after it; then blocks.
template <const LatticeDigits& Lattice, int Halves, int Divisor, std::size_t HeadBytes, std::size_t BlockBytes>
struct LatticeType {
  static constexpr int kHalves = Halves;
  static constexpr bool kMultiplier = true, kOffset = false, kSigned = false;
  static constexpr int kBias = Lattice.bias, kMaxCode = 2 * Lattice.bias;
  static constexpr std::size_t bytes(std::size_t nb) { return HeadBytes + BlockBytes * nb; }
  struct Segment {
    const std::uint8_t *scales, *blocks;
    F scale;
    const LatticeTables& tables;
    Segment(const std::uint8_t* p, std::size_t)
        : scales(p + 32),
          blocks(p + HeadBytes),
          scale(Isa::mul(Isa::half16(p), Isa::fset1(1.0F / Divisor))),
          tables(lattice_tables()) {}
  };
  static F d(const Segment& s, std::size_t) { return s.scale; }
  static const std::uint8_t* block(const Segment& s, std::size_t b) { return s.blocks + BlockBytes * b; }
};

struct TileIQ2_XXS : LatticeType<kIq2Digits, 1, 8, 32, 128>, OctetReorder<1> {
  static F m(const Segment& s, std::size_t b, int) { return multiplier_of_plane(block(s, b) + 64); }
  static TANDEM_LATTICE_INLINE void codes(const Segment& s, std::size_t b, I* out) {
    const std::uint8_t* p = block(s, b);
    signed_octets<kIq2Digits, 1>(s.tables.iq2_xxs, p, no_high(), completed_signs(p + 64), out);
  }
};

// Two multipliers per block, in the nibbles of a scale byte.
template <std::size_t BlockBytes>
struct NibbleScaled : LatticeType<kIq2Digits, 2, 8, 32 + 128, BlockBytes>, OctetReorder<2> {
  using Base = LatticeType<kIq2Digits, 2, 8, 32 + 128, BlockBytes>;
  static F m(const typename Base::Segment& s, std::size_t b, int half) {
    return multiplier_of_nibble(s.scales + 16 * b, half == 1);
  }
};
struct TileIQ2_XS : NibbleScaled<128> {
  static TANDEM_LATTICE_INLINE void codes(const Segment& s, std::size_t b, I* out) {
    const std::uint8_t* p = block(s, b);
    signed_octets<kIq2Digits, 2>(s.tables.iq2_xs, p, high_in_signs(p + 64), completed_signs(p + 64), out);
  }
};
struct TileIQ2_S : NibbleScaled<144> {
  static TANDEM_LATTICE_INLINE void codes(const Segment& s, std::size_t b, I* out) {
    const std::uint8_t* p = block(s, b);
    signed_octets<kIq2Digits, 2>(s.tables.iq2_s, p, high_pairs(p + 128), given_signs(p + 64), out);
  }
};

struct TileIQ3_XXS : LatticeType<kIq3XxsDigits, 1, 4, 32, 192>, QuadReorder {
  static F m(const Segment& s, std::size_t b, int) { return multiplier_of_plane(block(s, b) + 128); }
  static TANDEM_LATTICE_INLINE void codes(const Segment& s, std::size_t b, I* out) {
    const std::uint8_t* p = block(s, b);
    signed_quads<kIq3XxsDigits>(s.tables.iq3_xxs, p, no_high(), completed_signs(p + 128), out);
  }
};
struct TileIQ3_S : LatticeType<kIq3SDigits, 1, 1, 32 + 64, 208>, QuadReorder {
  static F m(const Segment& s, std::size_t b, int) { return multiplier_of_nibble(s.scales + 16 * (b / 2), b % 2 == 1); }
  static TANDEM_LATTICE_INLINE void codes(const Segment& s, std::size_t b, I* out) {
    const std::uint8_t* p = block(s, b);
    signed_quads<kIq3SDigits>(s.tables.iq3_s, p, high_bits(p + 192), given_signs(p + 128), out);
  }
};

struct TileIQ1_S : LatticeType<kIq1Digits, 1, 8, 32, 96> {
  static F m(const Segment& s, std::size_t b, int) { return multiplier_of_word(block(s, b) + 64, 12); }
  static TANDEM_LATTICE_INLINE void codes(const Segment& s, std::size_t b, I* out) {
    const std::uint8_t* p = block(s, b);
    const I word = widen16(p + 64);
    // Four fields of three bits to four bytes, by halves.
    const I half =
        Isa::bit_or(Isa::bit_and(word, Isa::set1(0x3F)), Isa::bit_and(Isa::left<10>(word), Isa::set1(0x003F0000)));
    const I high =
        Isa::bit_or(Isa::bit_and(half, Isa::set1(0x00070007)), Isa::bit_and(Isa::left<5>(half), Isa::set1(0x07000700)));
    octet_codes<kIq1Digits>(s.tables.iq1, p, high, out);
    const I minus = spread_byte<0>(Isa::bit_and(Isa::right<14>(word), Isa::set1(2)));
    for (int g = 0; g < 8; ++g) out[g] = sub_bytes(out[g], minus);
  }
};

struct TileIQ1_M {
  static constexpr int kHalves = 2;
  static constexpr bool kMultiplier = true, kOffset = false, kSigned = false;
  static constexpr int kBias = kIq1Digits.bias, kMaxCode = 2 * kBias;
  static constexpr std::size_t bytes(std::size_t nb) { return 128 + 96 * nb; }
  struct Segment {
    const std::uint8_t *scales, *blocks;
    F scale;
    const LatticeTables& tables;
    Segment(const std::uint8_t* p, std::size_t)
        : scales(p), blocks(p + 128), scale(Isa::mul(gather_halves(p), Isa::fset1(0.125F))), tables(lattice_tables()) {}
    // The top nibbles of a row's four words make a half, lowest first.
    static F gather_halves(const std::uint8_t* p) {
      alignas(32) std::uint8_t halves[32];
      for (int v = 0; v < 2; ++v) {
        const auto* at = reinterpret_cast<const __m128i*>(p + 16 * v);
        const __m128i top = _mm_set1_epi16(static_cast<short>(0xF000));
        const __m128i a = _mm_srli_epi16(_mm_loadu_si128(at), 12);
        const __m128i b = _mm_srli_epi16(_mm_and_si128(_mm_loadu_si128(at + 2), top), 8);
        const __m128i c = _mm_srli_epi16(_mm_and_si128(_mm_loadu_si128(at + 4), top), 4);
        const __m128i d = _mm_and_si128(_mm_loadu_si128(at + 6), top);
        _mm_store_si128(reinterpret_cast<__m128i*>(halves + 16 * v),
                        _mm_or_si128(_mm_or_si128(a, b), _mm_or_si128(c, d)));
      }
      return Isa::half16(halves);
    }
  };
  static F d(const Segment& s, std::size_t) { return s.scale; }
  static F m(const Segment& s, std::size_t b, int half) {
    return multiplier_of_word(s.scales + 32 * (b / 2), static_cast<int>(6 * (b % 2)) + 3 * half);
  }
  template <int O>
  static TANDEM_LATTICE_INLINE void shift_octet(I minus, I* out) {
    const I octet = spread_byte<O>(minus);
    out[2 * O] = sub_bytes(out[2 * O], octet);
    out[2 * O + 1] = sub_bytes(out[2 * O + 1], octet);
  }
  static TANDEM_LATTICE_INLINE void codes(const Segment& s, std::size_t b, I* out) {
    const std::uint8_t* p = s.blocks + 96 * b;
    const I word = widen16(p + 64);
    // Four nibbles to four bytes: three bits of the index, one for the minus.
    const I half =
        Isa::bit_or(Isa::bit_and(word, Isa::set1(0xFF)), Isa::bit_and(Isa::left<8>(word), Isa::set1(0x00FF0000)));
    const I nibbles =
        Isa::bit_or(Isa::bit_and(half, Isa::set1(0x000F000F)), Isa::bit_and(Isa::left<4>(half), Isa::set1(0x0F000F00)));
    octet_codes<kIq1Digits>(s.tables.iq1, p, Isa::bit_and(nibbles, Isa::set1(0x07070707)), out);
    const I minus = Isa::bit_and(Isa::right<2>(nibbles), Isa::set1(0x02020202));
    shift_octet<0>(minus, out);
    shift_octet<1>(minus, out);
    shift_octet<2>(minus, out);
    shift_octet<3>(minus, out);
  }
};

// Type to kernel, for the instruction set of the including file; nullptr for every other type.
inline TileFunction lattice_table(DType type) {
  switch (type) {
    case DType::IQ2_XXS:
      return &tile_entry<TileIQ2_XXS>;
    case DType::IQ2_XS:
      return &tile_entry<TileIQ2_XS>;
    case DType::IQ2_S:
      return &tile_entry<TileIQ2_S>;
    case DType::IQ3_XXS:
      return &tile_entry<TileIQ3_XXS>;
    case DType::IQ3_S:
      return &tile_entry<TileIQ3_S>;
    case DType::IQ1_S:
      return &tile_entry<TileIQ1_S>;
    case DType::IQ1_M:
      return &tile_entry<TileIQ1_M>;
    default:
      return nullptr;
  }
}

}  // namespace
}  // namespace tandem
