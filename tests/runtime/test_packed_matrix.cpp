// Checked against: unpack_tile of every tile, which gives the rows of the view.
#include "runtime/packed_matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "tests/runtime/tile_reader.h"

namespace tandem {
namespace {

// Last task first: nothing may depend on the order.
void backwards(std::size_t n, const std::function<void(std::size_t)>& body) {
  for (std::size_t i = n; i-- > 0;) body(i);
}

void on_three_threads(std::size_t n, const std::function<void(std::size_t)>& body) {
  std::atomic<std::size_t> next = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (std::size_t i = next++; i < n; i = next++) body(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

WeightView view_of(const std::vector<std::uint8_t>& bytes, DType type, std::size_t rows, std::size_t cols) {
  WeightView view;
  view.data = bytes.data();
  view.type = type;
  view.rows = rows;
  view.cols = cols;
  return view;
}

void expect_rows(const PackedMatrix& packed, const WeightView& view) {
  ASSERT_TRUE(packed);
  EXPECT_EQ(packed.type, view.type);
  EXPECT_EQ(packed.rows, view.rows);
  EXPECT_EQ(packed.cols, view.cols);
  EXPECT_EQ(packed.tile_bytes, tile_bytes(view.type, view.cols));
  EXPECT_EQ(packed.bytes(), packed_bytes(view.type, view.rows, view.cols));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(packed.data()) % 64, 0U);
  std::size_t rows = 0;
  for (std::size_t t = 0; t < packed.tiles(); ++t) {
    std::vector<std::uint8_t> back(kTileRows * view.row_size());
    unpack_tile(view.type, packed.tile(t), kTileRows, view.cols, back.data());
    const std::size_t count = packed.tile_rows(t);
    const std::size_t bytes = count * view.row_size();
    EXPECT_EQ(std::memcmp(back.data(), view.row(rows), bytes), 0) << "tile " << t;
    EXPECT_TRUE(std::all_of(back.data() + bytes, back.data() + back.size(), [](std::uint8_t b) { return b == 0; }))
        << "tile " << t;
    rows += count;
  }
  EXPECT_EQ(rows, view.rows);
}

TEST(PackedMatrix, HoldsTheRowsOfTheView) {
  for (DType type : testing::kArithmeticTileTypes) {
    for (std::size_t rows : {1U, 15U, 16U, 17U, 40U}) {
      SCOPED_TRACE(::testing::Message() << dtype_name(type) << ", " << rows << " rows");
      const std::size_t cols = 512;
      const std::vector<std::uint8_t> bytes = testing::random_bytes(rows * row_bytes(type, cols), rows);
      const WeightView view = view_of(bytes, type, rows, cols);
      expect_rows(pack_matrix(view, backwards), view);
    }
  }
}

TEST(PackedMatrix, LargeOnSeveralThreads) {
  const std::size_t rows = 5000, cols = 1024;  // 5.4 MB: huge pages, several tasks, a short last tile
  const std::vector<std::uint8_t> bytes = testing::random_bytes(rows * row_bytes(DType::Q8_0, cols), 5);
  const WeightView view = view_of(bytes, DType::Q8_0, rows, cols);
  std::size_t tasks = 0;
  const PackedMatrix packed = pack_matrix(view, [&](std::size_t n, const std::function<void(std::size_t)>& body) {
    tasks = n;
    on_three_threads(n, body);
  });
  expect_rows(packed, view);
  EXPECT_GT(tasks, 4U);
}

TEST(PackedMatrix, KeepsTheScaleAndMoves) {
  const std::vector<std::uint8_t> bytes = testing::random_bytes(20 * row_bytes(DType::Q4_0, 64), 1);
  WeightView view = view_of(bytes, DType::Q4_0, 20, 64);
  view.scale = 0.375F;
  PackedMatrix packed = pack_matrix(view, backwards);
  EXPECT_EQ(packed.scale, 0.375F);
  const std::uint8_t* data = packed.data();
  const PackedMatrix moved = std::move(packed);
  EXPECT_EQ(moved.data(), data);
  expect_rows(moved, view);
  EXPECT_FALSE(PackedMatrix());
}

TEST(PackedMatrix, ErrorsOfTheParallelLoopComeThrough) {
  const std::vector<std::uint8_t> bytes(row_bytes(DType::Q4_0, 64));
  EXPECT_THROW(pack_matrix(view_of(bytes, DType::Q4_0, 1, 64),
                           [](std::size_t, const auto&) { throw std::runtime_error("no threads"); }),
               std::runtime_error);
}

TEST(PackedMatrixDeathTest, MistakesOfTheCaller) {
  EXPECT_DEATH(PackedMatrix(DType::F32, 16, 32), "F32 has no tile layout");
  EXPECT_DEATH(PackedMatrix(DType::Q4_0, 0, 32), "0 x 32");
}

}  // namespace
}  // namespace tandem
