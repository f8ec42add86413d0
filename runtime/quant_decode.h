// The integer reading of every GGUF block format, 32 weights at a time (docs/numerics.md, R3).
//
// decode_block32_as<T> is always inlined. Kernels are compiled for several instruction sets; an out-of-line copy made
// by one of them could be picked by the linker for all, and would then fault on an older machine. For the same reason
// nothing here calls a library function. The loops over 32 (or 16) codes are written so that gcc -O3 and clang
// vectorise them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/iq_grids.h"
#include "runtime/quant.h"
#include "runtime/quant_blocks.h"

#define TANDEM_ALWAYS_INLINE inline __attribute__((always_inline))

namespace tandem {

namespace decode {

TANDEM_ALWAYS_INLINE std::uint32_t word16(const Bytes2& bytes) {
  return static_cast<std::uint32_t>(bytes[0]) | static_cast<std::uint32_t>(bytes[1]) << 8;
}
TANDEM_ALWAYS_INLINE std::uint32_t word32(const std::uint8_t* bytes) {
  std::uint32_t word;
  __builtin_memcpy(&word, bytes, sizeof word);
  return word;
}
TANDEM_ALWAYS_INLINE float float_of_bits(std::uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

// IEEE half to float. Block scales below 2^-14 (half denormals) are common in real files, so that path multiplies an
// integer instead of a denormal float, which costs a micro-code assist on many machines.
TANDEM_ALWAYS_INLINE float half_value(std::uint32_t bits) {
  const std::uint32_t sign = (bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1FU;
  const std::uint32_t mantissa = bits & 0x3FFU;
  const float tiny = static_cast<float>(static_cast<std::int32_t>(mantissa)) * 0x1p-24F;
  std::uint32_t tiny_bits;
  __builtin_memcpy(&tiny_bits, &tiny, sizeof tiny_bits);
  const std::uint32_t normal_bits = (exponent + (exponent == 31 ? 224U : 112U)) << 23 | mantissa << 13;
  return float_of_bits(sign | (exponent == 0 ? tiny_bits : normal_bits));
}
TANDEM_ALWAYS_INLINE float half_at(const Bytes2& bytes) {
  return half_value(word16(bytes));
}

TANDEM_ALWAYS_INLINE std::int8_t code(int value) {
  return static_cast<std::int8_t>(value);
}

// value = d * m[h] * c, no offset.
TANDEM_ALWAYS_INLINE void set_scale(Block32& out, float d, std::int32_t m0, std::int32_t m1) {
  out.m[0] = m0;
  out.m[1] = m1;
  out.n[0] = out.n[1] = 0;
  out.d[0] = out.d[1] = d;
  out.e = 0.0F;
  out.has_offset = false;
  out.split_scale = false;
}
TANDEM_ALWAYS_INLINE void set_offset(Block32& out, float e, std::int32_t n0, std::int32_t n1) {
  out.n[0] = n0;
  out.n[1] = n1;
  out.e = e;
  out.has_offset = true;
}

// Codes 0..15 from the low nibbles of 16 bytes, 16..31 from the high ones, minus `bias`.
TANDEM_ALWAYS_INLINE void nibbles(const std::uint8_t* qs, int bias, std::int8_t* c) {
  for (int i = 0; i < 16; ++i) c[i] = code((qs[i] & 15) - bias);
  for (int i = 0; i < 16; ++i) c[16 + i] = code((qs[i] >> 4) - bias);
}
// The same with a fifth bit per code, bit i of qh.
TANDEM_ALWAYS_INLINE void nibbles5(const std::uint8_t* qs, std::uint32_t qh, int bias, std::int8_t* c) {
  for (int i = 0; i < 16; ++i) c[i] = code(((qs[i] & 15) | (static_cast<int>(qh >> i & 1U) << 4)) - bias);
  for (int i = 0; i < 16; ++i) c[16 + i] = code(((qs[i] >> 4) | (static_cast<int>(qh >> (16 + i) & 1U) << 4)) - bias);
}
// The same through a table of 16 values.
TANDEM_ALWAYS_INLINE void nibbles_table(const std::uint8_t* qs, const std::int8_t* table, std::int8_t* c) {
  for (int i = 0; i < 16; ++i) c[i] = table[qs[i] & 15];
  for (int i = 0; i < 16; ++i) c[16 + i] = table[qs[i] >> 4];
}

// Pair k of the eight 6-bit (scale, min) pairs in the 12 bytes of Q4_K and Q5_K.
TANDEM_ALWAYS_INLINE void scale_min(const std::uint8_t* s, std::size_t k, std::int32_t& scale, std::int32_t& min) {
  if (k < 4) {
    scale = s[k] & 63;
    min = s[k + 4] & 63;
  } else {
    scale = (s[k + 4] & 15) | (s[k - 4] >> 6) << 4;
    min = (s[k + 4] >> 4) | (s[k] >> 6) << 4;
  }
}

// Eight sign bits from seven: bit 7 makes the number of set bits even.
TANDEM_ALWAYS_INLINE std::uint32_t even_signs(std::uint32_t seven) {
  return seven | static_cast<std::uint32_t>(__builtin_parity(seven)) << 7;
}
// Negates byte j of `grid` where bit j of `signs` is set. REQUIRES every byte > 0, so that no carry crosses bytes.
TANDEM_ALWAYS_INLINE void signed_octet(std::uint64_t grid, std::uint32_t signs, std::int8_t* c) {
  constexpr std::uint64_t kOnes = 0x0101010101010101U;
  const std::uint64_t spread = (signs * kOnes) & 0x8040201008040201U;
  const std::uint64_t ones = ((spread + 0x7F * kOnes) >> 7) & kOnes;
  const std::uint64_t negated = (grid ^ (ones * 0xFF)) + ones;
  __builtin_memcpy(c, &negated, sizeof negated);
}
TANDEM_ALWAYS_INLINE std::uint64_t two_quads(std::uint32_t low, std::uint32_t high) {
  return static_cast<std::uint64_t>(low) | static_cast<std::uint64_t>(high) << 32;
}
// 8 * grid +- 1, the IQ1 reading of grid +- 1/8.
TANDEM_ALWAYS_INLINE void shifted_octet(std::uint64_t grid, int delta, std::int8_t* c) {
  std::int8_t values[8];
  __builtin_memcpy(values, &grid, sizeof values);
  for (int i = 0; i < 8; ++i) c[i] = code(8 * values[i] + delta);
}
TANDEM_ALWAYS_INLINE int trit(unsigned byte, unsigned power_of_three) {
  return static_cast<int>(((byte * power_of_three & 0xFFU) * 3U) >> 8) - 1;
}
// Half an unsigned E4M3 scale; both 0x00 and 0x7F mean 0 and bit 7 is not looked at otherwise.
TANDEM_ALWAYS_INLINE float half_ue4m3(std::uint32_t byte) {
  const std::uint32_t exponent = (byte >> 3) & 15U;
  const std::int32_t mantissa = static_cast<std::int32_t>(byte & 7U);
  if (byte == 0x7F) return 0.0F;
  if (exponent == 0) return static_cast<float>(mantissa) * 0x1p-10F;
  return static_cast<float>(8 + mantissa) * float_of_bits((exponent + 127 - 11) << 23);
}

// part(block, p, out): weights 32*p .. 32*p+31 of one block.

TANDEM_ALWAYS_INLINE void part(const BlockQ4_0& block, std::size_t, Block32& out) {
  nibbles(block.qs, 8, out.c);
  set_scale(out, half_at(block.d), 1, 1);
}
TANDEM_ALWAYS_INLINE void part(const BlockQ4_1& block, std::size_t, Block32& out) {
  nibbles(block.qs, 0, out.c);
  set_scale(out, half_at(block.d), 1, 1);
  set_offset(out, half_at(block.m), 1, 1);
}
TANDEM_ALWAYS_INLINE void part(const BlockQ5_0& block, std::size_t, Block32& out) {
  nibbles5(block.qs, word32(block.qh), 16, out.c);
  set_scale(out, half_at(block.d), 1, 1);
}
TANDEM_ALWAYS_INLINE void part(const BlockQ5_1& block, std::size_t, Block32& out) {
  nibbles5(block.qs, word32(block.qh), 0, out.c);
  set_scale(out, half_at(block.d), 1, 1);
  set_offset(out, half_at(block.m), 1, 1);
}
TANDEM_ALWAYS_INLINE void part(const BlockQ8_0& block, std::size_t, Block32& out) {
  __builtin_memcpy(out.c, block.qs, 32);
  set_scale(out, half_at(block.d), 1, 1);
}

TANDEM_ALWAYS_INLINE void part(const BlockQ2_K& block, std::size_t p, Block32& out) {
  const std::uint8_t* qs = block.qs + 32 * (p / 4);
  const int shift = static_cast<int>(2 * (p % 4));
  for (int i = 0; i < 32; ++i) out.c[i] = code((qs[i] >> shift) & 3);
  const std::uint8_t* scales = block.scales + 2 * p;
  set_scale(out, half_at(block.d), scales[0] & 15, scales[1] & 15);
  set_offset(out, -half_at(block.dmin), scales[0] >> 4, scales[1] >> 4);
}
TANDEM_ALWAYS_INLINE std::int32_t scale_q3(const std::uint8_t* s, std::size_t k) {
  const int low = k < 8 ? s[k] & 15 : s[k - 8] >> 4;
  const int high = (s[8 + k % 4] >> (2 * (k / 4))) & 3;
  return (low | high << 4) - 32;
}
TANDEM_ALWAYS_INLINE void part(const BlockQ3_K& block, std::size_t p, Block32& out) {
  const std::uint8_t* qs = block.qs + 32 * (p / 4);
  const int shift = static_cast<int>(2 * (p % 4));
  const int bit = static_cast<int>(p);
  for (int i = 0; i < 32; ++i) {
    out.c[i] = code(((qs[i] >> shift) & 3) + (((block.hmask[i] >> bit) & 1) << 2) - 4);
  }
  set_scale(out, half_at(block.d), scale_q3(block.scales, 2 * p), scale_q3(block.scales, 2 * p + 1));
}
TANDEM_ALWAYS_INLINE void part(const BlockQ4_K& block, std::size_t p, Block32& out) {
  const std::uint8_t* qs = block.qs + 32 * (p / 2);
  const int shift = static_cast<int>(4 * (p % 2));
  for (int i = 0; i < 32; ++i) out.c[i] = code((qs[i] >> shift) & 15);
  std::int32_t scale, min;
  scale_min(block.scales, p, scale, min);
  set_scale(out, half_at(block.d), scale, scale);
  set_offset(out, -half_at(block.dmin), min, min);
}
TANDEM_ALWAYS_INLINE void part(const BlockQ5_K& block, std::size_t p, Block32& out) {
  const std::uint8_t* qs = block.qs + 32 * (p / 2);
  const int shift = static_cast<int>(4 * (p % 2));
  const int bit = static_cast<int>(p);
  for (int i = 0; i < 32; ++i) {
    out.c[i] = code(((qs[i] >> shift) & 15) | (((block.qh[i] >> bit) & 1) << 4));
  }
  std::int32_t scale, min;
  scale_min(block.scales, p, scale, min);
  set_scale(out, half_at(block.d), scale, scale);
  set_offset(out, -half_at(block.dmin), min, min);
}
TANDEM_ALWAYS_INLINE void part(const BlockQ6_K& block, std::size_t p, Block32& out) {
  const std::size_t half = p / 4, quarter = p % 4;
  const std::uint8_t* ql = block.ql + 64 * half + 32 * (quarter % 2);
  const std::uint8_t* qh = block.qh + 32 * half;
  const int low_shift = quarter < 2 ? 0 : 4;
  const int high_shift = static_cast<int>(2 * quarter);
  for (int i = 0; i < 32; ++i) {
    out.c[i] = code((((ql[i] >> low_shift) & 15) | (((qh[i] >> high_shift) & 3) << 4)) - 32);
  }
  set_scale(out, half_at(block.d), block.scales[2 * p], block.scales[2 * p + 1]);
}

TANDEM_ALWAYS_INLINE void part(const BlockIQ2_XXS& block, std::size_t p, Block32& out) {
  const std::uint8_t* group = block.groups[p];
  const std::uint32_t word = word32(group + 4);
  for (int l = 0; l < 4; ++l) {
    signed_octet(kIq2XxsGrid.entry[group[l]], even_signs((word >> (7 * l)) & 127U), out.c + 8 * l);
  }
  const std::int32_t scale = static_cast<std::int32_t>(2 * (word >> 28) + 1);
  set_scale(out, half_at(block.d) * 0.125F, scale, scale);
}
TANDEM_ALWAYS_INLINE void part(const BlockIQ2_XS& block, std::size_t p, Block32& out) {
  for (std::size_t l = 0; l < 4; ++l) {
    const std::uint32_t word = word16(block.qs[4 * p + l]);
    signed_octet(kIq2XsGrid.entry[word & 511U], even_signs(word >> 9), out.c + 8 * l);
  }
  const int scales = block.scales[p];
  set_scale(out, half_at(block.d) * 0.125F, 2 * (scales & 15) + 1, 2 * (scales >> 4) + 1);
}
TANDEM_ALWAYS_INLINE void part(const BlockIQ2_S& block, std::size_t p, Block32& out) {
  for (std::size_t l = 0; l < 4; ++l) {
    const std::size_t index = block.qs[4 * p + l] | ((block.qh[p] >> (2 * l)) & 3U) << 8;
    signed_octet(kIq2SGrid.entry[index], block.signs[4 * p + l], out.c + 8 * l);
  }
  const int scales = block.scales[p];
  set_scale(out, half_at(block.d) * 0.125F, 2 * (scales & 15) + 1, 2 * (scales >> 4) + 1);
}
TANDEM_ALWAYS_INLINE void part(const BlockIQ3_XXS& block, std::size_t p, Block32& out) {
  const std::uint8_t* qs = block.qs + 8 * p;
  const std::uint32_t word = word32(block.words[p]);
  for (int l = 0; l < 4; ++l) {
    const std::uint64_t grid = two_quads(kIq3XxsGrid.entry[qs[2 * l]], kIq3XxsGrid.entry[qs[2 * l + 1]]);
    signed_octet(grid, even_signs((word >> (7 * l)) & 127U), out.c + 8 * l);
  }
  const std::int32_t scale = static_cast<std::int32_t>(2 * (word >> 28) + 1);
  set_scale(out, half_at(block.d) * 0.25F, scale, scale);
}
TANDEM_ALWAYS_INLINE void part(const BlockIQ3_S& block, std::size_t p, Block32& out) {
  const std::uint8_t* qs = block.qs + 8 * p;
  const std::size_t high = block.qh[p];
  for (std::size_t l = 0; l < 4; ++l) {
    const std::uint32_t low_quad = kIq3SGrid.entry[qs[2 * l] | ((high >> (2 * l)) & 1U) << 8];
    const std::uint32_t high_quad = kIq3SGrid.entry[qs[2 * l + 1] | ((high >> (2 * l + 1)) & 1U) << 8];
    signed_octet(two_quads(low_quad, high_quad), block.signs[4 * p + l], out.c + 8 * l);
  }
  const std::int32_t scale = 2 * ((block.scales[p / 2] >> (4 * (p % 2))) & 15) + 1;
  set_scale(out, half_at(block.d), scale, scale);
}
TANDEM_ALWAYS_INLINE void part(const BlockIQ1_S& block, std::size_t p, Block32& out) {
  const std::uint32_t word = word16(block.qh[p]);
  const int delta = (word & 0x8000U) != 0 ? -1 : 1;
  for (std::size_t l = 0; l < 4; ++l) {
    const std::size_t index = block.qs[4 * p + l] | ((word >> (3 * l)) & 7U) << 8;
    shifted_octet(kIq1SGrid.entry[index], delta, out.c + 8 * l);
  }
  const std::int32_t scale = static_cast<std::int32_t>(2 * ((word >> 12) & 7U) + 1);
  set_scale(out, half_at(block.d) * 0.125F, scale, scale);
}
TANDEM_ALWAYS_INLINE void part(const BlockIQ1_M& block, std::size_t p, Block32& out) {
  for (std::size_t l = 0; l < 4; ++l) {
    const std::uint32_t high = (std::uint32_t{block.qh[2 * p + l / 2]} >> (4 * (l % 2))) & 15U;
    const std::size_t index = block.qs[4 * p + l] | (high & 7U) << 8;
    shifted_octet(kIq1SGrid.entry[index], (high & 8U) != 0 ? -1 : 1, out.c + 8 * l);
  }
  std::uint32_t d = 0;  // the four top nibbles, lowest first
  for (int i = 0; i < 4; ++i) d |= (word16(block.scales[i]) >> 12) << (4 * i);
  const std::uint32_t word = word16(block.scales[p / 2]) >> (6 * (p % 2));
  set_scale(out, half_value(d) * 0.125F, static_cast<std::int32_t>(2 * (word & 7U) + 1),
            static_cast<std::int32_t>(2 * ((word >> 3) & 7U) + 1));
}
TANDEM_ALWAYS_INLINE void part(const BlockIQ4_NL& block, std::size_t, Block32& out) {
  nibbles_table(block.qs, kIq4Values, out.c);
  set_scale(out, half_at(block.d), 1, 1);
}
TANDEM_ALWAYS_INLINE void part(const BlockIQ4_XS& block, std::size_t p, Block32& out) {
  nibbles_table(block.qs + 16 * p, kIq4Values, out.c);
  const int low = (block.scales_l[p / 2] >> (4 * (p % 2))) & 15;
  const int high = static_cast<int>((word16(block.scales_h) >> (2 * p)) & 3U);
  set_scale(out, half_at(block.d), (low | high << 4) - 32, (low | high << 4) - 32);
}

// Order of a TQ1_0 block: trit n = 0..4 of qs[0..31], then n = 0..4 of qs[32..47], then n = 0..3 of qh[0..3].
TANDEM_ALWAYS_INLINE void part(const BlockTQ1_0& block, std::size_t p, Block32& out) {
  constexpr unsigned kPowers[5] = {1, 3, 9, 27, 81};
  if (p < 5) {
    for (int i = 0; i < 32; ++i) out.c[i] = code(trit(block.qs[i], kPowers[p]));
  } else {
    const unsigned first = kPowers[2 * (p - 5)];
    for (int i = 0; i < 16; ++i) out.c[i] = code(trit(block.qs[32 + i], first));
    for (int i = 0; i < 16; ++i) {
      out.c[16 + i] = code(p < 7 ? trit(block.qs[32 + i], 3 * first) : trit(block.qh[i % 4], kPowers[i / 4]));
    }
  }
  set_scale(out, half_at(block.d), 1, 1);
}
TANDEM_ALWAYS_INLINE void part(const BlockTQ2_0& block, std::size_t p, Block32& out) {
  const std::uint8_t* qs = block.qs + 32 * (p / 4);
  const int shift = static_cast<int>(2 * (p % 4));
  for (int i = 0; i < 32; ++i) out.c[i] = code(((qs[i] >> shift) & 3) - 1);
  set_scale(out, half_at(block.d), 1, 1);
}
TANDEM_ALWAYS_INLINE void part(const BlockMXFP4& block, std::size_t, Block32& out) {
  nibbles_table(block.qs, kFp4Values, out.c);
  // 2^(e - 128); the two smallest are float denormals.
  const std::uint32_t e = block.e;
  const float d = float_of_bits(e < 2 ? 0x00200000U << e : (e - 1) << 23);
  set_scale(out, d, 1, 1);
}
TANDEM_ALWAYS_INLINE void part(const BlockNVFP4& block, std::size_t p, Block32& out) {
  set_scale(out, 0.0F, 1, 1);
  for (std::size_t h = 0; h < 2; ++h) {
    const std::uint8_t* qs = block.qs[2 * p + h];
    for (int i = 0; i < 8; ++i) out.c[16 * h + static_cast<std::size_t>(i)] = kFp4Values[qs[i] & 15];
    for (int i = 0; i < 8; ++i) out.c[16 * h + 8 + static_cast<std::size_t>(i)] = kFp4Values[qs[i] >> 4];
    out.d[h] = half_ue4m3(block.scales[2 * p + h]);
  }
  out.split_scale = true;
}
TANDEM_ALWAYS_INLINE void part(const BlockQ1_0& block, std::size_t p, Block32& out) {
  const std::uint32_t bits = word32(block.bits + 4 * p);
  for (int i = 0; i < 32; ++i) out.c[i] = code(2 * static_cast<int>(bits >> i & 1U) - 1);
  set_scale(out, half_at(block.d), 1, 1);
}
TANDEM_ALWAYS_INLINE void part(const BlockQ2_0& block, std::size_t p, Block32& out) {
  const std::uint8_t* qs = block.qs + 8 * p;
  std::uint32_t quads[8];  // the four codes of a byte, one per byte of a word
  for (int i = 0; i < 8; ++i) {
    const std::uint32_t q = qs[i];
    quads[i] = (q | q << 6 | q << 12 | q << 18) & 0x03030303U;
  }
  __builtin_memcpy(out.c, quads, sizeof quads);
  for (int i = 0; i < 32; ++i) out.c[i] = code(out.c[i] - 1);
  set_scale(out, half_at(block.d), 1, 1);
}

}  // namespace decode

// Reads weights 32*b .. 32*b+31 of the row at `row`, like decode_block32 with the type known at compile time.
template <DType T>
TANDEM_ALWAYS_INLINE void decode_block32_as(const std::uint8_t* row, std::size_t b, Block32& out) {
  using Format = BlockFormat<T>;
  constexpr std::size_t kParts = Format::kElems / 32;
  decode::part(reinterpret_cast<const typename Format::Block*>(row)[b / kParts], b % kParts, out);
}

}  // namespace tandem
