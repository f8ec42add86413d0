// Lattice points to code vectors, in the instruction set of the including file. The functions, for one block of 32
// columns of 16 rows:
//   octet_codes(table, low, high, out)   points of 8 columns: index low[4 r + o] + 256 * byte o of lane r of `high`
//   quad_codes(table, low, high, out)    points of 4 columns: index low[4 r + q] + 256 * byte q of lane r of `high`
//   negate<G>(u, bias, signs)            2 * bias - u where bit G of a byte of the sign plane is set
// out[g] has the biased codes of columns 4g .. 4g+3 of a row in the four bytes of its lane, all with plus signs.
// `high` is not looked at when the table has 256 entries.
#pragma once

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

template <int G>
TANDEM_LATTICE_INLINE I negate(I u, int bias, I signs) {
  const __mmask64 minus = _mm512_test_epi8_mask(signs, _mm512_set1_epi8(static_cast<char>(1 << G)));
  return _mm512_mask_sub_epi8(u, minus, _mm512_set1_epi8(static_cast<char>(2 * bias)), u);
}

// 64 look-ups in `Count` bytes. A permute takes the seven low bits of an index, masks of the higher bits choose among
// the permutes: selected[0] is bit 7.
template <std::size_t Count>
TANDEM_LATTICE_INLINE __m512i look_up(const std::uint8_t* table, __m512i index, const __mmask64* selected) {
  if constexpr (Count == 128) {
    return _mm512_permutex2var_epi8(_mm512_load_si512(table), index, _mm512_load_si512(table + 64));
  } else {
    constexpr int kLevel = Count == 256 ? 0 : Count == 512 ? 1 : Count == 1024 ? 2 : 3;
    return _mm512_mask_blend_epi8(selected[kLevel], look_up<Count / 2>(table, index, selected),
                                  look_up<Count / 2>(table + Count / 2, index, selected));
  }
}
template <class Table>
TANDEM_LATTICE_INLINE void look_up_digits(const Table& table, __m512i low, I high, __m512i (&digits)[2]) {
  __mmask64 selected[4];
  selected[0] = _mm512_movepi8_mask(low);
  for (int bit = 0; bit < 3; ++bit)
    if (Table::kCount > (256U << bit))
      selected[bit + 1] = _mm512_test_epi8_mask(high, _mm512_set1_epi8(static_cast<char>(1 << bit)));
  digits[0] = look_up<Table::kCount>(table.digits[0], low, selected);
  digits[1] = look_up<Table::kCount>(table.digits[1], low, selected);
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
  __m512i digits[2];
  look_up_digits(table, _mm512_loadu_si512(low), high, digits);
  const __m512i map = code_map(Lattice);
  octet<0>(digits, map, out);
  octet<1>(digits, map, out);
  octet<2>(digits, map, out);
  octet<3>(digits, map, out);
}

template <int Q>
TANDEM_LATTICE_INLINE void quad(const __m512i (&digits)[2], __m512i map, I* out) {
  const __m512i first = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(two_rows(8 * Q, 4)), digits[0]);
  // Bytes 2 and 3 of a lane take the two digits of the second plane.
  const __m512i all = _mm512_mask_multishift_epi64_epi8(first, 0xCCCCCCCCCCCCCCCCU,
                                                        _mm512_set1_epi64(two_rows(8 * Q - 8, 4)), digits[1]);
  out[Q] = _mm512_permutexvar_epi8(all, map);
}
template <const LatticeDigits& Lattice, class Table>
TANDEM_LATTICE_INLINE void quad_codes(const Table& table, const std::uint8_t* low, I high, I* out) {
  __m512i digits[2];
  look_up_digits(table, _mm512_loadu_si512(low), high, digits);
  const __m512i map = code_map(Lattice);
  quad<0>(digits, map, out);
  quad<1>(digits, map, out);
  quad<2>(digits, map, out);
  quad<3>(digits, map, out);
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

}  // namespace
}  // namespace tandem
