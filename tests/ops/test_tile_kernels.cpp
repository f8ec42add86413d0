// Every tile kernel of every instruction set that this processor has, against the scalar reference dot product over the
// file's own blocks: bit for bit, over types, widths, tails, extreme codes and scales.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "cpu/kernels/tile_kernels.h"
#include "cpu/reference_dot.h"
#include "runtime/tile.h"
#include "tests/gguf_builder.h"

namespace tandem::testing {
namespace {

constexpr DType kTypes[] = {DType::Q4_0,   DType::Q4_1,  DType::Q5_0,    DType::Q5_1,   DType::Q8_0,  DType::Q2_0,
                            DType::Q2_K,   DType::Q3_K,  DType::Q4_K,    DType::Q5_K,   DType::Q6_K,  DType::IQ4_NL,
                            DType::IQ4_XS, DType::MXFP4, DType::IQ2_XXS, DType::IQ2_XS, DType::IQ2_S, DType::IQ3_XXS,
                            DType::IQ3_S,  DType::IQ1_S, DType::IQ1_M};
constexpr std::size_t kGuard = 4;
constexpr float kGuardValue = 12345.0F;

struct Rows32 {
  std::vector<std::int8_t> q;
  std::vector<float> d;
  std::vector<std::int32_t> s;
};

// Activations: ordinary, extreme (+-127 everywhere), denormal and huge scales, zero blocks.
Rows32 activations(std::size_t cols, std::mt19937& random, int kind) {
  std::vector<float> x(cols);
  for (float& v : x) {
    v = std::normal_distribution<float>()(random);
    if (kind == 1) v = v < 0.0F ? -3.0F : 3.0F;
    if (kind == 2) v *= 1e-36F;
    if (kind == 3) v *= 1e30F;
  }
  if (kind == 4) std::fill(x.begin(), x.begin() + 32, 0.0F);
  Rows32 out{std::vector<std::int8_t>(cols), std::vector<float>(cols / 32), std::vector<std::int32_t>(cols / 16)};
  EXPECT_TRUE(quantize_row_ref(x.data(), cols, out.q.data(), out.d.data(), out.s.data()));
  return out;
}

// Weights: sane scales, or random bytes for codes and scales alike (any half that is not NaN or infinite).
std::vector<std::uint8_t> weights(DType type, std::size_t rows, std::size_t cols, std::uint32_t seed, bool extreme) {
  std::vector<std::uint8_t> data = random_weights(type, rows * cols, seed);
  if (!extreme) return data;
  std::mt19937 random(seed);
  const std::size_t block = dtype_info(type).block_bytes;
  for (auto& byte : data) {
    const std::uint32_t pick = random() % 4;
    byte = pick == 0 ? 0x00 : pick == 1 ? 0xFF : pick == 2 ? 0x80 : static_cast<std::uint8_t>(random());
  }
  const BlockHalves halves = block_halves(type);
  for (std::size_t at = 0; at < data.size(); at += block)
    for (const int offset : {halves.d, halves.second}) {
      if (offset < 0) continue;
      const std::uint16_t choices[] = {0x0001, 0x83FF, 0x7BFF, 0xFBFF, 0x3C00, 0x0000, 0x8000, 0xB123};
      const std::uint16_t half = choices[random() % std::size(choices)];
      std::memcpy(data.data() + at + static_cast<std::size_t>(offset), &half, 2);
    }
  if (type == DType::MXFP4)
    for (std::size_t at = 0; at < data.size(); at += block) data[at] = static_cast<std::uint8_t>(random() % 255);
  if (type == DType::IQ1_M)  // the half is spread over the top nibbles of four words; keep its exponent below 31
    for (std::size_t at = 0; at < data.size(); at += block)
      data[at + 55] = static_cast<std::uint8_t>(data[at + 55] & 0x3F);
  return data;
}

class TileKernels : public ::testing::TestWithParam<std::tuple<DType, TileIsa>> {};

TEST_P(TileKernels, GivesTheBitsOfTheReference) {
  const auto [type, isa] = GetParam();
  if (!tile_isa_supported(isa)) GTEST_SKIP() << "this processor has no " << tile_isa_name(isa);
  ASSERT_TRUE(has_tile_layout(type));
  const TileFunction kernel = tile_function(isa, type);
  ASSERT_NE(kernel, nullptr);
  std::mt19937 random(static_cast<std::uint32_t>(type));
  // 1792 and 2816 columns are 7 and 11 segments: three subtrees are left over at the end.
  for (const std::size_t cols :
       {32UL, 64UL, 96UL, 160UL, 256UL, 288UL, 320UL, 512UL, 640UL, 768UL, 1792UL, 2560UL, 2816UL, 6144UL, 10240UL}) {
    if (cols % dtype_info(type).block_elems != 0) continue;
    for (const bool extreme : {false, true}) {
      const std::size_t count = cols % 512 == 0 ? 16 : 1 + random() % 16;
      const auto data = weights(type, count, cols, static_cast<std::uint32_t>(cols) + extreme, extreme);
      std::vector<std::uint8_t> tile(tile_bytes(type, cols));
      pack_tile(type, data.data(), count, cols, tile.data());
      const std::size_t widths = cols > 3000 ? 5 : 17;
      std::vector<Rows32> rows;
      for (std::size_t t = 0; t < widths; ++t) rows.push_back(activations(cols, random, static_cast<int>(t % 5)));
      for (const std::size_t w : {1UL, 2UL, 3UL, 4UL, 5UL, 6UL, 7UL, 8UL, 9UL, 16UL, 17UL}) {
        if (w > widths) continue;
        const std::size_t stride = count + kGuard;
        std::vector<float> out(w * stride, kGuardValue);
        std::vector<TileJob> jobs;
        for (std::size_t t = 0; t < w; ++t)
          jobs.push_back({rows[t].q.data(), rows[t].d.data(), rows[t].s.data(), out.data() + t * stride});
        const float scale = w % 2 == 0 ? 1.0F : 0.37F;
        kernel(tile.data(), cols, jobs.data(), w, count, scale);
        for (std::size_t t = 0; t < w; ++t) {
          for (std::size_t r = 0; r < count; ++r) {
            const float expected = dot_block_ref(type, data.data() + r * row_bytes(type, cols), cols, rows[t].q.data(),
                                                 rows[t].d.data(), rows[t].s.data()) *
                                   scale;
            const float found = out[t * stride + r];
            ASSERT_TRUE(std::memcmp(&expected, &found, sizeof found) == 0 ||
                        (std::isnan(expected) && std::isnan(found)))
                << dtype_name(type) << " " << tile_isa_name(isa) << " K " << cols << " w " << w << " row " << r
                << " of " << count << " job " << t << (extreme ? " extreme" : "") << ": " << found << " for "
                << expected;
          }
          for (std::size_t g = 0; g < kGuard; ++g) ASSERT_EQ(out[t * stride + count + g], kGuardValue);
        }
      }
    }
  }
}

// Every exponent of MXFP4, each in rows of its own: beside larger ones the smallest would not reach the result. The
// first two are denormal scales.
TEST(TileKernelsMxfp4, EveryExponent) {
  constexpr std::size_t kCols = 64;
  const DType type = DType::MXFP4;
  const std::size_t block = dtype_info(type).block_bytes, row = row_bytes(type, kCols);
  std::mt19937 random(4);
  for (int first = 0; first < 255; first += 16) {
    std::vector<std::uint8_t> data(16 * row), tile(tile_bytes(type, kCols));
    for (auto& byte : data) byte = static_cast<std::uint8_t>(random());
    for (std::size_t at = 0; at < data.size(); at += block)
      data[at] = static_cast<std::uint8_t>(std::min(254, first + static_cast<int>(at / row)));
    pack_tile(type, data.data(), 16, kCols, tile.data());
    for (const int kind : {0, 3}) {  // 3: so large that results of denormal scales are normal
      const Rows32 x = activations(kCols, random, kind);
      for (const TileIsa isa : kAllTileIsas) {
        if (!tile_isa_supported(isa)) continue;
        float out[16];
        const TileJob job{x.q.data(), x.d.data(), x.s.data(), out};
        tile_function(isa, type)(tile.data(), kCols, &job, 1, 16, 1.0F);
        for (std::size_t r = 0; r < 16; ++r) {
          const float expected = dot_block_ref(type, data.data() + r * row, kCols, x.q.data(), x.d.data(), x.s.data());
          ASSERT_TRUE(std::memcmp(&expected, &out[r], sizeof expected) == 0 ||
                      (std::isnan(expected) && std::isnan(out[r])))
              << tile_isa_name(isa) << ", exponent " << first + static_cast<int>(r) << ": " << out[r] << " for "
              << expected;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, TileKernels,
                         ::testing::Combine(::testing::ValuesIn(kTypes), ::testing::ValuesIn(kAllTileIsas)),
                         [](const auto& test) {
                           return std::string(dtype_name(std::get<0>(test.param))) + "_" +
                                  std::string(tile_isa_name(std::get<1>(test.param)));
                         });

}  // namespace
}  // namespace tandem::testing
