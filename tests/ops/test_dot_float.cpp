// Ops::matmul of float formats, every machine against ReferenceOps, and the dot product itself at every length (R4).
#include <gtest/gtest.h>

#include <cstring>

#include "cpu/kernels/dot_float.h"
#include "cpu/reference_dot.h"
#include "tests/machines.h"
#include "tests/ops/cases.h"
#include "tests/ops/twin.h"

namespace tandem::testing {
namespace {

class FloatMatmul : public MachineTest {};
INSTANTIATE_FOR_MACHINES(FloatMatmul);

void expect_matmul_twin(Ops& machine, const WeightView& w, Values values, std::size_t rows, Random& random) {
  Floats x(rows, w.cols, 3);
  x.fill([&] { return draw(random, values); });
  const auto run = [&](Ops& ops, std::size_t first, std::size_t count, Results& results) {
    ops.matmul(w, {rows_of(x, first, count), {}}, rows_of(results.floats(count, w.rows)));
  };
  const auto what = fmt::format("{} [{}, {}], {}", dtype_name(w.type), w.rows, w.cols, values_name(values));
  expect_twin(machine, {.what = what, .rows = rows, .inputs = {&x}, .run = run});
}

TEST_P(FloatMatmul, Twin) {
  Random random(11);
  for (const DType type : {DType::F32, DType::F16, DType::BF16})
    for (const std::size_t cols : kFloatLengths) {
      const auto expect = [&](std::size_t rows, std::size_t n, Values values) {
        Weights w = float_weights(type, n, cols, values, random, random.below(2) == 0 ? 0 : 1 + random.below(15));
        if (random.below(4) == 0) w.view.scale = random.uniform(0.1F, 2.0F);
        expect_matmul_twin(machine(), w.view, values, rows, random);
      };
      for (const Values values : kAllValues) expect(3, 3, values);
      expect(1, 65, Values::kNormal);
      expect(2, 17, Values::kMixed);
      expect(5, 1, Values::kTiny);
      expect(16, 3, Values::kNormal);
      expect(40, 2, Values::kNormal);
    }
}

// Large enough to be cut into strips for several workers, with a ragged last strip.
TEST_P(FloatMatmul, WideMatrices) {
  Random random(12);
  for (const std::size_t n : {64U, 130U, 515U}) {
    const Weights w = float_weights(DType::F32, n, 640, Values::kNormal, random);
    expect_matmul_twin(machine(), w.view, Values::kNormal, 3, random);
  }
}

// Lengths 0 .. 600 hold every tail at every offset from a segment border; the vectors end where the guards begin.
TEST(DotFloat, HasTheBitsOfTheReferenceAtEveryLength) {
  Random random(13);
  for (const Values values : kAllValues)
    for (std::size_t n = 0; n <= 600; ++n) {
      if (values == Values::kLarge) continue;  // squares overflow: the float matrices above cover large values
      Floats a(1, n), b(1, n);
      a.fill([&] { return draw(random, values); });
      b.fill([&] { return draw(random, values); });
      const float expected = dot_float_ref(a.data(), b.data(), n), got = dot_float(a.data(), b.data(), n);
      ASSERT_EQ(std::memcmp(&expected, &got, sizeof got), 0)
          << n << " elements, " << values_name(values) << ": " << expected << " and " << got;
    }
}

// All products are negative and vanish, so that a lane without elements (+0) differs from a lane that lost its own
// (-0).
TEST(DotFloat, KeepsNegativeZero) {
  for (std::size_t n = 1; n <= 600; ++n) {
    Floats a(1, n), b(1, n);
    a.fill([] { return -1e-30F; });
    b.fill([] { return 1e-30F; });
    const float expected = dot_float_ref(a.data(), b.data(), n), got = dot_float(a.data(), b.data(), n);
    // -0 needs every lane of every segment, and no padding segment: one or two of them, the last 32 or longer.
    ASSERT_EQ(std::signbit(expected), n <= 512 && (n - 1) % 256 >= 31) << n << " elements";
    ASSERT_EQ(std::memcmp(&expected, &got, sizeof got), 0) << n << " elements: " << expected << " and " << got;
  }
}

}  // namespace
}  // namespace tandem::testing
