// Sixteen lanes, one per row of a tile, in the instruction set that the including file is compiled for. Each Isa has:
//   I            64 bytes: 16 int32, or 16 rows x 4 byte codes
//   F            16 floats
//   kBiased      signed codes are run as unsigned ones with 128 added, and 128 * sum(a) taken off the start value
//   kNativeDot   dot_u is one instruction; otherwise products are gathered in int16 first
//   load, zero, set1, and, or, shift right/left by n bits in 32-bit lanes, look-up of 16 entries
//   dot_u(acc, u, a)   acc + sum of 4 products u8 * s8 per row; a points to 4 activation bytes that all rows meet
//   dot_s(acc, c, a)   the same for codes made by from_signed
// and float steps that round exactly as the contract says.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "runtime/quant.h"

namespace tandem {

// Everything here and in the kernels has internal linkage: the same source is compiled for several instruction sets,
// and a copy made for one of them must never serve another.
namespace {

inline std::int32_t activation_word(const std::int8_t* a) {
  std::int32_t word;
  std::memcpy(&word, a, sizeof word);
  return word;
}

#if defined(TANDEM_TILE_AVX512)

struct Isa {
  using I = __m512i;
  using F = __m512;
  static constexpr bool kBiased = true, kNativeDot = true;

  static I load(const void* p) { return _mm512_loadu_si512(p); }
  static I zero() { return _mm512_setzero_si512(); }
  static I set1(std::int32_t x) { return _mm512_set1_epi32(x); }
  static I set1_byte(std::int8_t x) { return _mm512_set1_epi8(x); }
  static I bit_and(I a, I b) { return _mm512_and_si512(a, b); }
  static I bit_or(I a, I b) { return _mm512_or_si512(a, b); }
  template <int N>
  static I right(I a) {
    return _mm512_srli_epi32(a, N);
  }
  template <int N>
  static I left(I a) {
    return _mm512_slli_epi32(a, N);
  }
  static I lookup(I table, I index) { return _mm512_shuffle_epi8(table, index); }
  static I table16(const std::int8_t* entries) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(entries)));
  }
  static I from_signed(I c) { return _mm512_xor_si512(c, _mm512_set1_epi8(-128)); }
  // The instruction broadcasts its memory operand itself; compilers emit a separate broadcast for the intrinsic, which
  // is a quarter of all instructions at four rows.
  static I dot_u(I acc, I u, const std::int8_t* a) {
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(u), "m"(*reinterpret_cast<const std::int8_t(*)[4]>(a)));
    return acc;
  }
  static I dot_s(I acc, I c, const std::int8_t* a) { return dot_u(acc, c, a); }

  static F fzero() { return _mm512_setzero_ps(); }
  static F fset1(float x) { return _mm512_set1_ps(x); }
  static F to_float(I a) { return _mm512_cvtepi32_ps(a); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F half16(const void* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p))); }
  static F u8(__m128i bytes) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)); }
  static F i8(__m128i bytes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)); }
  // 2^(e - 128) for 16 exponent bytes, exact, denormal for e < 2.
  static F exp2_minus128(__m128i e) {
    const __m512i wide = _mm512_cvtepu8_epi32(e);
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(wide, _mm512_set1_epi32(1)), 23);
    const __m512i tiny = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), wide);
    return _mm512_castsi512_ps(
        _mm512_mask_blend_epi32(_mm512_cmplt_epi32_mask(wide, _mm512_set1_epi32(2)), normal, tiny));
  }
  static void store(float* y, std::size_t rows, F v) {
    _mm512_mask_storeu_ps(y, static_cast<__mmask16>((1U << rows) - 1U), v);
  }
};

#elif defined(TANDEM_TILE_AVX2) || defined(TANDEM_TILE_AVXVNNI)

struct Isa {
  struct I {
    __m256i v[2];
  };
  struct F {
    __m256 v[2];
  };
#if defined(TANDEM_TILE_AVXVNNI)
  static constexpr bool kBiased = true, kNativeDot = true;
#else
  static constexpr bool kBiased = false, kNativeDot = false;
#endif

  static I load(const void* p) {
    const auto* at = static_cast<const __m256i*>(p);
    return {{_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)}};
  }
  static I both(__m256i x) {
    return {{x, x}};
  }
  static I zero() {
    return both(_mm256_setzero_si256());
  }
  static I set1(std::int32_t x) {
    return both(_mm256_set1_epi32(x));
  }
  static I set1_byte(std::int8_t x) {
    return both(_mm256_set1_epi8(x));
  }
  static I bit_and(I a, I b) {
    return {{_mm256_and_si256(a.v[0], b.v[0]), _mm256_and_si256(a.v[1], b.v[1])}};
  }
  static I bit_or(I a, I b) {
    return {{_mm256_or_si256(a.v[0], b.v[0]), _mm256_or_si256(a.v[1], b.v[1])}};
  }
  template <int N>
  static I right(I a) {
    return {{_mm256_srli_epi32(a.v[0], N), _mm256_srli_epi32(a.v[1], N)}};
  }
  template <int N>
  static I left(I a) {
    return {{_mm256_slli_epi32(a.v[0], N), _mm256_slli_epi32(a.v[1], N)}};
  }
  static I lookup(I table, I index) {
    return {{_mm256_shuffle_epi8(table.v[0], index.v[0]), _mm256_shuffle_epi8(table.v[1], index.v[1])}};
  }
  static I table16(const std::int8_t* entries) {
    return both(_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(entries))));
  }
#if defined(TANDEM_TILE_AVXVNNI)
  static I from_signed(I c) {
    const __m256i bias = _mm256_set1_epi8(-128);
    return {{_mm256_xor_si256(c.v[0], bias), _mm256_xor_si256(c.v[1], bias)}};
  }
  static I dot_u(I acc, I u, const std::int8_t* a) {
    const __m256i x = _mm256_set1_epi32(activation_word(a));
    return {{_mm256_dpbusd_avx_epi32(acc.v[0], u.v[0], x), _mm256_dpbusd_avx_epi32(acc.v[1], u.v[1], x)}};
  }
  static I dot_s(I acc, I c, const std::int8_t* a) {
    return dot_u(acc, c, a);
  }
#else
  static I from_signed(I c) {
    return c;
  }
  // Pairs of products as int16. u <= 127 keeps 2 * 127 * 127 below 2^15; |c| may be 128, a is never -128.
  static I pairs_u(I u, const std::int8_t* a) {
    const __m256i x = _mm256_set1_epi32(activation_word(a));
    return {{_mm256_maddubs_epi16(u.v[0], x), _mm256_maddubs_epi16(u.v[1], x)}};
  }
  static I pairs_s(I c, const std::int8_t* a) {
    const __m256i x = _mm256_set1_epi32(activation_word(a));
    return {{_mm256_maddubs_epi16(_mm256_abs_epi8(c.v[0]), _mm256_sign_epi8(x, c.v[0])),
             _mm256_maddubs_epi16(_mm256_abs_epi8(c.v[1]), _mm256_sign_epi8(x, c.v[1]))}};
  }
  static I add16(I a, I b) {
    return {{_mm256_add_epi16(a.v[0], b.v[0]), _mm256_add_epi16(a.v[1], b.v[1])}};
  }
  static I add_pairs(I acc, I pairs) {
    const __m256i ones = _mm256_set1_epi16(1);
    return {{_mm256_add_epi32(acc.v[0], _mm256_madd_epi16(pairs.v[0], ones)),
             _mm256_add_epi32(acc.v[1], _mm256_madd_epi16(pairs.v[1], ones))}};
  }
#endif

  static F fboth(__m256 x) {
    return {{x, x}};
  }
  static F fzero() {
    return fboth(_mm256_setzero_ps());
  }
  static F fset1(float x) {
    return fboth(_mm256_set1_ps(x));
  }
  static F to_float(I a) {
    return {{_mm256_cvtepi32_ps(a.v[0]), _mm256_cvtepi32_ps(a.v[1])}};
  }
  static F mul(F a, F b) {
    return {{_mm256_mul_ps(a.v[0], b.v[0]), _mm256_mul_ps(a.v[1], b.v[1])}};
  }
  static F add(F a, F b) {
    return {{_mm256_add_ps(a.v[0], b.v[0]), _mm256_add_ps(a.v[1], b.v[1])}};
  }
  static F sub(F a, F b) {
    return {{_mm256_sub_ps(a.v[0], b.v[0]), _mm256_sub_ps(a.v[1], b.v[1])}};
  }
  static F fma(F a, F b, F c) {
    return {{_mm256_fmadd_ps(a.v[0], b.v[0], c.v[0]), _mm256_fmadd_ps(a.v[1], b.v[1], c.v[1])}};
  }
  static F half16(const void* p) {
    const auto* at = static_cast<const __m128i*>(p);
    return {{_mm256_cvtph_ps(_mm_loadu_si128(at)), _mm256_cvtph_ps(_mm_loadu_si128(at + 1))}};
  }
  static F u8(__m128i bytes) {
    return {{_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
             _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))}};
  }
  static F i8(__m128i bytes) {
    return {{_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
             _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))}};
  }
  static __m256 exp2_minus128_half(__m256i wide) {
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(wide, _mm256_set1_epi32(1)), 23);
    const __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), wide);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, tiny, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), wide)));
  }
  static F exp2_minus128(__m128i e) {
    return {
        {exp2_minus128_half(_mm256_cvtepu8_epi32(e)), exp2_minus128_half(_mm256_cvtepu8_epi32(_mm_srli_si128(e, 8)))}};
  }
  static void store(float* y, std::size_t rows, F v) {
    if (rows == 16) {
      _mm256_storeu_ps(y, v.v[0]);
      _mm256_storeu_ps(y + 8, v.v[1]);
      return;
    }
    alignas(32) float all[16];
    _mm256_store_ps(all, v.v[0]);
    _mm256_store_ps(all + 8, v.v[1]);
    std::memcpy(y, all, rows * sizeof(float));
  }
};

#elif defined(TANDEM_TILE_SCALAR)

// Plain loops over the 16 lanes, for reading and for processors without any of the above.
struct Isa {
  struct I {
    std::uint32_t v[16];
  };
  struct F {
    float v[16];
  };
  static constexpr bool kBiased = false, kNativeDot = true;

  template <typename Body>
  static I each(Body body) {
    I out;
    for (int r = 0; r < 16; ++r) out.v[r] = body(r);
    return out;
  }
  template <typename Body>
  static F feach(Body body) {
    F out;
    for (int r = 0; r < 16; ++r) out.v[r] = body(r);
    return out;
  }
  static I load(const void* p) {
    I out;
    std::memcpy(&out, p, sizeof out);
    return out;
  }
  static I zero() { return set1(0); }
  static I set1(std::int32_t x) {
    return each([&](int) { return static_cast<std::uint32_t>(x); });
  }
  static I set1_byte(std::int8_t x) {
    return each([&](int) { return 0x01010101U * static_cast<std::uint8_t>(x); });
  }
  static I bit_and(I a, I b) {
    return each([&](int r) { return a.v[r] & b.v[r]; });
  }
  static I bit_or(I a, I b) {
    return each([&](int r) { return a.v[r] | b.v[r]; });
  }
  template <int N>
  static I right(I a) {
    return each([&](int r) { return a.v[r] >> N; });
  }
  template <int N>
  static I left(I a) {
    return each([&](int r) { return a.v[r] << N; });
  }
  static std::uint32_t byte(std::uint32_t x, int j) { return (x >> (8 * j)) & 255U; }
  static I lookup(I table, I index) {
    std::int8_t entries[16];
    std::memcpy(entries, table.v, sizeof entries);
    return each([&](int r) {
      std::uint32_t out = 0;
      for (int j = 0; j < 4; ++j)
        out |= static_cast<std::uint32_t>(static_cast<std::uint8_t>(entries[byte(index.v[r], j) & 15U])) << (8 * j);
      return out;
    });
  }
  static I table16(const std::int8_t* entries) {
    I out = zero();
    std::memcpy(out.v, entries, 16);
    return out;
  }
  static I from_signed(I c) { return c; }
  static I dot_u(I acc, I u, const std::int8_t* a) {
    return each([&](int r) {
      std::int32_t sum = static_cast<std::int32_t>(acc.v[r]);
      for (int j = 0; j < 4; ++j) sum += static_cast<std::int32_t>(byte(u.v[r], j)) * a[j];
      return static_cast<std::uint32_t>(sum);
    });
  }
  static I dot_s(I acc, I c, const std::int8_t* a) {
    return each([&](int r) {
      std::int32_t sum = static_cast<std::int32_t>(acc.v[r]);
      for (int j = 0; j < 4; ++j) sum += static_cast<std::int8_t>(byte(c.v[r], j)) * a[j];
      return static_cast<std::uint32_t>(sum);
    });
  }

  static F fzero() { return fset1(0.0F); }
  static F fset1(float x) {
    return feach([&](int) { return x; });
  }
  static F to_float(I a) {
    return feach([&](int r) { return static_cast<float>(static_cast<std::int32_t>(a.v[r])); });
  }
  static F mul(F a, F b) {
    return feach([&](int r) { return a.v[r] * b.v[r]; });
  }
  static F add(F a, F b) {
    return feach([&](int r) { return a.v[r] + b.v[r]; });
  }
  static F sub(F a, F b) {
    return feach([&](int r) { return a.v[r] - b.v[r]; });
  }
  static F fma(F a, F b, F c) {
    return feach([&](int r) { return __builtin_fmaf(a.v[r], b.v[r], c.v[r]); });
  }
  static F half16(const void* p) {
    return feach([&](int r) {
      std::uint16_t bits;
      std::memcpy(&bits, static_cast<const char*>(p) + 2 * r, sizeof bits);
      return half_to_float(bits);
    });
  }
  static F bytes_to_float(__m128i bytes, bool is_signed) {
    std::uint8_t all[16];
    std::memcpy(all, &bytes, sizeof all);
    return feach([&](int r) {
      return is_signed ? static_cast<float>(static_cast<std::int8_t>(all[r])) : static_cast<float>(all[r]);
    });
  }
  static F u8(__m128i bytes) { return bytes_to_float(bytes, false); }
  static F i8(__m128i bytes) { return bytes_to_float(bytes, true); }
  static F exp2_minus128(__m128i e) {
    std::uint8_t all[16];
    std::memcpy(all, &e, sizeof all);
    return feach([&](int r) { return std::ldexp(1.0F, static_cast<int>(all[r]) - 128); });
  }
  static void store(float* y, std::size_t rows, F v) { std::memcpy(y, v.v, rows * sizeof(float)); }
};

#else
#error "define the instruction set before including this file"
#endif

}  // namespace
}  // namespace tandem
