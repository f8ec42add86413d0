// Router: every machine against ReferenceOps, and against its definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/machines.h"
#include "tests/ops/cases.h"
#include "tests/ops/oracle.h"
#include "tests/ops/twin.h"

namespace tandem::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class Route : public MachineTest {};
INSTANTIATE_FOR_MACHINES(Route);

void expect_route_twin(Ops& machine, const Floats& logits, std::size_t used, std::string what) {
  const auto run = [&](Ops& ops, std::size_t first, std::size_t count, Results& results) {
    auto& experts = results.add<std::int32_t>(count, used);
    auto& weights = results.add<float>(count, used);
    EXPECT_EQ(ops.route(rows_of(logits, first, count), {experts.data(), weights.data(), count, used}), -1);
    for (std::size_t r = 0; r < count; ++r) {
      const float* row = logits.row(first + r);
      const auto expected = oracle::ranking(std::vector<double>(row, row + logits.cols()), used);
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), experts.row(r))) << "row " << first + r;
    }
  };
  expect_twin(machine, {.what = std::move(what), .rows = logits.rows(), .inputs = {&logits}, .run = run});
}

TEST_P(Route, Twin) {
  Random random(51);
  struct Shape {
    std::size_t experts, used;
  };
  for (const Shape& s : {Shape{512, 10}, Shape{320, 10}, Shape{16, 4}, Shape{8, 8}, Shape{10, 1}, Shape{1, 1}})
    for (const Values values : kAllValues) {
      Floats logits(3, s.experts, 3);
      logits.fill([&] { return draw(random, values); });
      expect_route_twin(machine(), logits, s.used, fmt::format("{} experts, {}", s.experts, values_name(values)));
    }
  for (const std::size_t rows : kRowCounts) {
    Floats logits(rows, 64, 3);
    logits.fill([&] { return 10.0F * draw(random, Values::kNormal); });
    expect_route_twin(machine(), logits, 6, "wide spread");
  }
}

TEST_P(Route, TiesGoToTheLowerExpert) {
  Random random(52);
  for (int i = 0; i < 20; ++i) {
    Floats logits(4, 512, 3);
    logits.fill([&] { return static_cast<float>(random.below(3)); });
    logits.row(2)[random.below(512)] = 5.0F;
    logits.row(3)[random.below(512)] = -kInfinity;
    expect_route_twin(machine(), logits, 10, "ties");
  }
}

TEST_P(Route, ReportsTheFirstRowWithNan) {
  Random random(53);
  for (const float nan : {kNan, -kNan})
    for (const std::size_t row : {0U, 1U, 3U})
      for (const std::size_t at : {0U, 9U, 511U}) {
        Floats logits(4, 512);
        logits.fill([&] { return draw(random, Values::kNormal); });
        logits.row(row)[at] = nan;
        logits.row(3)[100] = nan;
        Guarded<std::int32_t> experts(4, 10);
        Floats weights(4, 10);
        EXPECT_EQ(machine().route(rows_of(std::as_const(logits)), {experts.data(), weights.data(), 4, 10}),
                  static_cast<std::int64_t>(row));
      }
}

}  // namespace
}  // namespace tandem::testing
