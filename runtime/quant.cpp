#include "runtime/quant.h"

#include <bit>

#include "placement/check.h"
#include "runtime/quant_decode.h"

namespace tandem {
namespace {

constexpr DTypeInfo plain(DType type, std::string_view name, std::uint32_t bytes, DTypeKind kind) {
  return {type, name, 1, bytes, kind};
}
template <DType T>
constexpr DTypeInfo block(std::string_view name) {
  return {T, name, BlockFormat<T>::kElems, sizeof(typename BlockFormat<T>::Block), DTypeKind::kBlock};
}

constexpr DTypeInfo kTypes[] = {
    plain(DType::F32, "F32", 4, DTypeKind::kFloat),
    plain(DType::F16, "F16", 2, DTypeKind::kFloat),
    block<DType::Q4_0>("Q4_0"),
    block<DType::Q4_1>("Q4_1"),
    block<DType::Q5_0>("Q5_0"),
    block<DType::Q5_1>("Q5_1"),
    block<DType::Q8_0>("Q8_0"),
    block<DType::Q2_K>("Q2_K"),
    block<DType::Q3_K>("Q3_K"),
    block<DType::Q4_K>("Q4_K"),
    block<DType::Q5_K>("Q5_K"),
    block<DType::Q6_K>("Q6_K"),
    block<DType::IQ2_XXS>("IQ2_XXS"),
    block<DType::IQ2_XS>("IQ2_XS"),
    block<DType::IQ3_XXS>("IQ3_XXS"),
    block<DType::IQ1_S>("IQ1_S"),
    block<DType::IQ4_NL>("IQ4_NL"),
    block<DType::IQ3_S>("IQ3_S"),
    block<DType::IQ2_S>("IQ2_S"),
    block<DType::IQ4_XS>("IQ4_XS"),
    plain(DType::I8, "I8", 1, DTypeKind::kStorage),
    plain(DType::I16, "I16", 2, DTypeKind::kStorage),
    plain(DType::I32, "I32", 4, DTypeKind::kStorage),
    plain(DType::I64, "I64", 8, DTypeKind::kStorage),
    plain(DType::F64, "F64", 8, DTypeKind::kStorage),
    block<DType::IQ1_M>("IQ1_M"),
    plain(DType::BF16, "BF16", 2, DTypeKind::kFloat),
    block<DType::TQ1_0>("TQ1_0"),
    block<DType::TQ2_0>("TQ2_0"),
    block<DType::MXFP4>("MXFP4"),
    block<DType::NVFP4>("NVFP4"),
    block<DType::Q1_0>("Q1_0"),
    block<DType::Q2_0>("Q2_0"),
};

constexpr std::size_t kIdCount = 43;

struct TypeIndex {
  std::int8_t row[kIdCount];  // -1: no such type
};
constexpr TypeIndex make_type_index() {
  TypeIndex index{};
  for (std::int8_t& row : index.row) row = -1;
  std::int8_t row = 0;
  for (const DTypeInfo& info : kTypes) index.row[static_cast<std::uint32_t>(info.type)] = row++;
  return index;
}
constexpr TypeIndex kTypeIndex = make_type_index();

using DecodeFn = void (*)(const std::uint8_t*, std::size_t, Block32&);

DecodeFn decoder_of(DType type) {
  return visit_block_type(type, []<DType T>() -> DecodeFn {
    return [](const std::uint8_t* row, std::size_t b, Block32& out) { decode_block32_as<T>(row, b, out); };
  });
}

std::uint16_t load16(const std::uint8_t* bytes) {
  std::uint16_t bits;
  __builtin_memcpy(&bits, bytes, sizeof bits);
  return bits;
}

void dequantize_blocks(DType type, const std::uint8_t* row, std::size_t n, float* out) {
  const DecodeFn decode = decoder_of(type);
  Block32 block;
  for (std::size_t b = 0; b < n / 32; ++b) {
    decode(row, b, block);
    for (std::size_t half = 0; half < 2; ++half) {
      const float scale = block.d[half] * static_cast<float>(block.m[half]);
      const float offset = block.e * static_cast<float>(block.n[half]);
      float* values = out + 32 * b + 16 * half;
      const std::int8_t* codes = block.c + 16 * half;
      for (int i = 0; i < 16; ++i) values[i] = scale * static_cast<float>(codes[i]);
      if (block.has_offset) {
        for (int i = 0; i < 16; ++i) values[i] += offset;
      }
    }
  }
}

}  // namespace

const DTypeInfo* find_dtype(std::uint32_t id) {
  if (id >= kIdCount || kTypeIndex.row[id] < 0) return nullptr;
  return &kTypes[kTypeIndex.row[id]];
}

const DTypeInfo& dtype_info(DType type) {
  const DTypeInfo* info = find_dtype(static_cast<std::uint32_t>(type));
  CHECK(info != nullptr, "type id {}", static_cast<std::uint32_t>(type));
  return *info;
}

std::size_t row_bytes(DType type, std::size_t n) {
  const DTypeInfo& info = dtype_info(type);
  CHECK(n % info.block_elems == 0, "{} elements of {}", n, info.name);
  return n / info.block_elems * info.block_bytes;
}

float half_to_float(std::uint16_t bits) {
  return decode::half_value(bits);
}

std::uint16_t float_to_half(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {  // NaN: keep the top of the payload, and keep it a NaN
    return static_cast<std::uint16_t>(sign | 0x7C00U | ((magnitude >> 13) & 0x3FFU) | 0x200U);
  }
  if (magnitude >= 0x477FF000U) return static_cast<std::uint16_t>(sign | 0x7C00U);  // 65520 and above round to infinity
  // The result is `kept` plus one when the dropped bits are above the midpoint, or at it with `kept` odd. A carry out
  // of the mantissa steps the exponent, as it should.
  std::uint32_t significand = magnitude - (112U << 23);
  std::uint32_t shift = 13;
  if (magnitude < 0x38800000U) {  // below 2^-14: the result is a multiple of 2^-24
    const std::uint32_t exponent = magnitude >> 23;
    if (exponent < 102) return sign;  // below 2^-25
    significand = (magnitude & 0x7FFFFFU) | 0x800000U;
    shift = 126 - exponent;
  }
  const std::uint32_t kept = significand >> shift;
  const std::uint32_t dropped = significand & ((1U << shift) - 1);
  const std::uint32_t midpoint = 1U << (shift - 1);
  const std::uint32_t up = dropped > midpoint || (dropped == midpoint && (kept & 1U) != 0) ? 1 : 0;
  return static_cast<std::uint16_t>(sign | (kept + up));
}

void decode_block32(DType type, const std::uint8_t* row, std::size_t b, Block32& out) {
  decoder_of(type)(row, b, out);
}

void dequantize_row(DType type, const std::uint8_t* row, std::size_t n, float* out) {
  const DTypeInfo& info = dtype_info(type);
  CHECK(n % info.block_elems == 0, "{} elements of {}", n, info.name);
  switch (type) {
    case DType::F32:
      __builtin_memcpy(out, row, n * sizeof(float));
      return;
    case DType::F16:
      for (std::size_t i = 0; i < n; ++i) out[i] = decode::half_value(load16(row + 2 * i));
      return;
    case DType::BF16:
      for (std::size_t i = 0; i < n; ++i) out[i] = bf16_to_float(load16(row + 2 * i));
      return;
    default:
      dequantize_blocks(type, row, n, out);
  }
}

}  // namespace tandem
