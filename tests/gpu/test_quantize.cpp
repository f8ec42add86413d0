// R2 on the card against ReferenceOps, bit for bit, and the first row that is not finite.
#include "gpu/kernels/quantize.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "cpu/reference_ops.h"
#include "gpu/cuda_check.h"
#include "tests/gpu/gpu_test.h"
#include "tests/ops/cases.h"

namespace tandem::testing {
namespace {

using GpuQuantize = GpuTest;

struct Quantised {
  std::vector<std::int8_t> q;
  std::vector<float> d;
  std::vector<std::int32_t> s;
  std::int64_t bad = -1;
  Quantised(std::size_t rows, std::size_t cols) : q(rows * cols), d(rows * cols / 32), s(rows * cols / 16) {}
};

Quantised on_card(const std::vector<float>& x, std::size_t rows, std::size_t cols, std::size_t stride) {
  Quantised out(rows, cols);
  const auto device_x = on_device(x);
  DeviceBuffer<std::int8_t> q(out.q.size());
  DeviceBuffer<float> d(out.d.size());
  DeviceBuffer<std::int32_t> s(out.s.size());
  const auto first_bad = on_device(std::vector<std::int32_t>{kNoBadRow});
  launch_quantize(device_x.get(), stride, rows, cols, q.get(), d.get(), s.get(), first_bad.get(), nullptr);
  CUDA_CHECK(cudaDeviceSynchronize());
  q.download(out.q.data());
  d.download(out.d.data());
  s.download(out.s.data());
  std::int32_t bad;
  first_bad.download(&bad);
  out.bad = bad == kNoBadRow ? -1 : bad;
  return out;
}

TEST_F(GpuQuantize, GivesTheBitsOfTheReference) {
  Random random(21);
  for (const std::size_t cols : {32UL, 64UL, 96UL, 640UL, 2560UL, 10240UL})
    for (const std::size_t rows : {1UL, 3UL, 16UL, 40UL})
      for (const Values values : kAllValues) {
        const std::size_t stride = cols + 8;
        std::vector<float> x(rows * stride);
        for (float& v : x) v = draw(random, values);
        Quantised expected(rows, cols);
        ReferenceOps reference;
        const QuantRows q{expected.q.data(), expected.d.data(), expected.s.data(), rows, cols};
        ASSERT_EQ(reference.quantize(ConstRows(x.data(), rows, cols, stride), q), -1);
        const Quantised found = on_card(x, rows, cols, stride);
        const auto label = fmt::format("{} x {}, {}", rows, cols, values_name(values));
        ASSERT_EQ(found.bad, -1) << label;
        ASSERT_EQ(found.q, expected.q) << label;
        ASSERT_EQ(std::memcmp(found.d.data(), expected.d.data(), 4 * found.d.size()), 0) << label;
        ASSERT_EQ(found.s, expected.s) << label;
      }
}

TEST_F(GpuQuantize, FindsTheFirstRowThatIsNotFinite) {
  constexpr std::size_t kRows = 9, kCols = 320;
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()})
    for (const std::size_t row : {0U, 4U, 8U})
      for (const std::size_t col : {0U, 31U, 319U}) {
        std::vector<float> x(kRows * kCols, 1.0F);
        x[row * kCols + col] = bad;
        x[8 * kCols + 7] = bad;
        EXPECT_EQ(on_card(x, kRows, kCols, kCols).bad, static_cast<std::int64_t>(row)) << bad << ", " << col;
      }
}

}  // namespace
}  // namespace tandem::testing
