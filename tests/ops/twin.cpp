#include "tests/ops/twin.h"

#include <algorithm>

#include "cpu/reference_ops.h"

namespace tandem::testing {

Floats& Results::copy(ConstRows source) {
  Floats& array = floats(source.rows, source.cols);
  for (std::size_t r = 0; r < source.rows; ++r) std::copy_n(source.row(r), source.cols, array.row(r));
  return array;
}

QuantArrays Results::quant(std::size_t rows, std::size_t cols) {
  auto& q = add<std::int8_t>(rows, cols);
  auto& d = add<float>(rows, cols / 32);
  return {q, d, add<std::int32_t>(rows, cols / 16)};
}

namespace {

::testing::AssertionResult same_rows(const GuardedArray& a, std::size_t first_a, const GuardedArray& b,
                                     std::size_t first_b, std::size_t count) {
  for (std::size_t r = 0; r < count; ++r) {
    const auto x = a.row_bytes(first_a + r), y = b.row_bytes(first_b + r);
    if (x.size() != y.size()) return ::testing::AssertionFailure() << x.size() << " bytes and " << y.size();
    const auto differs = std::mismatch(x.begin(), x.end(), y.begin());
    if (differs.first == x.end()) continue;
    const std::size_t at = static_cast<std::size_t>(differs.first - x.begin()) / 4 * 4;
    auto failure = ::testing::AssertionFailure() << "row " << first_a + r << ", byte " << at << " of " << x.size();
    if (at + 4 <= x.size()) {
      float p, q;
      std::memcpy(&p, x.data() + at, 4);
      std::memcpy(&q, y.data() + at, 4);
      failure << fmt::format(": {:a} and {:a} (as float)", p, q);
    }
    return failure;
  }
  return ::testing::AssertionSuccess();
}

void run_guarded(Ops& ops, const TwinCase& c, std::size_t first, std::size_t count, Results& results) {
  std::vector<std::vector<std::uint8_t>> before;
  for (const GuardedArray* input : c.inputs)
    for (std::size_t r = 0; r < input->rows(); ++r)
      before.emplace_back(input->row_bytes(r).begin(), input->row_bytes(r).end());
  c.run(ops, first, count, results);
  std::size_t next = 0;
  for (const GuardedArray* input : c.inputs) {
    EXPECT_TRUE(input->guards_intact()) << "guards of an input";
    for (std::size_t r = 0; r < input->rows(); ++r, ++next)
      EXPECT_TRUE(std::equal(before[next].begin(), before[next].end(), input->row_bytes(r).begin()))
          << "row " << r << " of an input changed";
  }
  for (const auto& array : results.arrays()) {
    EXPECT_TRUE(array->guards_intact()) << "written outside the rows of an output";
    EXPECT_TRUE(c.nan_allowed || !array->holds_nan()) << "NaN in an output: read outside an input, or not written";
  }
}

}  // namespace

::testing::AssertionResult same_bits(const Results& a, const Results& b) {
  if (a.arrays().size() != b.arrays().size()) return ::testing::AssertionFailure() << "other arrays";
  for (std::size_t i = 0; i < a.arrays().size(); ++i) {
    const auto same = same_rows(*a.arrays()[i], 0, *b.arrays()[i], 0, a.arrays()[i]->rows());
    if (!same) return ::testing::AssertionFailure() << "output " << i << ", " << same.message();
  }
  return ::testing::AssertionSuccess();
}

void expect_twin(Ops& machine, const TwinCase& c) {
  SCOPED_TRACE(fmt::format("{}, {} rows, {}", machine.describe(), c.rows, c.what));
  Results expected, got;
  ReferenceOps reference;
  run_guarded(reference, c, 0, c.rows, expected);
  run_guarded(machine, c, 0, c.rows, got);
  ASSERT_TRUE(same_bits(expected, got));
  for (std::size_t r = 0; c.rows_alone && c.rows > 1 && r < c.rows; ++r) {
    Results alone;
    run_guarded(machine, c, r, 1, alone);
    ASSERT_EQ(alone.arrays().size(), got.arrays().size());
    for (std::size_t i = 0; i < alone.arrays().size(); ++i) {
      const std::size_t per_row = alone.arrays()[i]->rows();
      ASSERT_TRUE(same_rows(*alone.arrays()[i], 0, *got.arrays()[i], r * per_row, per_row))
          << "row " << r << " alone, output " << i;
    }
  }
}

}  // namespace tandem::testing
