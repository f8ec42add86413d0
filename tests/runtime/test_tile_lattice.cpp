// Tile layouts of the lattice types. Checked against: the text of docs/formats.md, read here element by element without
// the packing's code, which must find what decode_block32 finds in the file's rows; places of single bits worked out by
// hand; the file's bytes after the way back.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "runtime/iq_grids.h"
#include "runtime/tile.h"
#include "tests/runtime/tile_reader.h"

namespace tandem {
namespace {

using testing::random_bytes;

constexpr DType kLatticeTypes[] = {DType::IQ2_XXS, DType::IQ2_XS, DType::IQ2_S, DType::IQ3_XXS,
                                   DType::IQ3_S,   DType::IQ1_S,  DType::IQ1_M};

// The table of docs/formats.md.
struct Layout {
  std::size_t segment, blocks, step, signs, qh;
};
Layout layout_of(DType type) {
  constexpr std::size_t kNone = 0;
  switch (type) {
    case DType::IQ2_XXS:
      return {1056, 32, 128, 64, kNone};
    case DType::IQ2_XS:
      return {1184, 160, 128, 64, kNone};
    case DType::IQ2_S:
      return {1312, 160, 144, 64, 128};
    case DType::IQ3_XXS:
      return {1568, 32, 192, 128, kNone};
    case DType::IQ3_S:
      return {1760, 96, 208, 128, 192};
    case DType::IQ1_S:
      return {800, 32, 96, kNone, 64};
    default:
      return {896, 128, 96, kNone, 64};
  }
}

// One block of one row of a tile.
struct Reader {
  DType type;
  const std::uint8_t *segment, *block;
  std::size_t r, p;  // row, number of the block in its segment

  Reader(DType t, const std::uint8_t* tile, std::size_t row, std::size_t b) : type(t), r(row), p(b % 8) {
    segment = tile + b / 8 * layout_of(type).segment;
    block = segment + layout_of(type).blocks + p * layout_of(type).step;
  }
  std::uint32_t word16(const std::uint8_t* field) const { return field[2 * r] | std::uint32_t{field[2 * r + 1]} << 8; }
  std::uint32_t qh() const {
    const std::uint8_t* at = block + layout_of(type).qh;
    return type == DType::IQ1_S || type == DType::IQ1_M ? word16(at) : at[r];
  }
  // Bit `bit` of byte j of the row in the sign plane.
  int plane(std::size_t bit, std::size_t j) const { return block[layout_of(type).signs + 4 * r + j] >> bit & 1; }
  // What stands in place of the last sign of octet o.
  int guest(std::size_t o) const { return plane(2 * o + 1, 3); }
  bool has_guests() const { return type == DType::IQ2_XXS || type == DType::IQ2_XS || type == DType::IQ3_XXS; }

  int sign(std::size_t column) const {
    if (column % 8 != 7 || !has_guests()) return plane(column / 4, column % 4) != 0 ? -1 : 1;
    int product = 1;
    for (std::size_t c = column - 7; c < column; ++c) product *= sign(c);
    return product;
  }
  std::size_t index(std::size_t i) const {  // of octet or quad i
    std::size_t high = 0;
    if (type == DType::IQ2_XS) high = static_cast<std::size_t>(guest(i));
    if (type == DType::IQ2_S) high = qh() >> (2 * i) & 3;
    if (type == DType::IQ3_S) high = qh() >> i & 1;
    if (type == DType::IQ1_S) high = qh() >> (3 * i) & 7;
    if (type == DType::IQ1_M) high = qh() >> (4 * i) & 7;
    return block[64 * (i / 4) + 4 * r + i % 4] + 256 * high;
  }
  template <typename Entry>
  static int value(Entry entry, std::size_t j) {
    return static_cast<std::int8_t>(entry >> (8 * j) & 255);
  }
  int code(std::size_t c) const {
    switch (type) {
      case DType::IQ2_XXS:
        return sign(c) * value(kIq2XxsGrid.entry[index(c / 8)], c % 8);
      case DType::IQ2_XS:
        return sign(c) * value(kIq2XsGrid.entry[index(c / 8)], c % 8);
      case DType::IQ2_S:
        return sign(c) * value(kIq2SGrid.entry[index(c / 8)], c % 8);
      case DType::IQ3_XXS:
        return sign(c) * value(kIq3XxsGrid.entry[index(c / 4)], c % 4);
      case DType::IQ3_S:
        return sign(c) * value(kIq3SGrid.entry[index(c / 4)], c % 4);
      default: {
        const std::uint32_t bit = type == DType::IQ1_S ? 15 : static_cast<std::uint32_t>(4 * (c / 8) + 3);
        return 8 * value(kIq1SGrid.entry[index(c / 8)], c % 8) + ((qh() >> bit & 1U) != 0 ? -1 : 1);
      }
    }
  }
  int multiplier(std::size_t half) const {
    int s = 0;
    if (type == DType::IQ2_XXS || type == DType::IQ3_XXS)
      for (std::size_t o = 0; o < 4; ++o) s |= guest(o) << o;
    if (type == DType::IQ2_XS || type == DType::IQ2_S) s = segment[32 + 16 * p + r] >> (4 * half) & 15;
    if (type == DType::IQ3_S) s = segment[32 + 16 * (p / 2) + r] >> (4 * (p % 2)) & 15;
    if (type == DType::IQ1_S) s = qh() >> 12 & 7;
    if (type == DType::IQ1_M) s = static_cast<int>(word16(segment + 32 * (p / 2)) >> (6 * (p % 2) + 3 * half) & 7);
    return 2 * s + 1;
  }
  float scale() const {
    std::uint32_t half = word16(segment);
    if (type == DType::IQ1_M) {
      half = 0;
      for (std::uint32_t i = 0; i < 4; ++i) half |= (word16(segment + 32 * i) >> 12) << (4 * i);
    }
    const float d = half_to_float(static_cast<std::uint16_t>(half));
    return type == DType::IQ3_S ? d : d * (type == DType::IQ3_XXS ? 0.25F : 0.125F);
  }
};

std::vector<std::uint8_t> packed(DType type, const std::vector<std::uint8_t>& rows, std::size_t count,
                                 std::size_t cols) {
  std::vector<std::uint8_t> tile(tile_bytes(type, cols), 0xA5);
  pack_tile(type, rows.data(), count, cols, tile.data());
  return tile;
}

class LatticeTile : public ::testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(Types, LatticeTile, ::testing::ValuesIn(kLatticeTypes),
                         [](const auto& param) { return std::string(dtype_name(param.param)); });

TEST_P(LatticeTile, EveryElementLiesWhereTheDocumentSays) {
  const DType type = GetParam();
  for (const std::size_t cols : {256U, 768U}) {
    const std::size_t stride = row_bytes(type, cols);
    const std::vector<std::uint8_t> zero_row(stride, 0);
    for (const std::size_t count : {1U, 11U, 16U}) {
      const auto rows = random_bytes(count * stride, cols + count);
      const auto tile = packed(type, rows, count, cols);
      for (std::size_t r = 0; r < kTileRows; ++r)
        for (std::size_t b = 0; b < cols / 32; ++b) {
          SCOPED_TRACE(::testing::Message() << cols << " columns, row " << r << " of " << count << ", block " << b);
          Block32 expected;
          decode_block32(type, r < count ? rows.data() + r * stride : zero_row.data(), b, expected);
          const Reader found(type, tile.data(), r, b);
          for (std::size_t c = 0; c < 32; ++c) ASSERT_EQ(found.code(c), expected.c[c]) << "column " << c;
          for (const std::size_t half : {0U, 1U}) {
            ASSERT_EQ(found.multiplier(half), expected.m[half]);
            ASSERT_EQ(std::bit_cast<std::uint32_t>(found.scale()), std::bit_cast<std::uint32_t>(expected.d[half]));
          }
        }
    }
  }
}

TEST_P(LatticeTile, UnpackGivesTheFilesBytes) {
  const DType type = GetParam();
  for (const std::size_t cols : {256U, 768U, 2560U}) {
    const std::size_t stride = row_bytes(type, cols);
    for (std::size_t count = 1; count <= kTileRows; ++count) {
      auto rows = random_bytes(count * stride, 7 * cols + count);
      const auto tile = packed(type, rows, count, cols);
      std::vector<std::uint8_t> back(rows.size() + 64, 0xA5);
      unpack_tile(type, tile.data(), count, cols, back.data());
      rows.resize(back.size(), 0xA5);
      ASSERT_EQ(back, rows) << cols << " columns, " << count << " rows";
    }
  }
}

TEST_P(LatticeTile, PackingMovesBitsAndLosesNone) {
  const DType type = GetParam();
  const std::size_t stride = row_bytes(type, 256);
  std::vector<std::uint8_t> seen(tile_bytes(type, 256), 0);
  for (std::size_t row = 0; row < kTileRows; ++row)
    for (std::size_t bit = 0; bit < 8 * stride; ++bit) {
      std::vector<std::uint8_t> rows(kTileRows * stride, 0);
      rows[row * stride + bit / 8] = static_cast<std::uint8_t>(1U << (bit % 8));
      const auto tile = packed(type, rows, kTileRows, 256);
      int set = 0;
      for (std::size_t i = 0; i < tile.size(); ++i) {
        set += std::popcount(tile[i]);
        EXPECT_EQ(seen[i] & tile[i], 0) << "two bits of the file at byte " << i;
        seen[i] = static_cast<std::uint8_t>(seen[i] | tile[i]);
      }
      ASSERT_EQ(set, 1) << "row " << row << " bit " << bit;
    }
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](std::uint8_t byte) { return byte == 0xFF; }));
}

TEST_P(LatticeTile, MissingRowsAreZeroBytes) {
  const DType type = GetParam();
  const std::size_t stride = row_bytes(type, 512);
  for (std::size_t count = 1; count < kTileRows; ++count) {
    auto rows = random_bytes(count * stride, count);
    const auto tile = packed(type, rows, count, 512);
    rows.resize(kTileRows * stride, 0);
    EXPECT_EQ(tile, packed(type, rows, kTileRows, 512)) << count;
  }
}

TEST_P(LatticeTile, TakesTheBytesOfSixteenRows) {
  const DType type = GetParam();
  EXPECT_TRUE(has_tile_layout(type));
  EXPECT_EQ(tile_bytes(type, 256), layout_of(type).segment);
  EXPECT_EQ(tile_segment_bytes(type, 8), layout_of(type).segment);
  EXPECT_EQ(tile_bytes(type, 2560), 10 * layout_of(type).segment);
  EXPECT_EQ(tile_bytes(type, 2560), 16 * row_bytes(type, 2560));
  EXPECT_EQ(layout_of(type).segment, layout_of(type).blocks + 8 * layout_of(type).step);
}

TEST_P(LatticeTile, ShortSegmentsAreMistakes) {
  std::vector<std::uint8_t> bytes(16 * 128);
  EXPECT_DEATH(pack_tile(GetParam(), bytes.data(), 1, 160, bytes.data()), "160 elements");
}

// One bit of the file, and where it must be in the tile; worked out by hand from the format's definition and the text
// of docs/formats.md. In the sums of tile bytes the second segment begins with its size, then the blocks, then the
// block.
struct BitPlace {
  DType type;
  std::size_t cols, row;
  std::size_t file_byte, file_bit;  // in the row
  std::size_t tile_byte, tile_bit;
};
constexpr BitPlace kPlaces[] = {
    // Block 3: index of octet 2; bit 7 + 4 of the word is sign 4 of octet 1 (column 12: plane bit 3, byte 0); bit 30 is
    // bit 2 of the scale, in place of the sign of column 23 (plane bit 5, byte 3).
    {DType::IQ2_XXS, 256, 5, 2 + 24 + 2, 6, 32 + 3 * 128 + 4 * 5 + 2, 6},
    {DType::IQ2_XXS, 256, 5, 2 + 24 + 4 + 1, 3, 32 + 3 * 128 + 64 + 4 * 5 + 0, 3},
    {DType::IQ2_XXS, 256, 5, 2 + 24 + 4 + 3, 6, 32 + 3 * 128 + 64 + 4 * 5 + 3, 5},
    // Second segment. Word 5 is octet 1 of block 1: bit 7 of its index, bit 8, and sign 6 (column 14: bit 3, byte 2).
    {DType::IQ2_XS, 512, 9, 74 + 2 + 10, 7, 1184 + 160 + 128 + 4 * 9 + 1, 7},
    {DType::IQ2_XS, 512, 9, 74 + 2 + 11, 0, 1184 + 160 + 128 + 64 + 4 * 9 + 3, 3},
    {DType::IQ2_XS, 512, 9, 74 + 2 + 11, 7, 1184 + 160 + 128 + 64 + 4 * 9 + 2, 3},
    {DType::IQ2_XS, 512, 9, 74 + 66 + 7, 4, 1184 + 32 + 7 * 16 + 9, 4},
    // Sign 7 of octet 3 of block 7 (column 31: bit 7, byte 3).
    {DType::IQ2_S, 256, 15, 34 + 31, 7, 160 + 7 * 144 + 64 + 4 * 15 + 3, 7},
    {DType::IQ2_S, 256, 15, 66 + 7, 3, 160 + 7 * 144 + 128 + 15, 3},
    {DType::IQ2_S, 256, 15, 74 + 2, 1, 32 + 2 * 16 + 15, 1},
    // Quad 6 of block 2; sign 0 of octet 3 (bit 21 of the word; column 24: bit 6, byte 0); bit 0 of the scale.
    {DType::IQ3_XXS, 256, 1, 2 + 16 + 6, 5, 32 + 2 * 192 + 64 + 4 * 1 + 2, 5},
    {DType::IQ3_XXS, 256, 1, 66 + 8 + 2, 5, 32 + 2 * 192 + 128 + 4 * 1 + 0, 6},
    {DType::IQ3_XXS, 256, 1, 66 + 8 + 3, 4, 32 + 2 * 192 + 128 + 4 * 1 + 3, 1},
    // Quad 0 of block 4; qh; sign 1 of octet 2 (column 17: bit 4, byte 1); scales of blocks 4 and 5.
    {DType::IQ3_S, 256, 0, 2 + 32, 0, 96 + 4 * 208, 0},
    {DType::IQ3_S, 256, 0, 66 + 4, 7, 96 + 4 * 208 + 192, 7},
    {DType::IQ3_S, 256, 0, 74 + 16 + 2, 1, 96 + 4 * 208 + 128 + 1, 4},
    {DType::IQ3_S, 256, 0, 106 + 2, 6, 32 + 2 * 16, 6},
    {DType::IQ1_S, 512, 8, 50 + 2 + 6, 2, 800 + 32 + 96 + 4 * 8 + 2, 2},
    {DType::IQ1_S, 512, 8, 50 + 34 + 3, 7, 800 + 32 + 96 + 64 + 2 * 8 + 1, 7},
    {DType::IQ1_M, 256, 13, 48 + 5, 5, 2 * 32 + 2 * 13 + 1, 5},
    {DType::IQ1_M, 256, 13, 32 + 14, 1, 128 + 7 * 96 + 64 + 2 * 13, 1},
};

TEST(LatticeTilePlaces, SingleBitsLieWhereTheDocumentSays) {
  for (const BitPlace& place : kPlaces) {
    const std::size_t stride = row_bytes(place.type, place.cols);
    std::vector<std::uint8_t> rows(kTileRows * stride, 0);
    rows[place.row * stride + place.file_byte] = static_cast<std::uint8_t>(1U << place.file_bit);
    const auto tile = packed(place.type, rows, kTileRows, place.cols);
    std::vector<std::uint8_t> expected(tile.size(), 0);
    expected[place.tile_byte] = static_cast<std::uint8_t>(1U << place.tile_bit);
    const auto found = std::find_if(tile.begin(), tile.end(), [](std::uint8_t byte) { return byte != 0; });
    EXPECT_EQ(tile, expected) << dtype_name(place.type) << " byte " << place.file_byte << " bit " << place.file_bit
                              << ": first byte set is " << found - tile.begin();
  }
}

}  // namespace
}  // namespace tandem
