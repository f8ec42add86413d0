// Products with packed tiles on the card against ReferenceOps, bit for bit: every type, row length, width, tail and
// route, with extreme codes and scales.
#include <gtest/gtest.h>

#include "gpu/cuda_check.h"
#include "gpu/kernels/tile_gemm.h"
#include "tests/gpu/tile_cases.h"

namespace tandem::testing {
namespace {

class GpuTileProduct : public GpuTest, public ::testing::WithParamInterface<DType> {};

TEST_P(GpuTileProduct, GivesTheBitsOfTheReference) {
  const DType type = GetParam();
  load_tile_kernels();
  Random random(static_cast<std::uint64_t>(type) + 70);
  for (const std::size_t cols : {32UL, 64UL, 96UL, 160UL, 256UL, 288UL, 320UL, 512UL, 640UL, 768UL, 1792UL, 2560UL,
                                 2816UL, 4352UL, 6144UL, 10240UL}) {
    if (cols % dtype_info(type).block_elems != 0) continue;
    for (const Scales scales : {Scales::kNormal, Scales::kExtreme}) {
      // Whole tiles, one row more, one less; long rows are few, as the reference is slow.
      const std::size_t rows = cols > 3000 ? 19 : cols % 512 == 0 ? 64 : 33 + random.below(31), most = 19;
      Weights weights = block_weights(type, rows, cols, scales, random);
      weights.view.scale = scales == Scales::kNormal ? 0.37F : 1.0F;
      const PackedMatrix packed = pack_matrix(weights.view, in_order());
      QuantCase x(most, cols, random, [](std::size_t row) {
        constexpr Values kKinds[] = {Values::kNormal, Values::kSigns, Values::kTiny, Values::kLarge, Values::kMixed};
        return kKinds[row % 5];
      });
      std::vector<float> expected(most * rows);
      ReferenceOps().matmul(weights.view, x.host(), Rows(expected.data(), most, rows));
      DeviceBuffer<std::uint8_t> tiles(packed.bytes());
      tiles.upload(packed.data());
      const DeviceTiles w{type, tiles.get(), rows, cols, packed.scale};
      const std::size_t stride = rows + 3;
      const std::vector<float> guards(most * stride, kGuard);
      DeviceBuffer<float> y(guards.size());
      for (const TileRoute route : {TileRoute::kDot, TileRoute::kMma, TileRoute::kGemm, TileRoute::kAuto})
        for (std::size_t width = 1; width <= most; ++width) {
          if (route == TileRoute::kDot && width > 2) continue;
          if (width == 10 || width == 13 || width == 18) continue;
          y.upload(guards.data());
          launch_tile_matmul(w, x.device(), width, y.get(), stride, nullptr, route);
          CUDA_CHECK(cudaDeviceSynchronize());
          std::vector<float> found(guards.size());
          y.download(found.data());
          ASSERT_EQ(first_difference(expected.data(), width, rows, found.data(), stride, kGuard), "")
              << dtype_name(type) << " " << rows << " x " << cols << ", width " << width << ", route "
              << static_cast<int>(route) << ", scales " << static_cast<int>(scales);
          for (std::size_t i = width * stride; i < found.size(); ++i) ASSERT_EQ(found[i], kGuard) << "past the rows";
        }
    }
  }
}

// Codes that make the largest sums, with activations of +-127.
TEST_P(GpuTileProduct, LargestSums) {
  const DType type = GetParam();
  load_tile_kernels();
  Random random(71);
  constexpr std::size_t kRows = 32, kWidth = 8;
  const std::size_t cols = 2560;
  for (const int byte : {0x00, 0xFF, 0x80, 0x7F, 0x55}) {
    const auto fill = static_cast<std::uint8_t>(byte);
    const Weights weights = filled_block_weights(type, kRows, cols, fill, random);
    const PackedMatrix packed = pack_matrix(weights.view, in_order());
    QuantCase x(kWidth, cols, random, [](std::size_t) { return Values::kSigns; });
    for (std::size_t r = 0; r < 2; ++r) {  // one sign throughout
      std::fill_n(x.x.begin() + static_cast<std::ptrdiff_t>(r * cols), cols, r == 0 ? 2.0F : -2.0F);
    }
    ASSERT_EQ(ReferenceOps().quantize(x.host().x, x.host().q), -1);
    x.device_q.upload(x.q.data());
    x.device_d.upload(x.d.data());
    x.device_s.upload(x.s.data());
    std::vector<float> expected(kWidth * kRows), found(kWidth * kRows);
    ReferenceOps().matmul(weights.view, x.host(), Rows(expected.data(), kWidth, kRows));
    DeviceBuffer<std::uint8_t> tiles(packed.bytes());
    tiles.upload(packed.data());
    DeviceBuffer<float> y(found.size());
    for (const std::size_t width : {1UL, 2UL, 4UL, 8UL})
      for (const TileRoute route : {TileRoute::kDot, TileRoute::kMma, TileRoute::kGemm}) {
        launch_tile_matmul({type, tiles.get(), kRows, cols, 1.0F}, x.device(), width, y.get(), kRows, nullptr, route);
        CUDA_CHECK(cudaDeviceSynchronize());
        y.download(found.data());
        ASSERT_EQ(first_difference(expected.data(), width, kRows, found.data(), kRows, kGuard), "")
            << dtype_name(type) << ", bytes " << byte << ", width " << width << ", route " << static_cast<int>(route);
      }
  }
}

// Long passes: whole groups of 64 rows, a row more, one less; two matrices in a launch; results at odd addresses; rows
// of tiles for several blocks and for a part of one; every depth of the tree over the segments.
TEST_P(GpuTileProduct, ManyRows) {
  const DType type = GetParam();
  load_tile_kernels();
  Random random(static_cast<std::uint64_t>(type) + 170);
  for (const std::size_t cols : {32UL, 64UL, 256UL, 320UL, 512UL, 640UL, 768UL, 1280UL, 2560UL, 4352UL, 10240UL}) {
    if (cols % dtype_info(type).block_elems != 0) continue;
    const std::size_t rows = cols > 3000 ? 19 : 40 + random.below(31), more = cols > 3000 ? 16 : 150, most = 130;
    Weights weights = block_weights(type, rows + more, cols, Scales::kExtreme, random);
    const WeightView views[2] = {weights.view.slice(0, rows), weights.view.slice(rows, more)};
    QuantCase x(most, cols, random, [](std::size_t row) {
      constexpr Values kKinds[] = {Values::kNormal, Values::kSigns, Values::kTiny, Values::kLarge, Values::kMixed};
      return kKinds[row % 5];
    });
    DeviceBuffer<std::uint8_t> tiles[2];
    std::vector<float> expected[2];
    TileMatmul products[2];
    const std::size_t strides[2] = {rows + 3, more + more % 2};
    DeviceBuffer<float> y[2];
    for (std::size_t i = 0; i < 2; ++i) {
      const PackedMatrix packed = pack_matrix(views[i], in_order());
      tiles[i] = DeviceBuffer<std::uint8_t>(packed.bytes());
      tiles[i].upload(packed.data());
      expected[i].resize(most * views[i].rows);
      ReferenceOps().matmul(views[i], x.host(), Rows(expected[i].data(), most, views[i].rows));
      y[i] = DeviceBuffer<float>(most * strides[i] + 1);
      products[i] = {{type, tiles[i].get(), views[i].rows, cols, packed.scale}, y[i].get() + i, strides[i]};
    }
    DeviceBuffer<float> split(16 * most * (rows + more));
    for (const std::size_t width : {17UL, 33UL, 63UL, 64UL, 65UL, 112UL, 130UL}) {
      // The first matrix by itself, its segments shared out where there are enough.
      y[0].upload(std::vector<float>(y[0].size(), kGuard).data());
      launch_tile_gemm(products, 1, x.device(), width, nullptr, split.get(), split.bytes());
      CUDA_CHECK(cudaDeviceSynchronize());
      std::vector<float> alone(y[0].size());
      y[0].download(alone.data());
      ASSERT_EQ(first_difference(expected[0].data(), width, rows, alone.data(), strides[0], kGuard), "")
          << dtype_name(type) << " " << rows << " x " << cols << ", width " << width << ", by itself";
      for (auto& one : y) one.upload(std::vector<float>(one.size(), kGuard).data());
      launch_tile_matmuls(products, 2, x.device(), width, nullptr);
      CUDA_CHECK(cudaDeviceSynchronize());
      for (std::size_t i = 0; i < 2; ++i) {
        std::vector<float> found(y[i].size());
        y[i].download(found.data());
        ASSERT_EQ(first_difference(expected[i].data(), width, views[i].rows, found.data() + i, strides[i], kGuard), "")
            << dtype_name(type) << " " << views[i].rows << " x " << cols << ", width " << width;
        for (std::size_t at = i + width * strides[i]; at < found.size(); ++at)
          ASSERT_EQ(found[at], kGuard) << "past the rows";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, GpuTileProduct, ::testing::ValuesIn(kTileTypes),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

}  // namespace
}  // namespace tandem::testing
