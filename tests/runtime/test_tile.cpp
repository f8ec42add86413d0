// Checked against: tests/runtime/tile_reader, which reads a tile element by element from the text of runtime/tile.h and
// must find what decode_block32 finds in the file's rows; places of single codes and scales, worked out by hand; the
// file's bytes after the way back.
#include "runtime/tile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "tests/runtime/tile_reader.h"

namespace tandem {
namespace {

using testing::kArithmeticTileTypes;
using testing::random_bytes;
using testing::read_tile_block;

constexpr std::size_t kAllCols[] = {32, 64, 96, 160, 256, 288, 320, 512, 640, 2560};
constexpr std::uint8_t kGuard = 0xA5;

std::vector<std::size_t> widths(DType type) {
  std::vector<std::size_t> cols;
  for (std::size_t k : kAllCols) {
    if (k % dtype_info(type).block_elems == 0) cols.push_back(k);
  }
  return cols;
}

std::uint64_t seed_of(DType type, std::size_t cols, std::size_t count) {
  return static_cast<std::uint64_t>(type) * 1000003 + cols * 17 + count;
}

// A tile in memory that was not zero, with guard bytes behind it.
std::vector<std::uint8_t> packed(DType type, const std::vector<std::uint8_t>& rows, std::size_t count,
                                 std::size_t cols) {
  std::vector<std::uint8_t> tile(tile_bytes(type, cols) + 64, kGuard);
  pack_tile(type, rows.data(), count, cols, tile.data());
  EXPECT_TRUE(std::all_of(tile.end() - 64, tile.end(), [](std::uint8_t byte) { return byte == kGuard; }));
  return tile;
}

void expect_same_block(const Block32& found, const Block32& expected) {
  for (std::size_t i = 0; i < 32; ++i) EXPECT_EQ(found.c[i], expected.c[i]) << "column " << i;
  for (std::size_t h = 0; h < 2; ++h) {
    EXPECT_EQ(found.m[h], expected.m[h]);
    EXPECT_EQ(found.n[h], expected.n[h]);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(found.d[h]), std::bit_cast<std::uint32_t>(expected.d[h]));
  }
  EXPECT_EQ(std::bit_cast<std::uint32_t>(found.e), std::bit_cast<std::uint32_t>(expected.e));
  EXPECT_EQ(found.has_offset, expected.has_offset);
  EXPECT_EQ(found.split_scale, expected.split_scale);
}

class TileOfType : public ::testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(Types, TileOfType, ::testing::ValuesIn(kArithmeticTileTypes),
                         [](const auto& param) { return std::string(dtype_name(param.param)); });

TEST_P(TileOfType, EveryElementLiesWhereTheHeaderSays) {
  const DType type = GetParam();
  for (std::size_t cols : widths(type)) {
    const std::size_t stride = row_bytes(type, cols);
    const std::vector<std::uint8_t> zero_row(stride, 0);
    for (std::size_t count : {1U, 11U, 16U}) {
      const std::vector<std::uint8_t> rows = random_bytes(count * stride, seed_of(type, cols, count));
      const std::vector<std::uint8_t> tile = packed(type, rows, count, cols);
      for (std::size_t r = 0; r < kTileRows; ++r) {
        const std::uint8_t* row = r < count ? rows.data() + r * stride : zero_row.data();
        for (std::size_t b = 0; b < cols / 32; ++b) {
          SCOPED_TRACE(::testing::Message() << cols << " columns, row " << r << " of " << count << ", block " << b);
          Block32 expected;
          decode_block32(type, row, b, expected);
          expect_same_block(read_tile_block(type, tile.data(), cols, r, b), expected);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_P(TileOfType, UnpackGivesTheFilesBytes) {
  const DType type = GetParam();
  for (std::size_t cols : widths(type)) {
    const std::size_t stride = row_bytes(type, cols);
    for (std::size_t count = 1; count <= kTileRows; ++count) {
      SCOPED_TRACE(::testing::Message() << cols << " columns, " << count << " rows");
      std::vector<std::uint8_t> rows = random_bytes(count * stride, seed_of(type, cols, count));
      const std::vector<std::uint8_t> tile = packed(type, rows, count, cols);
      std::vector<std::uint8_t> back(rows.size() + 64, kGuard);
      unpack_tile(type, tile.data(), count, cols, back.data());
      rows.resize(back.size(), kGuard);
      ASSERT_EQ(back, rows);
    }
  }
}

TEST_P(TileOfType, MissingRowsAreZeroBytes) {
  const DType type = GetParam();
  const std::size_t cols = std::max<std::size_t>(320 / dtype_info(type).block_elems, 1) * dtype_info(type).block_elems;
  const std::size_t stride = row_bytes(type, cols);
  for (std::size_t count = 1; count < kTileRows; ++count) {
    std::vector<std::uint8_t> rows = random_bytes(count * stride, seed_of(type, cols, count));
    const std::vector<std::uint8_t> tile = packed(type, rows, count, cols);
    rows.resize(kTileRows * stride, 0);
    EXPECT_EQ(tile, packed(type, rows, kTileRows, cols)) << count;
  }
}

TEST_P(TileOfType, TakesTheBytesOfSixteenRows) {
  const DType type = GetParam();
  EXPECT_TRUE(has_tile_layout(type));
  for (std::size_t cols : widths(type)) {
    EXPECT_EQ(tile_bytes(type, cols), 16 * row_bytes(type, cols));
    EXPECT_EQ(packed_bytes(type, 1, cols), tile_bytes(type, cols));
    EXPECT_EQ(packed_bytes(type, 16, cols), tile_bytes(type, cols));
    EXPECT_EQ(packed_bytes(type, 17, cols), 2 * tile_bytes(type, cols));
    std::size_t segments = 0;
    for (std::size_t first = 0; first < cols / 32; first += 8) {
      const std::size_t blocks = std::min<std::size_t>(8, cols / 32 - first);
      EXPECT_EQ(tile_segment_bytes(type, blocks), testing::segment_bytes_by_text(type, blocks));
      segments += tile_segment_bytes(type, blocks);
    }
    EXPECT_EQ(segments, tile_bytes(type, cols));
  }
}

// One bit of the file, and where it must be in the tile.
struct BitPlace {
  DType type;
  std::size_t cols, row;
  std::size_t file_byte, file_bit;  // in the row
  std::size_t tile_byte, tile_bit;
};

// Worked out by hand from the text of runtime/tile.h. In the sums, the first part is the segment and its scales.
constexpr BitPlace kPlaces[] = {
    // Column 25 (byte 9 of the nibbles, high): g = 2, j = 1.
    {DType::Q4_0, 32, 3, 2 + 9, 7, 32 + 2 * 64 + 3 * 4 + 1, 7},
    // The scale of block 2 of 3; the block's column 0.
    {DType::Q4_0, 96, 15, 36 + 1, 5, 2 * 32 + 15 * 2 + 1, 5},
    {DType::Q4_0, 96, 15, 36 + 2, 0, 96 + 2 * 256 + 15 * 4, 0},
    // m of block 1 of 2 in the second segment (segment of 8: 8 * 320 bytes).
    {DType::Q4_1, 320, 4, 9 * 20 + 2, 3, 16 * 160 + 2 * 32 + 32 + 4 * 2, 3},
    // Fifth bit of column 22: g = 5, j = 2.
    {DType::Q5_0, 32, 7, 2 + 2, 6, 32 + 256 + 7 * 4 + 2, 5},
    {DType::Q5_1, 64, 0, 24 + 4 + 3, 7, 128 + 320 + 256 + 3, 7},
    // Column 31.
    {DType::Q8_0, 64, 9, 34 + 2 + 31, 2, 64 + 512 + 7 * 64 + 9 * 4 + 3, 2},
    // Columns 37 and 63 of the block of 64: block 1, columns 5 (h 0, k 1, j 1) and 31 (h 1, k 3, j 3).
    {DType::Q2_0, 64, 2, 2 + 9, 3, 32 + 128 + 2 * 4 + 1, 3},
    {DType::Q2_0, 64, 2, 2 + 15, 6, 32 + 128 + 64 + 2 * 4 + 3, 6},
    // Scale byte 13; column 20 of block 6 (n 1, s 2): h 1, k 1, j 0.
    {DType::Q2_K, 256, 6, 13, 1, 64 + 13 * 16 + 6, 1},
    {DType::Q2_K, 256, 6, 16 + 32 + 20, 4, 320 + 6 * 128 + 64 + 6 * 4, 2},
    // hmask of column 30 in block 3: g 7, j 2.
    {DType::Q3_K, 256, 1, 30, 3, 224 + 3 * 192 + 128 + 1 * 4 + 2, 7},
    {DType::Q3_K, 256, 1, 96 + 11, 0, 32 + 11 * 16 + 1, 0},
    // Second block of 256: block 3 (high nibble), column 18: g 0, j 2, high nibble.
    {DType::Q4_K, 512, 8, 144 + 16 + 32 + 18, 4, 16 * 144 + 256 + 3 * 256 + 8 * 4 + 2, 4},
    {DType::Q4_K, 512, 8, 144 + 2, 0, 16 * 144 + 32 + 8 * 2, 0},
    // Fifth bit of column 13 in block 7: g 3, j 1.
    {DType::Q5_K, 256, 5, 16 + 13, 7, 256 + 7 * 320 + 256 + 5 * 4 + 1, 3},
    // Block 6 (n 1, t 2), column 1: low bits in the high nibble of ql 64, high bits at 4, 5 of qh 32.
    {DType::Q6_K, 256, 10, 64 + 1, 4, 288 + 6 * 384 + 10 * 4 + 1, 0},
    {DType::Q6_K, 256, 10, 128 + 32 + 1, 5, 288 + 6 * 384 + 256 + 10 * 4 + 1, 1},
    {DType::Q6_K, 256, 10, 192 + 15, 7, 32 + 15 * 16 + 10, 7},
    {DType::IQ4_NL, 32, 0, 2 + 15, 0, 32 + 3 * 64 + 3, 0},
    // scales_h, scales_l[3], column 16 of block 7.
    {DType::IQ4_XS, 256, 14, 3, 7, 32 + 14 * 2 + 1, 7},
    {DType::IQ4_XS, 256, 14, 4 + 3, 2, 64 + 3 * 16 + 14, 2},
    {DType::IQ4_XS, 256, 14, 8 + 7 * 16, 4, 128 + 7 * 256 + 14 * 4, 4},
    {DType::MXFP4, 64, 12, 17, 6, 16 + 12, 6},
    {DType::MXFP4, 64, 12, 17 + 1 + 4, 7, 32 + 256 + 64 + 12 * 4, 7},
};

TEST(Tile, SingleBitsLieWhereTheHeaderSays) {
  for (const BitPlace& place : kPlaces) {
    const std::size_t stride = row_bytes(place.type, place.cols);
    std::vector<std::uint8_t> rows(kTileRows * stride, 0);
    rows[place.row * stride + place.file_byte] = static_cast<std::uint8_t>(1U << place.file_bit);
    std::vector<std::uint8_t> tile(tile_bytes(place.type, place.cols), 0);
    std::vector<std::uint8_t> expected = tile;
    pack_tile(place.type, rows.data(), kTileRows, place.cols, tile.data());
    expected[place.tile_byte] = static_cast<std::uint8_t>(1U << place.tile_bit);
    const auto found = std::find_if(tile.begin(), tile.end(), [](std::uint8_t byte) { return byte != 0; });
    EXPECT_EQ(tile, expected) << dtype_name(place.type) << " byte " << place.file_byte << " bit " << place.file_bit
                              << ": first byte set is " << found - tile.begin();
  }
}

TEST(Tile, OtherTypesHaveNoLayout) {
  for (DType type :
       {DType::F32, DType::F16, DType::BF16, DType::I32, DType::TQ1_0, DType::TQ2_0, DType::NVFP4, DType::Q1_0}) {
    EXPECT_FALSE(has_tile_layout(type)) << dtype_name(type);
  }
}

TEST(TileDeathTest, MistakesOfTheCaller) {
  std::vector<std::uint8_t> bytes(16 * 17 * 18);
  EXPECT_DEATH(pack_tile(DType::Q4_0, bytes.data(), 0, 32, bytes.data()), "0 rows");
  EXPECT_DEATH(pack_tile(DType::Q4_0, bytes.data(), 17, 32, bytes.data()), "17 rows");
  EXPECT_DEATH(unpack_tile(DType::Q4_0, bytes.data(), 17, 32, bytes.data()), "17 rows");
  EXPECT_DEATH(pack_tile(DType::Q4_K, bytes.data(), 1, 160, bytes.data()), "160 elements of Q4_K");
  EXPECT_DEATH(pack_tile(DType::F16, bytes.data(), 1, 32, bytes.data()), "F16 has no tile layout");
  EXPECT_DEATH(tile_bytes(DType::NVFP4, 64), "NVFP4 has no tile layout");
  EXPECT_DEATH(tile_segment_bytes(DType::Q4_0, 9), "9 blocks");
}

}  // namespace
}  // namespace tandem
