// Several matrices in one launch against ReferenceOps, bit for bit.
#include <gtest/gtest.h>

#include "gpu/cuda_check.h"
#include "gpu/kernels/float_matmul.h"
#include "tests/gpu/tile_cases.h"

namespace tandem::testing {
namespace {

using FusedProducts = GpuTest;

// Several matrices of one type in a launch, of different heights.
TEST_F(FusedProducts, TileProducts) {
  load_tile_kernels();
  Random random(93);
  for (const DType type : {DType::Q8_0, DType::Q4_K, DType::IQ2_XS, DType::Q4_0})
    for (const std::size_t cols : {256UL, 768UL, 2560UL})
      for (const std::size_t count : {1UL, 2UL, 3UL, 4UL}) {
        constexpr std::size_t kHeights[] = {200, 7, 48, 33}, kWidest = 19;
        QuantCase x(kWidest, cols, random, [](std::size_t) { return Values::kNormal; });
        std::vector<Weights> weights;
        std::vector<DeviceBuffer<std::uint8_t>> tiles;
        std::vector<std::vector<float>> expected;
        for (std::size_t i = 0; i < count; ++i) {
          weights.push_back(block_weights(type, kHeights[i], cols, Scales::kNormal, random));
          weights.back().view.scale = 0.5F + static_cast<float>(i);
          const PackedMatrix packed = pack_matrix(weights.back().view, in_order());
          tiles.emplace_back(packed.bytes());
          tiles.back().upload(packed.data());
          expected.emplace_back(kWidest * kHeights[i]);
          ReferenceOps().matmul(weights.back().view, x.host(), Rows(expected.back().data(), kWidest, kHeights[i]));
        }
        for (const std::size_t w : {1UL, 2UL, 4UL, 8UL, 19UL}) {
          std::vector<DeviceBuffer<float>> y;
          std::vector<TileMatmul> list;
          for (std::size_t i = 0; i < count; ++i) {
            const std::size_t stride = kHeights[i] + i;
            y.push_back(on_device(std::vector<float>(w * stride, kGuard)));
            list.push_back({{type, tiles[i].get(), kHeights[i], cols, weights[i].view.scale}, y[i].get(), stride});
          }
          launch_tile_matmuls(list.data(), count, x.device(), w, nullptr);
          CUDA_CHECK(cudaDeviceSynchronize());
          for (std::size_t i = 0; i < count; ++i) {
            std::vector<float> found(y[i].size());
            y[i].download(found.data());
            ASSERT_EQ(first_difference(expected[i].data(), w, kHeights[i], found.data(), kHeights[i] + i, kGuard), "")
                << dtype_name(type) << ", " << cols << " columns, matrix " << i << " of " << count << ", " << w;
          }
        }
      }
}

// So tall that a block has several tiles, with a remainder in every matrix.
TEST_F(FusedProducts, TallTileProducts) {
  load_tile_kernels();
  Random random(99);
  constexpr std::size_t kHeights[] = {50001, 33000, 7, 9001}, kCols = 256, kRows = 2;
  QuantCase x(kRows, kCols, random, [](std::size_t) { return Values::kNormal; });
  std::vector<DeviceBuffer<std::uint8_t>> tiles;
  std::vector<DeviceBuffer<float>> y;
  std::vector<std::vector<float>> expected;
  std::vector<TileMatmul> list;
  for (const std::size_t height : kHeights) {
    const Weights weights = block_weights(DType::Q8_0, height, kCols, Scales::kNormal, random);
    const PackedMatrix packed = pack_matrix(weights.view, in_order());
    tiles.emplace_back(packed.bytes());
    tiles.back().upload(packed.data());
    y.push_back(on_device(std::vector<float>(kRows * height, kGuard)));
    expected.emplace_back(kRows * height);
    ReferenceOps().matmul(weights.view, x.host(), Rows(expected.back().data(), kRows, height));
    list.push_back({{DType::Q8_0, tiles.back().get(), height, kCols, 1.0F}, y.back().get(), height});
  }
  launch_tile_matmuls(list.data(), list.size(), x.device(), kRows, nullptr);
  CUDA_CHECK(cudaDeviceSynchronize());
  for (std::size_t i = 0; i < list.size(); ++i) {
    std::vector<float> found(y[i].size());
    y[i].download(found.data());
    EXPECT_EQ(first_difference(expected[i].data(), kRows, kHeights[i], found.data(), kHeights[i], kGuard), "") << i;
  }
}

TEST_F(FusedProducts, FloatProducts) {
  Random random(94);
  for (const std::size_t cols : {33UL, 2560UL})
    for (const std::size_t count : {1UL, 2UL, 4UL})
      for (const bool tall : {false, true}) {
        const std::size_t heights[] = {tall ? 2100UL : 513UL, 1, 48, 7}, widest = 16;
        const auto x = drawn(random, widest * cols);
        const auto d_x = on_device(x);
        std::vector<std::vector<float>> w, expected;
        std::vector<DeviceBuffer<float>> d_w;
        for (std::size_t i = 0; i < count; ++i) {
          w.push_back(drawn(random, heights[i] * cols));
          d_w.push_back(on_device(w.back()));
          WeightView view;
          view.type = DType::F32, view.rows = heights[i], view.cols = cols;
          view.data = reinterpret_cast<const std::uint8_t*>(w.back().data());
          view.scale = 0.5F + static_cast<float>(i);
          expected.emplace_back(widest * heights[i]);
          ReferenceOps().matmul(view, {ConstRows(x.data(), widest, cols), {}},
                                Rows(expected.back().data(), widest, heights[i]));
        }
        for (const std::size_t rows : {1UL, 2UL, 4UL, 16UL}) {
          std::vector<DeviceBuffer<float>> y;
          std::vector<gpu::FloatMatmul> list;
          for (std::size_t i = 0; i < count; ++i) {
            const std::size_t stride = heights[i] + i;
            y.push_back(on_device(std::vector<float>(rows * stride, kGuard)));
            list.push_back(
                {d_w[i].get(), heights[i], 0.5F + static_cast<float>(i), {y[i].get(), rows, heights[i], stride}});
          }
          gpu::float_matmuls(gpu::FloatType::kF32, list.data(), count, {d_x.get(), rows, cols}, nullptr);
          CUDA_CHECK(cudaDeviceSynchronize());
          for (std::size_t i = 0; i < count; ++i) {
            std::vector<float> found(y[i].size());
            y[i].download(found.data());
            ASSERT_EQ(first_difference(expected[i].data(), rows, heights[i], found.data(), heights[i] + i, kGuard), "")
                << cols << " columns, matrix " << i << " of " << count << ", " << rows << " rows";
          }
        }
      }
}

}  // namespace
}  // namespace tandem::testing
