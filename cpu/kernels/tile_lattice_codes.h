// Lattice points to code vectors, in the instruction set of the including file. The functions, for one block of 32
// columns of 16 rows:
//   octet_codes(table, low, high, out)   points of 8 columns: index low[4 r + o] + 256 * byte o of lane r of `high`
// out[g] has the biased codes of columns 4g .. 4g+3 of a row in the four bytes of its lane, all with plus signs.
// `high` is not looked at when the table has 256 entries. And the same with signs:
//   signed_octets(table, low, high, signs, out)         points of 8 columns
//   signed_quads(table, low, high, signs, out)          points of 4 columns: low[64 h + 4 r + q], quad 4h + q
// where `high` is one of no_high(), high_in_signs(plane), high_pairs(bytes), high_bits(bytes), and `signs` is
// given_signs(plane) or completed_signs(plane). On AVX-512 these leave codes in another order of columns; QuadReorder
// and OctetReorder bring activations into it (tile_driver.h).
#pragma once

#include <initializer_list>
#include <type_traits>

#include "cpu/kernels/lattice_tables.h"
#include "cpu/kernels/tile_driver.h"
#include "runtime/quant_decode.h"

namespace tandem {
namespace {

#define TANDEM_LATTICE_INLINE inline __attribute__((always_inline))

#if defined(TANDEM_TILE_AVX512)

TANDEM_LATTICE_INLINE I bit_xor(I a, I b) {
  return _mm512_xor_si512(a, b);
}
TANDEM_LATTICE_INLINE I sub_bytes(I a, I b) {
  return _mm512_sub_epi8(a, b);
}
TANDEM_LATTICE_INLINE I widen8(const std::uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
TANDEM_LATTICE_INLINE I widen16(const std::uint8_t* p) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
template <int Byte>
TANDEM_LATTICE_INLINE I spread_byte(I x) {
  return _mm512_shuffle_epi8(x, _mm512_set4_epi32(0x0C0C0C0C + 0x01010101 * Byte, 0x08080808 + 0x01010101 * Byte,
                                                  0x04040404 + 0x01010101 * Byte, 0x01010101 * Byte));
}

// What chooses among tables of 64 bytes, the most that one permute looks up: a mask per bit of the index from bit 6.
struct Chosen {
  __mmask64 bit6, bit7, both;
  __mmask64 high[3];  // bits 8, 9, 10
  TANDEM_LATTICE_INLINE explicit Chosen(__m512i low)
      : bit6(_mm512_test_epi8_mask(low, _mm512_set1_epi8(0x40))),
        bit7(_mm512_movepi8_mask(low)),
        both(_kand_mask64(bit6, bit7)) {}
};
// 64 look-ups in `Count` bytes: a permute each 64 bytes, which takes the six low bits of an index. Masked permutes are
// one operation where permutes of two tables are three (Golden Cove), but two where those are one (Zen 4), which counts
// most in the largest tables.
template <std::size_t Count, bool Pairs = (Count >= 1024)>
TANDEM_LATTICE_INLINE __m512i look_up(const std::uint8_t* table, __m512i index, const Chosen& chosen) {
  if constexpr (Count == 128) {
    return _mm512_permutex2var_epi8(_mm512_load_si512(table), index, _mm512_load_si512(table + 64));
  } else if constexpr (Count == 256 && !Pairs) {
    __m512i out = _mm512_permutexvar_epi8(index, _mm512_load_si512(table));
    out = _mm512_mask_permutexvar_epi8(out, chosen.bit6, index, _mm512_load_si512(table + 64));
    out = _mm512_mask_permutexvar_epi8(out, chosen.bit7, index, _mm512_load_si512(table + 128));
    return _mm512_mask_permutexvar_epi8(out, chosen.both, index, _mm512_load_si512(table + 192));
  } else {
    const __mmask64 upper = Count == 256 ? chosen.bit7 : chosen.high[Count == 2048 ? 2 : Count == 1024 ? 1 : 0];
    return _mm512_mask_blend_epi8(upper, look_up<Count / 2, Pairs>(table, index, chosen),
                                  look_up<Count / 2, Pairs>(table + Count / 2, index, chosen));
  }
}

// Masks of the bits 8 and 9 of a block's 64 indices.
struct High {
  __mmask64 bit[2];
};
TANDEM_LATTICE_INLINE High no_high() {
  return {{0, 0}};
}
// Byte k of every qword of a mask of single bits.
constexpr long long eight_bytes(std::initializer_list<int> bytes) {
  unsigned long long all = 0;
  int k = 0;
  for (const int byte : bytes) all |= static_cast<unsigned long long>(byte) << (8 * k++);
  return static_cast<long long>(all);
}
// Bit 8 of the index of octet o of a row in bit 2o + 1 of the last byte of its lane.
TANDEM_LATTICE_INLINE High high_in_signs(const std::uint8_t* plane) {
  const __m512i last = spread_byte<3>(_mm512_loadu_si512(plane));
  return {{_mm512_test_epi8_mask(last, _mm512_set1_epi32(static_cast<int>(0x80200802U))), 0}};
}
// One byte of each row to the four bytes of its lane.
TANDEM_LATTICE_INLINE __m512i row_bytes_spread(const std::uint8_t* p) {
  const __m512i all = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m512i rows =
      _mm512_setr_epi32(0, 0x01010101, 0x02020202, 0x03030303, 0x04040404, 0x05050505, 0x06060606, 0x07070707,
                        0x08080808, 0x09090909, 0x0A0A0A0A, 0x0B0B0B0B, 0x0C0C0C0C, 0x0D0D0D0D, 0x0E0E0E0E, 0x0F0F0F0F);
  return _mm512_shuffle_epi8(all, rows);
}
// Bits 8 and 9 of the index of octet o in bits 2o and 2o + 1 of a row's byte.
TANDEM_LATTICE_INLINE High high_pairs(const std::uint8_t* p) {
  const __m512i bytes = row_bytes_spread(p);
  return {{_mm512_test_epi8_mask(bytes, _mm512_set1_epi32(0x40100401)),
           _mm512_test_epi8_mask(bytes, _mm512_set1_epi32(static_cast<int>(0x80200802U)))}};
}
// Bit 8 of the index of quad q in bit q of a row's byte: of quads 0 to 3, and of 4 to 7.
TANDEM_LATTICE_INLINE High high_bits(const std::uint8_t* p) {
  const __m512i bytes = row_bytes_spread(p);
  return {{_mm512_test_epi8_mask(bytes, _mm512_set1_epi32(0x08040201)),
           _mm512_test_epi8_mask(bytes, _mm512_set1_epi32(static_cast<int>(0x80402010U)))}};
}

// A plane of signs turned on its side: a byte for each group g of four columns, of two rows each. Of byte g of a qword
// bits 7, 6, 5, 4 are the signs of columns 4g .. 4g + 3 of the even row, bits 3, 2, 1, 0 of the odd one. The affine
// instruction does it with the data as the matrix: bit i of its result is the parity of byte 7 - i of the matrix at the
// places of a byte of the operand.
using Signs = __m512i;
TANDEM_LATTICE_INLINE Signs given_signs(const std::uint8_t* plane) {
  const __m512i groups = _mm512_set1_epi64(eight_bytes({1, 2, 4, 8, 16, 32, 64, 128}));
  return _mm512_gf2p8affine_epi64_epi8(groups, _mm512_loadu_si512(plane), 0);
}
// Where the last sign of an octet is not given, what stands in its place is made the parity of the other seven.
TANDEM_LATTICE_INLINE Signs completed_signs(const std::uint8_t* plane) {
  const __m512i octets = _mm512_set1_epi64(eight_bytes({0, 3, 0, 3 << 2, 0, 3 << 4, 0, 3 << 6}));
  const __m512i columns = _mm512_gf2p8affine_epi64_epi8(octets, _mm512_loadu_si512(plane), 0);
  const __m512i parity = _mm512_set1_epi64(eight_bytes({0, 0, 0, 0xF0, 0, 0, 0, 0x0F}));  // to bits 4 and 0
  return bit_xor(given_signs(plane), _mm512_gf2p8affine_epi64_epi8(columns, parity, 0));
}
// The four signs of a group of columns, last column first, to bits At .. At + 3 of each byte; what is in the other bits
// does not matter. Byte i of a row's lane gets group First + Step * i, of a lane of pairs First + Step * (i % 2) + i
// / 2.
template <int At, int First, int Step, bool Pairs>
TANDEM_LATTICE_INLINE __m512i place_signs(Signs signs) {
  unsigned long long from = 0;
  for (int k = 0; k < 8; ++k) {
    const int i = k % 4, group = Pairs ? First + Step * (i % 2) + i / 2 : First + Step * i;
    from |= static_cast<unsigned long long>((8 * group + (k < 4 ? 4 : 0) - At) & 63) << (8 * k);
  }
  return _mm512_multishift_epi64_epi8(_mm512_set1_epi64(static_cast<long long>(from)), signs);
}
// The codes of the digit at bit DigitAt of an index of six bits, with the sign at bit SignAt.
template <const LatticeDigits& Lattice, int DigitAt, int SignAt>
struct alignas(64) SignedCodes {
  std::uint8_t entry[64];
  constexpr SignedCodes() : entry() {
    for (int i = 0; i < 64; ++i) {
      const int code = Lattice.codes[i >> DigitAt & ((1 << Lattice.bits) - 1)];
      entry[i] = static_cast<std::uint8_t>((i >> SignAt & 1) != 0 ? 2 * Lattice.bias - code : code);
    }
  }
};
// Digits where Keep has ones, signs elsewhere; then the code.
template <const LatticeDigits& Lattice, int DigitAt, int SignAt>
TANDEM_LATTICE_INLINE __m512i signed_codes(__m512i digits, __m512i signs) {
  const __m512i keep = _mm512_set1_epi8(static_cast<char>(((1 << Lattice.bits) - 1) << DigitAt));
  const __m512i index = _mm512_ternarylogic_epi32(keep, digits, signs, 0xCA);
  if constexpr (Lattice.bias == 16) {
    // 16 + (2 digit + 1) and 16 - (2 digit + 1) are bits: 1 ddd 1 and 0 ~d~d~d 1. The affine instruction makes them on
    // the port that permutes do not use (Golden Cove).
    constexpr int kSign = 1 << SignAt, kDigit = 1 << DigitAt;
    const __m512i matrix =
        _mm512_set1_epi64(eight_bytes({0, 0, 0, kSign, kDigit << 2 | kSign, kDigit << 1 | kSign, kDigit | kSign, 0}));
    return _mm512_gf2p8affine_epi64_epi8(index, matrix, 0x11);
  } else {
    static constexpr SignedCodes<Lattice, DigitAt, SignAt> kCodes;
    return _mm512_permutexvar_epi8(index, _mm512_load_si512(kCodes.entry));
  }
}

// Bit positions in the eight bytes of two rows: byte k of a row's lane takes those from at + step * k of that row.
constexpr long long two_rows(int at, int step) {
  unsigned long long positions = 0;
  for (int k = 0; k < 8; ++k)
    positions |= static_cast<unsigned long long>((at + step * (k % 4) + 32 * (k / 4)) & 63) << (8 * k);
  return static_cast<long long>(positions);
}
// The codes of a digit vector; a byte permute looks at the six low bits of a byte, of which only the lowest are the
// digit.
TANDEM_LATTICE_INLINE __m512i code_map(const LatticeDigits& lattice) {
  long long codes;
  std::int8_t bytes[8];
  for (int i = 0; i < 8; ++i) bytes[i] = lattice.codes[lattice.bits == 2 ? i % 4 : i];
  __builtin_memcpy(&codes, bytes, sizeof codes);
  return _mm512_set1_epi64(codes);
}

template <int O>
TANDEM_LATTICE_INLINE void octet(const __m512i (&digits)[2], __m512i map, I* out) {
  const __m512i positions = _mm512_set1_epi64(two_rows(8 * O, 2));
  out[2 * O] = _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(positions, digits[0]), map);
  out[2 * O + 1] = _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(positions, digits[1]), map);
}
template <const LatticeDigits& Lattice, class Table>
TANDEM_LATTICE_INLINE void octet_codes(const Table& table, const std::uint8_t* low, I high, I* out) {
  const __m512i index = _mm512_loadu_si512(low);
  Chosen chosen(index);
  for (int bit = 0; bit < 3; ++bit)
    chosen.high[bit] = _mm512_test_epi8_mask(high, _mm512_set1_epi8(static_cast<char>(1 << bit)));
  const __m512i digits[2] = {look_up<Table::kCount>(table.digits[0], index, chosen),
                             look_up<Table::kCount>(table.digits[1], index, chosen)};
  const __m512i map = code_map(Lattice);
  octet<0>(digits, map, out);
  octet<1>(digits, map, out);
  octet<2>(digits, map, out);
  octet<3>(digits, map, out);
}

// Codes stay where their digits were looked up: byte i of a row's lane is point i, so a vector holds one column of four
// points, and activations have to come in that order.
// Byte 4 v + i of a vector's columns meets byte i of code vector v.
struct ColumnOrder {
  std::uint8_t from[64];
};
inline constexpr ColumnOrder kQuadOrder = [] {  // vector 4 h + c: column c of quads 4 h + i
  ColumnOrder order{};
  for (int at = 0; at < 64; ++at) order.from[at] = static_cast<std::uint8_t>(at / 16 * 16 + at % 4 * 4 + at / 4 % 4);
  return order;
}();
inline constexpr ColumnOrder kOctetOrder = [] {  // vector c: column c of octets i
  ColumnOrder order{};
  for (int at = 0; at < 64; ++at) order.from[at] = static_cast<std::uint8_t>(at / 32 * 32 + at % 4 * 8 + at / 4 % 8);
  return order;
}();
inline constexpr ColumnOrder kOctetPairOrder = [] {  // vector 4 h + c: columns c, then c + 4, of octets 2 h and 2 h + 1
  ColumnOrder order{};
  for (int at = 0; at < 64; ++at)
    order.from[at] = static_cast<std::uint8_t>(at / 16 * 16 + at % 2 * 8 + at / 2 % 2 * 4 + at / 4 % 4);
  return order;
}();
template <const ColumnOrder& Order>
struct Reorder {
  static TANDEM_LATTICE_INLINE void reorder(const std::int8_t* q, std::int8_t* out) {
    const __m512i from = _mm512_loadu_si512(Order.from);
    for (std::size_t at = 0; at < kSegment; at += 64)
      _mm512_store_si512(out + at, _mm512_permutexvar_epi8(from, _mm512_loadu_si512(q + at)));
  }
};
using QuadReorder = Reorder<kQuadOrder>;
template <int Halves>
using OctetReorder = std::conditional_t<Halves == 1, Reorder<kOctetOrder>, Reorder<kOctetPairOrder>>;

template <const LatticeDigits& Lattice>
TANDEM_LATTICE_INLINE void octet_columns(__m512i digits, __m512i signs, I* out) {
  out[0] = signed_codes<Lattice, 0, 5>(digits, signs);
  out[1] = signed_codes<Lattice, 2, 4>(digits, signs);
  out[2] = signed_codes<Lattice, 4, 3>(digits, signs);
  out[3] = signed_codes<Lattice, 4, 2>(Isa::right<2>(digits), signs);
}
template <const LatticeDigits& Lattice, int Halves, class Table>
TANDEM_LATTICE_INLINE void signed_octets(const Table& table, const std::uint8_t* low, const High& high, Signs signs,
                                         I* out) {
  const __m512i index = _mm512_loadu_si512(low);
  Chosen chosen(index);
  chosen.high[0] = high.bit[0];
  chosen.high[1] = high.bit[1];
  const __m512i first = look_up<Table::kCount>(table.digits[0], index, chosen);
  const __m512i last = look_up<Table::kCount>(table.digits[1], index, chosen);
  if constexpr (Halves == 1) {
    octet_columns<Lattice>(first, place_signs<2, 0, 2, false>(signs), out);
    octet_columns<Lattice>(last, place_signs<2, 1, 2, false>(signs), out + 4);
  } else {  // octets 0 and 1 apart from 2 and 3
    const __m512i words = _mm512_set1_epi32(0xFFFF);
    const __m512i low_half = _mm512_ternarylogic_epi32(words, first, Isa::left<16>(last), 0xCA);
    const __m512i high_half = _mm512_ternarylogic_epi32(words, Isa::right<16>(first), last, 0xCA);
    octet_columns<Lattice>(low_half, place_signs<2, 0, 2, true>(signs), out);
    octet_columns<Lattice>(high_half, place_signs<2, 4, 2, true>(signs), out + 4);
  }
}

template <const LatticeDigits& Lattice, int Half, class Table>
TANDEM_LATTICE_INLINE void half_quads(const Table& table, const std::uint8_t* low, const High& high, Signs signs,
                                      I* out) {
  const __m512i index = _mm512_loadu_si512(low);
  Chosen chosen(index);
  chosen.high[0] = high.bit[Half];
  const __m512i even = look_up<Table::kCount>(table.digits[0], index, chosen);  // columns 0 and 2
  const __m512i odd = look_up<Table::kCount>(table.digits[1], index, chosen);   // columns 1 and 3
  const __m512i placed = place_signs<1, 4 * Half, 1, false>(signs);
  out[0] = signed_codes<Lattice, 0, 4>(even, placed);
  out[1] = signed_codes<Lattice, 0, 3>(odd, placed);
  out[2] = signed_codes<Lattice, 3, 2>(even, placed);
  out[3] = signed_codes<Lattice, 3, 1>(odd, placed);
}
template <const LatticeDigits& Lattice, class Table>
TANDEM_LATTICE_INLINE void signed_quads(const Table& table, const std::uint8_t* low, const High& high, Signs signs,
                                        I* out) {
  half_quads<Lattice, 0>(table, low, high, signs, out);
  half_quads<Lattice, 1>(table, low + 64, high, signs, out + 4);
}

// The odd multiplier 2 s + 1 of a 4-bit scale s in the places of the implied signs: the bits 1, 3, 5, 7 of a byte to 1,
// 2, 3, 4, with bit 0 set.
TANDEM_LATTICE_INLINE F multiplier_of_plane(const std::uint8_t* plane) {
  const __m512i gather = _mm512_set1_epi64(eight_bytes({0, 0, 0, 0x80, 0x20, 0x08, 0x02, 0}));
  const __m512i bytes = _mm512_gf2p8affine_epi64_epi8(_mm512_loadu_si512(plane), gather, 1);
  return Isa::to_float(Isa::right<24>(bytes));
}

#elif defined(TANDEM_TILE_AVX2) || defined(TANDEM_TILE_AVXVNNI)

TANDEM_LATTICE_INLINE I bit_xor(I a, I b) {
  return {{_mm256_xor_si256(a.v[0], b.v[0]), _mm256_xor_si256(a.v[1], b.v[1])}};
}
TANDEM_LATTICE_INLINE I sub_bytes(I a, I b) {
  return {{_mm256_sub_epi8(a.v[0], b.v[0]), _mm256_sub_epi8(a.v[1], b.v[1])}};
}
TANDEM_LATTICE_INLINE I widen8(const std::uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {{_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))}};
}
TANDEM_LATTICE_INLINE I widen16(const std::uint8_t* p) {
  const auto* at = reinterpret_cast<const __m128i*>(p);
  return {{_mm256_cvtepu16_epi32(_mm_loadu_si128(at)), _mm256_cvtepu16_epi32(_mm_loadu_si128(at + 1))}};
}
template <int Byte>
TANDEM_LATTICE_INLINE I spread_byte(I x) {
  const __m256i order =
      _mm256_setr_epi32(0x01010101 * Byte, 0x04040404 + 0x01010101 * Byte, 0x08080808 + 0x01010101 * Byte,
                        0x0C0C0C0C + 0x01010101 * Byte, 0x01010101 * Byte, 0x04040404 + 0x01010101 * Byte,
                        0x08080808 + 0x01010101 * Byte, 0x0C0C0C0C + 0x01010101 * Byte);
  return {{_mm256_shuffle_epi8(x.v[0], order), _mm256_shuffle_epi8(x.v[1], order)}};
}

template <int G>
TANDEM_LATTICE_INLINE I negate(I u, int bias, I signs) {
  const __m256i twice = _mm256_set1_epi8(static_cast<char>(2 * bias));
  I out;
  for (int v = 0; v < 2; ++v)  // a blend looks at the top bit of every byte
    out.v[v] = _mm256_blendv_epi8(u.v[v], _mm256_sub_epi8(twice, u.v[v]), _mm256_slli_epi16(signs.v[v], 7 - G));
  return out;
}

// The 64 indices of a block: as they lie in the tile, or as 16-bit words made of both parts. Unpacking leaves the rows
// 0, 1, 4, 5 before 2, 3, 6, 7.
template <std::size_t Count>
struct Indices {
  static constexpr std::size_t place(std::size_t r) { return (r & 9U) | (r & 4U) >> 1 | (r & 2U) << 1; }
  std::uint16_t words[64];
  TANDEM_LATTICE_INLINE Indices(const std::uint8_t* low, I high) {
    const I bytes = Isa::load(low);
    for (int v = 0; v < 2; ++v) {
      auto* to = reinterpret_cast<__m256i*>(words + 32 * v);
      _mm256_storeu_si256(to, _mm256_unpacklo_epi8(bytes.v[v], high.v[v]));
      _mm256_storeu_si256(to + 1, _mm256_unpackhi_epi8(bytes.v[v], high.v[v]));
    }
    // Otherwise g++ takes the words out of the registers one by one, two operations each instead of a load.
    asm("" : "+m"(words));
  }
  TANDEM_LATTICE_INLINE std::size_t at(std::size_t r, std::size_t o) const { return words[4 * place(r) + o]; }
};
template <>
struct Indices<256> {
  const std::uint8_t* bytes;
  TANDEM_LATTICE_INLINE Indices(const std::uint8_t* low, I) : bytes(low) {}
  TANDEM_LATTICE_INLINE std::size_t at(std::size_t r, std::size_t o) const { return bytes[4 * r + o]; }
};

// Points are spread over a register as they are loaded and blended: neither takes a shuffle port. Putting them together
// by insertions does, five times in eight; a gather takes a fifth to a third longer on Zen 5, and copying them to
// memory that is then read as vectors 15 to 25 % longer on Zen 4.
TANDEM_LATTICE_INLINE __m256i four_points(const std::uint64_t* a, const std::uint64_t* b, const std::uint64_t* c,
                                          const std::uint64_t* d) {
  const auto spread = [](const std::uint64_t* p) __attribute__((always_inline)) {
    return _mm256_set1_epi64x(static_cast<long long>(*p));
  };
  return _mm256_blend_epi32(_mm256_blend_epi32(spread(a), spread(b), 0x0C),
                            _mm256_blend_epi32(spread(c), spread(d), 0xC0), 0xF0);
}
template <int O, int V, std::size_t Count>
TANDEM_LATTICE_INLINE void half_octet(const std::uint64_t* codes, const Indices<Count>& index, I* out) {
  constexpr std::size_t o = O, r = 8 * V;
  const auto at = [&](std::size_t k) __attribute__((always_inline)) {
    return codes + index.at(r + k, o);
  };
  const __m256 a = _mm256_castsi256_ps(four_points(at(0), at(1), at(4), at(5)));
  const __m256 b = _mm256_castsi256_ps(four_points(at(2), at(3), at(6), at(7)));
  out[2 * O].v[V] = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
  out[2 * O + 1].v[V] = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xDD));
}
template <const LatticeDigits& Lattice, class Table>
TANDEM_LATTICE_INLINE void octet_codes(const Table& table, const std::uint8_t* low, I high, I* out) {
  const Indices<Table::kCount> index(low, high);
  half_octet<0, 0>(table.codes, index, out);
  half_octet<0, 1>(table.codes, index, out);
  half_octet<1, 0>(table.codes, index, out);
  half_octet<1, 1>(table.codes, index, out);
  half_octet<2, 0>(table.codes, index, out);
  half_octet<2, 1>(table.codes, index, out);
  half_octet<3, 0>(table.codes, index, out);
  half_octet<3, 1>(table.codes, index, out);
}
template <int Q, int V, std::size_t Count>
TANDEM_LATTICE_INLINE void half_quad(const std::uint32_t* codes, const Indices<Count>& index, I* out) {
  const auto spread = [&](std::size_t r) __attribute__((always_inline)) {
    return _mm256_set1_epi32(static_cast<std::int32_t>(codes[index.at(8 * V + r, Q)]));
  };
  const __m256i p01 = _mm256_blend_epi32(spread(0), spread(1), 0x02);
  const __m256i p23 = _mm256_blend_epi32(spread(2), spread(3), 0x08);
  const __m256i p45 = _mm256_blend_epi32(spread(4), spread(5), 0x20);
  const __m256i p67 = _mm256_blend_epi32(spread(6), spread(7), 0x80);
  out[Q].v[V] = _mm256_blend_epi32(_mm256_blend_epi32(p01, p23, 0x0C), _mm256_blend_epi32(p45, p67, 0xC0), 0xF0);
}
template <const LatticeDigits& Lattice, class Table>
TANDEM_LATTICE_INLINE void quad_codes(const Table& table, const std::uint8_t* low, I high, I* out) {
  const Indices<Table::kCount> index(low, high);
  half_quad<0, 0>(table.codes, index, out);
  half_quad<0, 1>(table.codes, index, out);
  half_quad<1, 0>(table.codes, index, out);
  half_quad<1, 1>(table.codes, index, out);
  half_quad<2, 0>(table.codes, index, out);
  half_quad<2, 1>(table.codes, index, out);
  half_quad<3, 0>(table.codes, index, out);
  half_quad<3, 1>(table.codes, index, out);
}

#else

TANDEM_LATTICE_INLINE I bit_xor(I a, I b) {
  return Isa::each([&](int r) { return a.v[r] ^ b.v[r]; });
}
TANDEM_LATTICE_INLINE I sub_bytes(I a, I b) {
  return Isa::each([&](int r) {
    std::uint32_t out = 0;
    for (int j = 0; j < 4; ++j) out |= ((Isa::byte(a.v[r], j) - Isa::byte(b.v[r], j)) & 255U) << (8 * j);
    return out;
  });
}
TANDEM_LATTICE_INLINE I widen8(const std::uint8_t* p) {
  return Isa::each([&](int r) { return std::uint32_t{p[r]}; });
}
TANDEM_LATTICE_INLINE I widen16(const std::uint8_t* p) {
  return Isa::each([&](int r) { return p[2 * r] | std::uint32_t{p[2 * r + 1]} << 8; });
}
template <int Byte>
TANDEM_LATTICE_INLINE I spread_byte(I x) {
  return Isa::each([&](int r) { return Isa::byte(x.v[r], Byte) * 0x01010101U; });
}
template <int G>
TANDEM_LATTICE_INLINE I negate(I u, int bias, I signs) {
  return Isa::each([&](int r) {
    std::uint32_t out = 0;
    for (int j = 0; j < 4; ++j) {
      const std::uint32_t code = Isa::byte(u.v[r], j);
      const bool minus = (Isa::byte(signs.v[r], j) >> G & 1U) != 0;
      out |= (minus ? static_cast<std::uint32_t>(2 * bias) - code : code) << (8 * j);
    }
    return out;
  });
}
template <class Table>
TANDEM_LATTICE_INLINE std::size_t index_of(const std::uint8_t* low, I high, int r, int i) {
  return low[4 * r + i] + (Table::kCount == 256 ? 0U : 256U * Isa::byte(high.v[r], i));
}
template <const LatticeDigits& Lattice, class Table>
TANDEM_LATTICE_INLINE void octet_codes(const Table& table, const std::uint8_t* low, I high, I* out) {
  for (int o = 0; o < 4; ++o)
    for (int r = 0; r < 16; ++r) {
      const std::uint64_t codes = table.codes[index_of<Table>(low, high, r, o)];
      out[2 * o].v[r] = static_cast<std::uint32_t>(codes);
      out[2 * o + 1].v[r] = static_cast<std::uint32_t>(codes >> 32);
    }
}
template <const LatticeDigits& Lattice, class Table>
TANDEM_LATTICE_INLINE void quad_codes(const Table& table, const std::uint8_t* low, I high, I* out) {
  for (int q = 0; q < 4; ++q)
    for (int r = 0; r < 16; ++r) out[q].v[r] = table.codes[index_of<Table>(low, high, r, q)];
}

#endif

#if !defined(TANDEM_TILE_AVX512)

struct QuadReorder {};
template <int>
struct OctetReorder {};

// Of a lane below 256: bits 2i and 2i+1 to byte i; of a lane below 16: bit i to byte i.
TANDEM_LATTICE_INLINE I spread_pairs(I x) {
  x = Isa::bit_or(x, Isa::left<6>(x));
  x = Isa::bit_or(x, Isa::left<12>(x));
  return Isa::bit_and(x, Isa::set1(0x03030303));
}
TANDEM_LATTICE_INLINE I spread_bits(I x) {
  x = Isa::bit_or(x, Isa::left<7>(x));
  x = Isa::bit_or(x, Isa::left<14>(x));
  return Isa::bit_and(x, Isa::set1(0x01010101));
}
// The part of an index above its eight low bits, by lanes of four points; for quads of both halves.
struct High {
  I half[2];
};
TANDEM_LATTICE_INLINE High no_high() {
  return {{Isa::zero(), Isa::zero()}};
}
TANDEM_LATTICE_INLINE High high_in_signs(const std::uint8_t* plane) {
  // Bits 25, 27, 29, 31 of a lane.
  return {{Isa::bit_and(spread_pairs(Isa::right<25>(Isa::load(plane))), Isa::set1(0x01010101)), Isa::zero()}};
}
TANDEM_LATTICE_INLINE High high_pairs(const std::uint8_t* p) {
  return {{spread_pairs(widen8(p)), Isa::zero()}};
}
TANDEM_LATTICE_INLINE High high_bits(const std::uint8_t* p) {
  const I bytes = widen8(p);
  return {{spread_bits(Isa::bit_and(bytes, Isa::set1(15))), spread_bits(Isa::right<4>(bytes))}};
}

using Signs = I;
TANDEM_LATTICE_INLINE Signs given_signs(const std::uint8_t* plane) {
  return Isa::load(plane);
}
// In the sign plane of IQ2_XXS, IQ2_XS and IQ3_XXS bits 1, 3, 5, 7 of a row's last byte are something else; the signs
// that belong there make the number of signs in an octet (bits 2o and 2o+1 of all four bytes) even.
TANDEM_LATTICE_INLINE Signs completed_signs(const std::uint8_t* plane) {
  constexpr auto kImplied = static_cast<std::int32_t>(0xAA000000U);
  const I given = Isa::bit_and(Isa::load(plane), Isa::set1(~kImplied));
  I odd = bit_xor(given, Isa::left<16>(given));
  odd = bit_xor(odd, Isa::left<8>(odd));
  odd = bit_xor(odd, Isa::left<1>(odd));
  return Isa::bit_or(given, Isa::bit_and(odd, Isa::set1(kImplied)));
}
TANDEM_LATTICE_INLINE void apply_signs(I signs, int bias, I* out) {
  out[0] = negate<0>(out[0], bias, signs);
  out[1] = negate<1>(out[1], bias, signs);
  out[2] = negate<2>(out[2], bias, signs);
  out[3] = negate<3>(out[3], bias, signs);
  out[4] = negate<4>(out[4], bias, signs);
  out[5] = negate<5>(out[5], bias, signs);
  out[6] = negate<6>(out[6], bias, signs);
  out[7] = negate<7>(out[7], bias, signs);
}
template <const LatticeDigits& Lattice, int Halves, class Table>
TANDEM_LATTICE_INLINE void signed_octets(const Table& table, const std::uint8_t* low, const High& high, Signs signs,
                                         I* out) {
  octet_codes<Lattice>(table, low, high.half[0], out);
  apply_signs(signs, Lattice.bias, out);
}
template <const LatticeDigits& Lattice, class Table>
TANDEM_LATTICE_INLINE void signed_quads(const Table& table, const std::uint8_t* low, const High& high, Signs signs,
                                        I* out) {
  quad_codes<Lattice>(table, low, high.half[0], out);
  quad_codes<Lattice>(table, low + 64, high.half[1], out + 4);
  apply_signs(signs, Lattice.bias, out);
}

// The odd multiplier 2 s + 1 of a 4-bit scale s in the places of the implied signs.
TANDEM_LATTICE_INLINE F multiplier_of_plane(const std::uint8_t* plane) {
  alignas(16) static constexpr std::int8_t kLow[16] = {0, 0, 2, 2, 0, 0, 2, 2, 4, 4, 6, 6, 4, 4, 6, 6};
  alignas(16) static constexpr std::int8_t kHigh[16] = {0, 0, 8, 8, 0, 0, 8, 8, 16, 16, 24, 24, 16, 16, 24, 24};
  const I x = Isa::load(plane);
  const I low = Isa::lookup(Isa::table16(kLow), Isa::bit_and(Isa::right<24>(x), Isa::set1(15)));
  const I high = Isa::lookup(Isa::table16(kHigh), Isa::right<28>(x));
  return Isa::to_float(Isa::bit_or(Isa::bit_or(low, high), Isa::set1(1)));
}

#endif

}  // namespace
}  // namespace tandem
