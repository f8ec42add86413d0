// Element types of GGUF tensors and the integer reading of every block format (docs/numerics.md, R3).
// One definition serves the reference dot product, the fast kernels, row look-ups and `eval --reference`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tandem {

// GGUF type ids. The enum lists every id that a file may carry and that we can read; anything else is refused by name.
enum class DType : std::uint32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q2_K = 10,
  Q3_K = 11,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  IQ2_XXS = 16,
  IQ2_XS = 17,
  IQ3_XXS = 18,
  IQ1_S = 19,
  IQ4_NL = 20,
  IQ3_S = 21,
  IQ2_S = 22,
  IQ4_XS = 23,
  I8 = 24,
  I16 = 25,
  I32 = 26,
  I64 = 27,
  F64 = 28,
  IQ1_M = 29,
  BF16 = 30,
  TQ1_0 = 34,
  TQ2_0 = 35,
  MXFP4 = 39,
  NVFP4 = 40,
  Q1_0 = 41,
  Q2_0 = 42,
};

enum class DTypeKind : std::uint8_t {
  kFloat,    // F32, F16, BF16: usable as weights, multiplied in float
  kBlock,    // a block format: usable as weights, multiplied in integers (R3)
  kStorage,  // plain integers and F64: allowed in a directory, never a weight
};

struct DTypeInfo {
  DType type;
  std::string_view name;
  std::uint32_t block_elems;  // elements per block, 1 for plain types
  std::uint32_t block_bytes;
  DTypeKind kind;
};

// The row of the type table for a GGUF type id, or nullptr when the id is unknown or was removed from the format.
const DTypeInfo* find_dtype(std::uint32_t id);
const DTypeInfo& dtype_info(DType type);
inline std::string_view dtype_name(DType type) {
  return dtype_info(type).name;
}

// Bytes of one row of n elements. REQUIRES n % block_elems == 0.
std::size_t row_bytes(DType type, std::size_t n);

// IEEE half and bfloat16 to float, exact.
float half_to_float(std::uint16_t bits);
std::uint16_t float_to_half(float value);  // round to nearest even
inline float bf16_to_float(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value;
  __builtin_memcpy(&value, &wide, sizeof value);
  return value;
}

// 32 consecutive weights of one row in integer form:
//   value[i] = d[h] * m[h] * c[i] + e * n[h]      with half h = i / 16
// For every format but NVFP4 d[0] == d[1], and the dot product takes one fma per block (R3). NVFP4 carries a float
// scale per 16 values (split_scale): two fma steps, first half first.
struct Block32 {
  alignas(32) std::int8_t c[32];
  std::int32_t m[2];
  std::int32_t n[2];  // 0 when the format has no offset
  float d[2];
  float e;  // 0 when the format has no offset
  bool has_offset;
  bool split_scale;
};

// Reads weights 32*b .. 32*b+31 of the row that starts at `row`. REQUIRES a kBlock type.
void decode_block32(DType type, const std::uint8_t* row, std::size_t b, Block32& out);

// A whole row to float, n elements. Block formats are rounded as ((d*m)*c) + (e*n), each product and the sum to
// nearest (the order that the format's own tools use). Float types are converted exactly. REQUIRES n % block_elems ==
// 0.
void dequantize_row(DType type, const std::uint8_t* row, std::size_t n, float* out);

}  // namespace tandem
