// Tile kernels of the lattice types on every instruction set, against the scalar reference dot product, bit for bit,
// over what random blocks do not reach for certain: every lattice point, every pattern of signs (given and implied),
// every scale, and the codes and activations that make the largest sums.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cpu/kernels/lattice_tables.h"
#include "cpu/kernels/tile_kernels.h"
#include "cpu/reference_dot.h"
#include "runtime/iq_grids.h"
#include "runtime/quant_blocks.h"
#include "runtime/tile.h"

namespace tandem::testing {
namespace {

constexpr DType kTypes[] = {DType::IQ2_XXS, DType::IQ2_XS, DType::IQ2_S, DType::IQ3_XXS,
                            DType::IQ3_S,   DType::IQ1_S,  DType::IQ1_M};
constexpr std::size_t kCols = 2560;

std::size_t point_columns(DType type) {
  return type == DType::IQ3_XXS || type == DType::IQ3_S ? 4 : 8;
}
std::size_t point_count(DType type) {
  switch (type) {
    case DType::IQ2_XXS:
    case DType::IQ3_XXS:
      return 256;
    case DType::IQ2_XS:
    case DType::IQ3_S:
      return 512;
    case DType::IQ2_S:
      return 1024;
    default:
      return 2048;
  }
}

// Overwrites `bits` bits at bit `at` of a little-endian field.
void put_bits(std::uint8_t* field, std::size_t at, std::size_t bits, std::size_t value) {
  for (std::size_t i = 0; i < bits; ++i) {
    std::uint8_t& byte = field[(at + i) / 8];
    byte = static_cast<std::uint8_t>((byte & ~(1U << ((at + i) % 8))) | (value >> i & 1U) << ((at + i) % 8));
  }
}

// The file's encoding: index of point i of the 256 columns of a block.
void put_index(DType type, std::uint8_t* block, std::size_t i, std::size_t index) {
  switch (type) {
    case DType::IQ2_XXS:
      return put_bits(block + offsetof(BlockIQ2_XXS, groups), 64 * (i / 4) + 8 * (i % 4), 8, index);
    case DType::IQ2_XS:
      return put_bits(block + offsetof(BlockIQ2_XS, qs), 16 * i, 9, index);
    case DType::IQ2_S:
      put_bits(block + offsetof(BlockIQ2_S, qs), 8 * i, 8, index);
      return put_bits(block + offsetof(BlockIQ2_S, qh), 2 * i, 2, index >> 8);
    case DType::IQ3_XXS:
      return put_bits(block + offsetof(BlockIQ3_XXS, qs), 8 * i, 8, index);
    case DType::IQ3_S:
      put_bits(block + offsetof(BlockIQ3_S, qs), 8 * i, 8, index);
      return put_bits(block + offsetof(BlockIQ3_S, qh), i, 1, index >> 8);
    case DType::IQ1_S:
      put_bits(block + offsetof(BlockIQ1_S, qs), 8 * i, 8, index);
      return put_bits(block + offsetof(BlockIQ1_S, qh), 16 * (i / 4) + 3 * (i % 4), 3, index >> 8);
    default:
      put_bits(block + offsetof(BlockIQ1_M, qs), 8 * i, 8, index);
      return put_bits(block + offsetof(BlockIQ1_M, qh), 4 * i, 3, index >> 8);
  }
}
// Signs of octet o (the first seven where the eighth is implied); of the IQ1 types the shift, from bit 0.
void put_signs(DType type, std::uint8_t* block, std::size_t o, std::size_t signs) {
  switch (type) {
    case DType::IQ2_XXS:
      return put_bits(block + offsetof(BlockIQ2_XXS, groups), 64 * (o / 4) + 32 + 7 * (o % 4), 7, signs);
    case DType::IQ2_XS:
      return put_bits(block + offsetof(BlockIQ2_XS, qs), 16 * o + 9, 7, signs);
    case DType::IQ2_S:
      return put_bits(block + offsetof(BlockIQ2_S, signs), 8 * o, 8, signs);
    case DType::IQ3_XXS:
      return put_bits(block + offsetof(BlockIQ3_XXS, words), 32 * (o / 4) + 7 * (o % 4), 7, signs);
    case DType::IQ3_S:
      return put_bits(block + offsetof(BlockIQ3_S, signs), 8 * o, 8, signs);
    case DType::IQ1_S:
      return put_bits(block + offsetof(BlockIQ1_S, qh), 16 * (o / 4) + 15, 1, signs);
    default:
      return put_bits(block + offsetof(BlockIQ1_M, qh), 4 * o + 3, 1, signs);
  }
}
// A scale of about 2^-7.
void put_scale(DType type, std::uint8_t* block, std::mt19937& random) {
  const std::size_t half = 0x2000 + random() % 0x400;
  if (type != DType::IQ1_M) return put_bits(block, 0, 16, half);
  for (std::size_t i = 0; i < 4; ++i) put_bits(block + offsetof(BlockIQ1_M, scales), 16 * i + 12, 4, half >> (4 * i));
}

struct Matrix {
  std::vector<std::uint8_t> rows, tile;
};
// Sixteen rows of random bytes with sane scales; `edit(block, first)` may then change each block of 256 columns, of
// which `first` is the first point's running number.
template <typename Edit>
Matrix matrix(DType type, Edit&& edit) {
  std::mt19937 random(static_cast<std::uint32_t>(type) + 99);
  Matrix m{std::vector<std::uint8_t>(16 * row_bytes(type, kCols)), std::vector<std::uint8_t>(tile_bytes(type, kCols))};
  for (auto& byte : m.rows) byte = static_cast<std::uint8_t>(random());
  const std::size_t bytes = dtype_info(type).block_bytes;
  for (std::size_t b = 0; b < m.rows.size() / bytes; ++b) {
    put_scale(type, m.rows.data() + b * bytes, random);
    edit(m.rows.data() + b * bytes, b * (256 / point_columns(type)));
  }
  pack_tile(type, m.rows.data(), 16, kCols, m.tile.data());
  return m;
}

struct Activations {
  std::vector<std::int8_t> q;
  std::vector<float> d;
  std::vector<std::int32_t> s;
};
template <typename Value>
Activations activations(Value&& value) {
  Activations a{std::vector<std::int8_t>(kCols), std::vector<float>(kCols / 32, 0.0078125F),
                std::vector<std::int32_t>(kCols / 16, 0)};
  for (std::size_t i = 0; i < kCols; ++i) {
    a.q[i] = static_cast<std::int8_t>(value(i));
    a.s[i / 16] += a.q[i];
  }
  return a;
}

int never_zero(std::mt19937& random) {
  const int magnitude = 1 + static_cast<int>(random() % 127);
  return random() % 2 == 0 ? magnitude : -magnitude;
}

class LatticeKernels : public ::testing::TestWithParam<std::tuple<DType, TileIsa>> {
 protected:
  DType type() const { return std::get<0>(GetParam()); }
  TileIsa isa() const { return std::get<1>(GetParam()); }
  void SetUp() override {
    if (!tile_isa_supported(isa())) GTEST_SKIP() << "this processor has no " << tile_isa_name(isa());
    ASSERT_NE(tile_function(isa(), type()), nullptr);
  }
  void expect_reference(const Matrix& m, const Activations& a) const {
    float found[16];
    const TileJob job{a.q.data(), a.d.data(), a.s.data(), found};
    tile_function(isa(), type())(m.tile.data(), kCols, &job, 1, 16, 1.0F);
    for (std::size_t r = 0; r < 16; ++r) {
      const float expected = dot_block_ref(type(), m.rows.data() + r * row_bytes(type(), kCols), kCols, a.q.data(),
                                           a.d.data(), a.s.data());
      ASSERT_EQ(std::memcmp(&expected, &found[r], sizeof expected), 0)
          << "row " << r << ": " << found[r] << " for " << expected;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(All, LatticeKernels,
                         ::testing::Combine(::testing::ValuesIn(kTypes), ::testing::ValuesIn(kAllTileIsas)),
                         [](const auto& test) {
                           return std::string(dtype_name(std::get<0>(test.param))) + "_" +
                                  std::string(tile_isa_name(std::get<1>(test.param)));
                         });

// No activation is zero, so that no wrong code goes unseen. 37 is odd: the numbers run through all points.
TEST_P(LatticeKernels, EveryPoint) {
  std::mt19937 random(5);
  const Activations a = activations([&](std::size_t) { return never_zero(random); });
  const std::size_t points = 256 / point_columns(type());
  for (const std::size_t start : {0U, 11U, 501U}) {
    const Matrix m = matrix(type(), [&](std::uint8_t* block, std::size_t first) {
      for (std::size_t i = 0; i < points; ++i)
        put_index(type(), block, i, (start + 37 * (first + i)) % point_count(type()));
    });
    expect_reference(m, a);
  }
}

TEST_P(LatticeKernels, EveryPatternOfSigns) {
  std::mt19937 random(6);
  const Activations a = activations([&](std::size_t) { return never_zero(random); });
  for (std::size_t pattern = 0; pattern < 256; pattern += 7) {  // every pattern occurs, in different octets
    const Matrix m = matrix(type(), [&](std::uint8_t* block, std::size_t first) {
      for (std::size_t o = 0; o < 32; ++o) put_signs(type(), block, o, pattern + 5 * (first / 32) + 3 * o);
    });
    expect_reference(m, a);
  }
}

// One column at a time: the result is that code alone, times its multiplier and scale.
TEST_P(LatticeKernels, EveryColumnAlone) {
  const Matrix m = matrix(type(), [](std::uint8_t*, std::size_t) {});
  for (std::size_t column = 256; column < 512; ++column)
    expect_reference(m, activations([&](std::size_t i) { return i == column ? -127 : 0; }));
}

// Products of the largest codes and activations, all of one sign, stay inside every intermediate type.
TEST_P(LatticeKernels, LargestSums) {
  const auto sum_of = [&](std::size_t index) {
    const std::uint64_t entry = type() == DType::IQ2_XXS   ? kIq2XxsGrid.entry[index]
                                : type() == DType::IQ2_XS  ? kIq2XsGrid.entry[index]
                                : type() == DType::IQ2_S   ? kIq2SGrid.entry[index]
                                : type() == DType::IQ3_XXS ? kIq3XxsGrid.entry[index]
                                : type() == DType::IQ3_S   ? kIq3SGrid.entry[index]
                                                           : kIq1SGrid.entry[index];
    int sum = 0;
    for (std::size_t j = 0; j < point_columns(type()); ++j) sum += static_cast<std::int8_t>(entry >> (8 * j) & 255);
    return sum;
  };
  std::size_t largest = 0;
  for (std::size_t index = 0; index < point_count(type()); ++index)
    if (sum_of(index) > sum_of(largest)) largest = index;
  for (const std::size_t signs : {0U, 255U})
    for (const int q : {127, -127}) {
      const Matrix m = matrix(type(), [&](std::uint8_t* block, std::size_t) {
        for (std::size_t i = 0; i < 256 / point_columns(type()); ++i) put_index(type(), block, i, largest);
        for (std::size_t o = 0; o < 32; ++o) put_signs(type(), block, o, signs);
      });
      expect_reference(m, activations([&](std::size_t) { return q; }));
    }
}

template <typename Entry, std::size_t count>
void expect_table(const LatticeTable<Entry, count>& table, const IqGrid<Entry, count>& grid,
                  const LatticeDigits& lattice, int unit, int offset) {
  const bool quads = lattice.bits == 3;  // columns 0 and 2, and 1 and 3
  for (std::size_t e = 0; e < count; ++e)
    for (std::size_t j = 0; j < sizeof(Entry); ++j) {
      const int value = static_cast<std::int8_t>(grid.entry[e] >> (8 * j) & 255);
      const int code = static_cast<int>(table.codes[e] >> (8 * j) & 255);
      ASSERT_EQ(code, unit * value + offset + lattice.bias);
      const std::size_t digit =
          quads ? table.digits[j % 2][e] >> (3 * (j / 2)) & 7U : table.digits[j / 4][e] >> (2 * (j % 4)) & 3U;
      ASSERT_EQ(lattice.codes[digit], code);
    }
}
TEST(LatticeTables, HoldTheGrids) {
  const LatticeTables& tables = lattice_tables();
  expect_table(tables.iq2_xxs, kIq2XxsGrid, kIq2Digits, 1, 0);
  expect_table(tables.iq2_xs, kIq2XsGrid, kIq2Digits, 1, 0);
  expect_table(tables.iq2_s, kIq2SGrid, kIq2Digits, 1, 0);
  expect_table(tables.iq3_xxs, kIq3XxsGrid, kIq3XxsDigits, 1, 0);
  expect_table(tables.iq3_s, kIq3SGrid, kIq3SDigits, 1, 0);
  expect_table(tables.iq1, kIq1SGrid, kIq1Digits, 8, 1);
}

}  // namespace
}  // namespace tandem::testing
