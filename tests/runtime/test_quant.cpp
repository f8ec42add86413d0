// Checked against: the golden table of the GGUF format notes (docs/formats.md; sums and FNV-1a hashes that were
// compared with the format's own C code), the published sha256 of the lattice tables, IEEE-754 by double arithmetic,
// and a per-element reading of Block32 (the R3 formula) against dequantize_row.
#include "runtime/quant.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "runtime/iq_grids.h"
#include "runtime/quant_decode.h"
#include "tests/gguf_builder.h"
#include "tests/sha256.h"

namespace tandem {
namespace {

struct GoldenRow {
  DType type;
  double sum;
  double sum_abs;
  std::uint32_t fnv;
};

constexpr GoldenRow kGolden[] = {
    {DType::Q4_0, -13.25, 128.375, 0x008ceeac},
    {DType::Q4_1, 268.1875, 268.1875, 0xafebc6b5},
    {DType::Q5_0, -38.3125, 255.4375, 0x279d719e},
    {DType::Q5_1, 519.3125, 519.3125, 0xfa37f3ec},
    {DType::Q8_0, -59.5625, 2090.3125, 0x3986fc89},
    {DType::Q2_K, 267.3125, 334.5625, 0xdb7c73ce},
    {DType::Q3_K, 22.75, 935.375, 0x168d31b2},
    {DType::Q4_K, 5953.125, 6014, 0x2bc6b51a},
    {DType::Q5_K, 17768.6875, 17800.875, 0xfbb8f99d},
    {DType::Q6_K, -194.5625, 26370.4375, 0x4509f278},
    {DType::IQ2_XXS, 17.4453125, 1483.3203125, 0x4dd163da},
    {DType::IQ2_XS, 94.5234375, 1134.6953125, 0xc860dd29},
    {DType::IQ3_XXS, -305.5625, 3760.875, 0x8f6e399d},
    {DType::IQ1_S, 2.75, 231.265625, 0x58a673f0},
    {DType::IQ4_NL, -165.9375, 1831.4375, 0x391a2970},
    {DType::IQ3_S, 291, 3699.5, 0xc418616c},
    {DType::IQ2_S, 122.609375, 1545.25, 0xf65430a0},
    {DType::IQ4_XS, 877.5625, 29420.9375, 0x6e16c5f9},
    {DType::IQ1_M, -2.75, 160.84375, 0x8b814a27},
    {DType::TQ1_0, 0.6875, 20.8125, 0x7c98b4ee},
    {DType::TQ2_0, 16.375, 33.25, 0xc239f2bb},
    {DType::MXFP4, -2.5, 263.25, 0xa244e842},
    {DType::NVFP4, -9.875, 736.703125, 0xca5cc4ae},
    {DType::Q1_0, 0.5, 32, 0x0d9c4fc5},
    {DType::Q2_0, 16.25, 32.125, 0x3fd78eab},
};

// Pseudo-random rows of 512 values by the recipe of the golden table.
std::vector<std::uint8_t> golden_bytes(DType type) {
  const DTypeInfo& info = dtype_info(type);
  const std::size_t blocks = 512 / info.block_elems;
  std::vector<std::uint8_t> bytes(blocks * info.block_bytes);
  std::uint32_t state = 12345 + static_cast<std::uint32_t>(type);
  for (std::uint8_t& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<std::uint8_t>(state >> 24);
  }
  const testing::BlockHalves fields = testing::block_halves(type);
  for (std::size_t k = 0; k < blocks; ++k) {
    std::uint8_t* block = bytes.data() + k * info.block_bytes;
    if (fields.d >= 0) block[fields.d] = 0x00, block[fields.d + 1] = 0x2C;
    if (fields.second >= 0) block[fields.second] = 0x00, block[fields.second + 1] = 0x28;
    if (type == DType::IQ1_M) {
      block[49] &= 15, block[51] &= 15;
      block[53] = static_cast<std::uint8_t>((block[53] & 15) | 0xC0);
      block[55] = static_cast<std::uint8_t>((block[55] & 15) | 0x20);
    }
    if (type == DType::MXFP4) block[0] = static_cast<std::uint8_t>(123 + (k & 3));
    if (type == DType::NVFP4) {
      for (int j = 0; j < 4; ++j) block[j] = static_cast<std::uint8_t>(0x20 + (block[j] & 0x1F));
    }
  }
  return bytes;
}

std::uint32_t fnv1a(const std::vector<float>& values) {
  std::uint32_t hash = 2166136261U;
  for (const float value : values) {
    const std::uint32_t bits = value == 0.0F ? 0 : std::bit_cast<std::uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) hash = (hash ^ ((bits >> shift) & 0xFFU)) * 16777619U;
  }
  return hash;
}

std::vector<const DTypeInfo*> block_types() {
  std::vector<const DTypeInfo*> types;
  for (std::uint32_t id = 0; id < 64; ++id) {
    const DTypeInfo* info = find_dtype(id);
    if (info != nullptr && info->kind == DTypeKind::kBlock) types.push_back(info);
  }
  return types;
}

class QuantGolden : public ::testing::TestWithParam<GoldenRow> {};

TEST_P(QuantGolden, MatchesTheFormatTable) {
  const GoldenRow& golden = GetParam();
  const std::vector<std::uint8_t> bytes = golden_bytes(golden.type);
  std::vector<float> values(512);
  dequantize_row(golden.type, bytes.data(), values.size(), values.data());
  double sum = 0, sum_abs = 0;
  for (const float value : values) sum += value, sum_abs += std::fabs(value);
  EXPECT_EQ(sum, golden.sum);
  EXPECT_EQ(sum_abs, golden.sum_abs);
  EXPECT_EQ(fnv1a(values), golden.fnv);
}

// Blocks have no alignment: the same bytes at an odd address decode to the same values.
TEST_P(QuantGolden, DecodesAtAnyAddress) {
  const GoldenRow& golden = GetParam();
  std::vector<std::uint8_t> bytes = golden_bytes(golden.type);
  bytes.insert(bytes.begin(), 3, 0xA5);
  std::vector<float> values(512);
  dequantize_row(golden.type, bytes.data() + 3, values.size(), values.data());
  EXPECT_EQ(fnv1a(values), golden.fnv);
}

// Reads every Block32 by the formula of quant.h and compares it with dequantize_row, element by element.
TEST_P(QuantGolden, Block32SaysTheSameAsTheRow) {
  const DType type = GetParam().type;
  const std::vector<std::uint8_t> bytes = golden_bytes(type);
  std::vector<float> values(512);
  dequantize_row(type, bytes.data(), values.size(), values.data());
  for (std::size_t b = 0; b < values.size() / 32; ++b) {
    Block32 block;
    std::memset(&block, 0xEE, sizeof block);  // a field that decode leaves unset shows
    decode_block32(type, bytes.data(), b, block);
    EXPECT_EQ(block.split_scale, type == DType::NVFP4);
    EXPECT_TRUE(block.split_scale || block.d[0] == block.d[1]);
    EXPECT_TRUE(block.has_offset || (block.e == 0.0F && block.n[0] == 0 && block.n[1] == 0));
    for (std::size_t i = 0; i < 32; ++i) {
      const std::size_t h = i / 16;
      const double exact =
          static_cast<double>(block.d[h]) * block.m[h] * block.c[i] + static_cast<double>(block.e) * block.n[h];
      ASSERT_EQ(static_cast<double>(values[32 * b + i]), exact)
          << dtype_name(type) << " block " << b << " element " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllBlockTypes, QuantGolden, ::testing::ValuesIn(kGolden),
                         [](const auto& param) { return std::string(dtype_name(param.param.type)); });

TEST(Quant, GoldenTableCoversEveryBlockType) {
  const std::vector<const DTypeInfo*> types = block_types();
  EXPECT_EQ(types.size(), 25U);
  for (const DTypeInfo* info : types) {
    EXPECT_TRUE(std::any_of(std::begin(kGolden), std::end(kGolden), [&](const GoldenRow& golden) {
      return golden.type == info->type;
    })) << info->name;
  }
}

// The formats that carry an offset, and the only one with two float scales, by R3.
TEST(Quant, OffsetFormats) {
  for (const DTypeInfo* info : block_types()) {
    const std::vector<std::uint8_t> bytes = golden_bytes(info->type);
    Block32 block;
    decode_block32(info->type, bytes.data(), 0, block);
    const bool expected = info->type == DType::Q4_1 || info->type == DType::Q5_1 || info->type == DType::Q2_K ||
                          info->type == DType::Q4_K || info->type == DType::Q5_K;
    EXPECT_EQ(block.has_offset, expected) << info->name;
  }
}

// The kernels' bound on the integer sums: |m * c| stays small enough for exact int32 dot products.
TEST(Quant, RandomBytesKeepCodesInR3Range) {
  std::uint32_t state = 7;
  for (const DTypeInfo* info : block_types()) {
    const std::size_t blocks = 64 * 256 / info->block_elems;
    std::vector<std::uint8_t> bytes(blocks * info->block_bytes);
    for (std::uint8_t& byte : bytes) {
      state = state * 1664525 + 1013904223;
      byte = static_cast<std::uint8_t>(state >> 24);
    }
    for (std::size_t b = 0; b < blocks * info->block_elems / 32; ++b) {
      Block32 block;
      decode_block32(info->type, bytes.data(), b, block);
      for (int h = 0; h < 2; ++h) {
        ASSERT_LE(std::abs(block.m[h]), 128) << info->name;
        ASSERT_TRUE(block.n[h] >= 0 && block.n[h] <= 63) << info->name;
      }
    }
  }
}

TEST(Quant, MxFp4ScaleIsExactForEveryExponent) {
  for (int e = 0; e < 255; ++e) {
    std::vector<std::uint8_t> bytes(17, 0x11);  // every code 1
    bytes[0] = static_cast<std::uint8_t>(e);
    Block32 block;
    decode_block32(DType::MXFP4, bytes.data(), 0, block);
    EXPECT_EQ(static_cast<double>(block.d[0]), std::ldexp(1.0, e - 128)) << e;
    EXPECT_EQ(block.c[31], 1);
  }
}

TEST(Quant, NvFp4ScaleIsExactForEveryByte) {
  for (int s = 0; s < 128; ++s) {
    std::vector<std::uint8_t> bytes(36, 0x22);  // every code 2
    for (int j = 0; j < 4; ++j) bytes[static_cast<std::size_t>(j)] = static_cast<std::uint8_t>(s);
    const int exponent = s >> 3, mantissa = s & 7;
    double expected = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    if (s == 0x7F) expected = 0;
    for (std::size_t b = 0; b < 2; ++b) {
      Block32 block;
      decode_block32(DType::NVFP4, bytes.data(), b, block);
      EXPECT_EQ(static_cast<double>(block.d[0]), expected / 2) << s;
      EXPECT_EQ(static_cast<double>(block.d[1]), expected / 2) << s;
      EXPECT_EQ(block.c[17], 2);
    }
  }
}

// Both products of ((d * m) * c) + (e * n) fit a float exactly, so the row is the nearest float of the exact value,
// also where scale and offset are so far apart that the sum must be rounded.
TEST(Quant, RowsWithOffsetAreCorrectlyRounded) {
  for (const DType type : {DType::Q4_K, DType::Q5_K, DType::Q2_K, DType::Q4_1, DType::Q5_1}) {
    const DTypeInfo& info = dtype_info(type);
    const testing::BlockHalves fields = testing::block_halves(type);
    int rounded = 0;
    std::vector<std::uint8_t> bytes(info.block_bytes);
    std::vector<float> values(info.block_elems);
    for (std::uint32_t pattern = 0; pattern < 400; ++pattern) {
      for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(37 * i + 101 * pattern);
      bytes[static_cast<std::size_t>(fields.d) + 1] = 0x55;       // near 2^6
      bytes[static_cast<std::size_t>(fields.second) + 1] = 0x15;  // near 2^-10
      dequantize_row(type, bytes.data(), values.size(), values.data());
      for (std::size_t b = 0; b < values.size() / 32; ++b) {
        Block32 block;
        decode_block32(type, bytes.data(), b, block);
        for (std::size_t i = 0; i < 32; ++i) {
          const double exact = static_cast<double>(block.d[i / 16]) * block.m[i / 16] * block.c[i] +
                               static_cast<double>(block.e) * block.n[i / 16];
          ASSERT_EQ(values[32 * b + i], static_cast<float>(exact)) << info.name;
          rounded += static_cast<double>(values[32 * b + i]) != exact ? 1 : 0;
        }
      }
    }
    EXPECT_GT(rounded, 100) << info.name;  // otherwise this input says nothing about rounding
  }
}

TEST(Quant, FloatRowsAreExact) {
  const std::vector<float> wanted = {0.0F, -0.0F, 1.5F, -65504.0F, 0x1p-24F, 0x1p-14F};
  std::vector<std::uint16_t> halves, bfloats;
  for (const float value : wanted) halves.push_back(float_to_half(value));
  for (const float value : {1.0F, -2.5F, 0x1p100F, -0x1p-120F}) {
    bfloats.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16));
  }
  std::vector<float> out(6);
  dequantize_row(DType::F16, reinterpret_cast<const std::uint8_t*>(halves.data()), 6, out.data());
  EXPECT_EQ(std::memcmp(out.data(), wanted.data(), 6 * sizeof(float)), 0);
  dequantize_row(DType::F32, reinterpret_cast<const std::uint8_t*>(wanted.data()), 6, out.data());
  EXPECT_EQ(std::memcmp(out.data(), wanted.data(), 6 * sizeof(float)), 0);
  dequantize_row(DType::BF16, reinterpret_cast<const std::uint8_t*>(bfloats.data()), 4, out.data());
  EXPECT_EQ(std::vector<float>(out.begin(), out.begin() + 4), (std::vector<float>{1.0F, -2.5F, 0x1p100F, -0x1p-120F}));
}

double half_by_definition(std::uint32_t bits) {
  const int exponent = static_cast<int>((bits >> 10) & 31U), mantissa = static_cast<int>(bits & 1023U);
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24)
                                         : (exponent == 31 ? std::numeric_limits<double>::infinity()
                                                           : std::ldexp(1024 + mantissa, exponent - 25));
  return (bits & 0x8000U) != 0 ? -magnitude : magnitude;
}

TEST(Half, EveryBitPatternToFloatAndBack) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = half_to_float(static_cast<std::uint16_t>(bits));
    if ((bits & 0x7C00U) == 0x7C00U && (bits & 0x3FFU) != 0) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(std::isnan(half_to_float(float_to_half(value)))) << bits;
      ASSERT_EQ(std::signbit(value), bits >= 0x8000U);
      continue;
    }
    const double expected = half_by_definition(bits);
    ASSERT_EQ(static_cast<double>(value), expected) << bits;
    ASSERT_EQ(std::signbit(value), bits >= 0x8000U) << bits;
    ASSERT_EQ(float_to_half(value), bits);
  }
}

// Between two neighbouring halves: below the midpoint down, above it up, at it to the even one.
TEST(Half, RoundsToNearestEven) {
  for (std::uint32_t low = 0; low < 0x7C00U; ++low) {
    const double upper = low + 1 == 0x7C00U ? 65536.0 : half_by_definition(low + 1);
    const auto midpoint = static_cast<float>((half_by_definition(low) + upper) / 2);
    ASSERT_EQ(static_cast<double>(midpoint), (half_by_definition(low) + upper) / 2);  // exact in float
    const std::uint32_t even = (low & 1U) == 0 ? low : low + 1;
    ASSERT_EQ(float_to_half(midpoint), even) << low;
    ASSERT_EQ(float_to_half(-midpoint), even | 0x8000U) << low;
    ASSERT_EQ(float_to_half(std::nextafter(midpoint, 0.0F)), low);
    ASSERT_EQ(float_to_half(std::nextafter(midpoint, 1e9F)), low + 1);
  }
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(float_to_half(infinity), 0x7C00U);
  EXPECT_EQ(float_to_half(-infinity), 0xFC00U);
  EXPECT_EQ(float_to_half(3e38F), 0x7C00U);
  EXPECT_EQ(float_to_half(0x1p-149F), 0U);
  EXPECT_EQ(float_to_half(-0x1p-149F), 0x8000U);
}

TEST(Quant, TypeTable) {
  struct Row {
    std::uint32_t id;
    const char* name;
    std::uint32_t elems, bytes;
  };
  const Row rows[] = {
      {0, "F32", 1, 4},         {1, "F16", 1, 2},        {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
      {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},     {8, "Q8_0", 32, 34},      {10, "Q2_K", 256, 84},
      {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},  {13, "Q5_K", 256, 176},   {14, "Q6_K", 256, 210},
      {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74}, {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},
      {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110}, {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136},
      {24, "I8", 1, 1},         {25, "I16", 1, 2},       {26, "I32", 1, 4},        {27, "I64", 1, 8},
      {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},  {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},
      {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},   {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18},
      {42, "Q2_0", 64, 18},
  };
  std::size_t known = 0;
  for (std::uint32_t id = 0; id < 300; ++id) known += find_dtype(id) != nullptr ? 1U : 0U;
  EXPECT_EQ(known, std::size(rows));
  EXPECT_EQ(find_dtype(0xFFFFFFFFU), nullptr);
  for (const Row& row : rows) {
    const DTypeInfo* info = find_dtype(row.id);
    ASSERT_NE(info, nullptr) << row.name;
    EXPECT_EQ(info->name, row.name);
    EXPECT_EQ(static_cast<std::uint32_t>(info->type), row.id);
    EXPECT_EQ(info->block_elems, row.elems) << row.name;
    EXPECT_EQ(info->block_bytes, row.bytes) << row.name;
    EXPECT_EQ(info->kind == DTypeKind::kBlock, row.elems > 1) << row.name;
    EXPECT_EQ(row_bytes(info->type, 5 * row.elems), 5U * row.bytes) << row.name;
    EXPECT_EQ(row_bytes(info->type, 0), 0U);
  }
  EXPECT_EQ(dtype_info(DType::BF16).kind, DTypeKind::kFloat);
  EXPECT_EQ(dtype_info(DType::F64).kind, DTypeKind::kStorage);
  // The published sizes of one 160-wide n-gram row and one 2560 x 640 expert matrix; and a row past 32 bits.
  EXPECT_EQ(row_bytes(DType::IQ4_NL, 160), 90U);
  EXPECT_EQ(row_bytes(DType::IQ1_S, 2560) * 640, 320000U);
  EXPECT_EQ(row_bytes(DType::IQ4_NL, 160ULL * 320001536ULL), 28800138240ULL);
}

TEST(QuantDeathTest, MisuseAborts) {
  std::vector<float> out(256);
  std::vector<std::uint8_t> bytes(1024);
  Block32 block;
  EXPECT_DEATH((void)row_bytes(DType::Q4_K, 160), "160 elements of Q4_K");
  EXPECT_DEATH(dequantize_row(DType::Q8_0, bytes.data(), 33, out.data()), "33 elements of Q8_0");
  EXPECT_DEATH(dequantize_row(DType::I32, bytes.data(), 32, out.data()), "I32 is not a block format");
  EXPECT_DEATH(decode_block32(DType::F16, bytes.data(), 0, block), "F16 is not a block format");
  EXPECT_DEATH((void)dtype_name(static_cast<DType>(43)), "type id 43");
}

template <typename Entry, std::size_t count>
std::string grid_hash(const IqGrid<Entry, count>& grid) {
  return testing::sha256({reinterpret_cast<const std::uint8_t*>(grid.entry), sizeof grid.entry});
}

// Every entry of every table, by the sha256 of its bytes as the format notes publish them.
TEST(IqGrids, EveryTableHasItsPublishedHash) {
  const std::uint8_t abc[] = {'a', 'b', 'c'};
  ASSERT_EQ(testing::sha256(abc), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(grid_hash(kIq2XxsGrid), "05826b5d3e472a3a78f196be62ac78acf81df0f909626e12ab9fa2a5d490dd54");
  EXPECT_EQ(grid_hash(kIq2XsGrid), "06e47aaca60b4dc1d9b5a3f34540437058a6b142b4d7a59d5ded769b4d1bf1de");
  EXPECT_EQ(grid_hash(kIq2SGrid), "e1aa1473412b0552c2174c30ef22ab4073f6a181b85a17056e8249bd2932fd88");
  EXPECT_EQ(grid_hash(kIq3XxsGrid), "46e35f5a997efdee6c99ce57854c8a0d4f0ff8ca57e5e8a60c0793ea580acf5d");
  EXPECT_EQ(grid_hash(kIq3SGrid), "bd1af4945a1717c65610b0284e4628b9a1ba3b306fae3a06f6e5f597356e349f");
  EXPECT_EQ(grid_hash(kIq1SGrid), "07540ffc1aeaf6ad4d97e96b0fcc765aae39671d4ae4a27bbd0e796fde167c6a");
  EXPECT_EQ(testing::sha256({reinterpret_cast<const std::uint8_t*>(kIq4Values), 16}),
            "61aa47540aa024b5d6ddaa839b84ffe59f3d5a349af5c6c7ffcb5e0474b46163");
  EXPECT_EQ(testing::sha256({reinterpret_cast<const std::uint8_t*>(kFp4Values), 16}),
            "adf76b672d47eb7fc0afd4db132d548d59d3190aa0ad118fdbf569d5fd478f97");
  std::vector<std::uint8_t> signs(128);
  for (std::uint32_t i = 0; i < 128; ++i) signs[i] = static_cast<std::uint8_t>(decode::even_signs(i));
  EXPECT_EQ(testing::sha256(signs), "a76742a603f8beca5212ecce0f1f02f11a4887fd2f7c8b15aca0ea3eb3380c31");
}

}  // namespace
}  // namespace tandem
