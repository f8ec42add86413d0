// Block structures of every GGUF block format (docs/formats.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "placement/check.h"
#include "runtime/quant.h"

namespace tandem {

// All fields are bytes, so that a block may lie at any address.
using Bytes2 = std::uint8_t[2];  // a little-endian half or 16-bit word

struct BlockQ4_0 {
  Bytes2 d;
  std::uint8_t qs[16];
};
struct BlockQ4_1 {
  Bytes2 d, m;
  std::uint8_t qs[16];
};
struct BlockQ5_0 {
  Bytes2 d;
  std::uint8_t qh[4], qs[16];
};
struct BlockQ5_1 {
  Bytes2 d, m;
  std::uint8_t qh[4], qs[16];
};
struct BlockQ8_0 {
  Bytes2 d;
  std::int8_t qs[32];
};
struct BlockQ2_K {
  std::uint8_t scales[16], qs[64];
  Bytes2 d, dmin;
};
struct BlockQ3_K {
  std::uint8_t hmask[32], qs[64], scales[12];
  Bytes2 d;
};
struct BlockQ4_K {
  Bytes2 d, dmin;
  std::uint8_t scales[12], qs[128];
};
struct BlockQ5_K {
  Bytes2 d, dmin;
  std::uint8_t scales[12], qh[32], qs[128];
};
struct BlockQ6_K {
  std::uint8_t ql[128], qh[64];
  std::int8_t scales[16];
  Bytes2 d;
};
struct BlockIQ2_XXS {
  Bytes2 d;
  std::uint8_t groups[8][8];  // four grid indices, then a 32-bit word of signs and scale
};
struct BlockIQ2_XS {
  Bytes2 d;
  Bytes2 qs[32];
  std::uint8_t scales[8];
};
struct BlockIQ2_S {
  Bytes2 d;
  std::uint8_t qs[32], signs[32], qh[8], scales[8];
};
struct BlockIQ3_XXS {
  Bytes2 d;
  std::uint8_t qs[64], words[8][4];
};
struct BlockIQ3_S {
  Bytes2 d;
  std::uint8_t qs[64], qh[8], signs[32], scales[4];
};
struct BlockIQ1_S {
  Bytes2 d;
  std::uint8_t qs[32];
  Bytes2 qh[8];
};
struct BlockIQ1_M {
  std::uint8_t qs[32], qh[16];
  Bytes2 scales[4];
};
struct BlockIQ4_NL {
  Bytes2 d;
  std::uint8_t qs[16];
};
struct BlockIQ4_XS {
  Bytes2 d, scales_h;
  std::uint8_t scales_l[4], qs[128];
};
struct BlockTQ1_0 {
  std::uint8_t qs[48], qh[4];
  Bytes2 d;
};
struct BlockTQ2_0 {
  std::uint8_t qs[64];
  Bytes2 d;
};
struct BlockMXFP4 {
  std::uint8_t e, qs[16];
};
struct BlockNVFP4 {
  std::uint8_t scales[4], qs[4][8];
};
struct BlockQ1_0 {
  Bytes2 d;
  std::uint8_t bits[16];
};
struct BlockQ2_0 {
  Bytes2 d;
  std::uint8_t qs[16];
};

// Structure and element count of a block format; the assertion pins the size to the format's definition.
template <DType T>
struct BlockFormat;
#define TANDEM_BLOCK_FORMAT(name, elems, bytes)             \
  template <>                                               \
  struct BlockFormat<DType::name> {                         \
    using Block = Block##name;                              \
    static constexpr std::size_t kElems = elems;            \
    static_assert(sizeof(Block) == bytes, #name);           \
    static_assert(alignof(Block) == 1 && kElems % 32 == 0); \
  }
TANDEM_BLOCK_FORMAT(Q4_0, 32, 18);
TANDEM_BLOCK_FORMAT(Q4_1, 32, 20);
TANDEM_BLOCK_FORMAT(Q5_0, 32, 22);
TANDEM_BLOCK_FORMAT(Q5_1, 32, 24);
TANDEM_BLOCK_FORMAT(Q8_0, 32, 34);
TANDEM_BLOCK_FORMAT(Q2_K, 256, 84);
TANDEM_BLOCK_FORMAT(Q3_K, 256, 110);
TANDEM_BLOCK_FORMAT(Q4_K, 256, 144);
TANDEM_BLOCK_FORMAT(Q5_K, 256, 176);
TANDEM_BLOCK_FORMAT(Q6_K, 256, 210);
TANDEM_BLOCK_FORMAT(IQ2_XXS, 256, 66);
TANDEM_BLOCK_FORMAT(IQ2_XS, 256, 74);
TANDEM_BLOCK_FORMAT(IQ2_S, 256, 82);
TANDEM_BLOCK_FORMAT(IQ3_XXS, 256, 98);
TANDEM_BLOCK_FORMAT(IQ3_S, 256, 110);
TANDEM_BLOCK_FORMAT(IQ1_S, 256, 50);
TANDEM_BLOCK_FORMAT(IQ1_M, 256, 56);
TANDEM_BLOCK_FORMAT(IQ4_NL, 32, 18);
TANDEM_BLOCK_FORMAT(IQ4_XS, 256, 136);
TANDEM_BLOCK_FORMAT(TQ1_0, 256, 54);
TANDEM_BLOCK_FORMAT(TQ2_0, 256, 66);
TANDEM_BLOCK_FORMAT(MXFP4, 32, 17);
TANDEM_BLOCK_FORMAT(NVFP4, 64, 36);
TANDEM_BLOCK_FORMAT(Q1_0, 128, 18);
TANDEM_BLOCK_FORMAT(Q2_0, 64, 18);
#undef TANDEM_BLOCK_FORMAT

// Calls visitor.template operator()<T>() with the block type as a template argument: one switch for all code that is
// compiled per format. REQUIRES a kBlock type.
template <typename Visitor>
decltype(auto) visit_block_type(DType type, Visitor&& visitor) {
  switch (type) {
#define TANDEM_VISIT(name) \
  case DType::name:        \
    return std::forward<Visitor>(visitor).template operator()<DType::name>()
    TANDEM_VISIT(Q4_0);
    TANDEM_VISIT(Q4_1);
    TANDEM_VISIT(Q5_0);
    TANDEM_VISIT(Q5_1);
    TANDEM_VISIT(Q8_0);
    TANDEM_VISIT(Q2_K);
    TANDEM_VISIT(Q3_K);
    TANDEM_VISIT(Q4_K);
    TANDEM_VISIT(Q5_K);
    TANDEM_VISIT(Q6_K);
    TANDEM_VISIT(IQ2_XXS);
    TANDEM_VISIT(IQ2_XS);
    TANDEM_VISIT(IQ2_S);
    TANDEM_VISIT(IQ3_XXS);
    TANDEM_VISIT(IQ3_S);
    TANDEM_VISIT(IQ1_S);
    TANDEM_VISIT(IQ1_M);
    TANDEM_VISIT(IQ4_NL);
    TANDEM_VISIT(IQ4_XS);
    TANDEM_VISIT(TQ1_0);
    TANDEM_VISIT(TQ2_0);
    TANDEM_VISIT(MXFP4);
    TANDEM_VISIT(NVFP4);
    TANDEM_VISIT(Q1_0);
    TANDEM_VISIT(Q2_0);
#undef TANDEM_VISIT
    case DType::F32:
    case DType::F16:
    case DType::BF16:
    case DType::I8:
    case DType::I16:
    case DType::I32:
    case DType::I64:
    case DType::F64:
      break;
  }
  CHECK(false, "{} is not a block format", dtype_name(type));
  __builtin_unreachable();
}

}  // namespace tandem
