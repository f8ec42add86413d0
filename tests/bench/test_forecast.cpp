// What fits the cost model to measured passes: its search, its reader of CSV lines, and that a forecast is the round
// without what the benchmark leaves out.
#include "bench/forecast.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "bench/bench.h"
#include "tests/placement/plan_cases.h"

namespace tandem::bench {
namespace {

TEST(Minimise, FindsTheBottomOfValleys) {
  const auto curved = [](std::span<const double> x) {
    return 100 * std::pow(x[1] - x[0] * x[0], 2) + std::pow(1 - x[0], 2);
  };
  const std::vector<double> at = minimise(curved, {-1.2, 1}, std::array{0.5, 0.5}, 2000);
  EXPECT_NEAR(at[0], 1, 1e-4);
  EXPECT_NEAR(at[1], 1, 1e-4);
  // Ten at once, of very different scales.
  std::vector<double> start(10, 1.0), steps(10, 0.3);
  const auto bowl = [](std::span<const double> x) {
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i)
      sum += std::pow(10.0, static_cast<double>(i % 4)) * std::pow(x[i] - static_cast<double>(i), 2);
    return sum;
  };
  std::vector<double> best = minimise(bowl, start, steps, 8000);
  best = minimise(bowl, best, steps, 8000);
  for (std::size_t i = 0; i < best.size(); ++i) EXPECT_NEAR(best[i], static_cast<double>(i), 0.02);
}

TEST(Minimise, CountsItsCalls) {
  std::size_t calls = 0;
  const auto flat = [&](std::span<const double>) {
    ++calls;
    return 1.0;
  };
  minimise(flat, {1, 2, 3}, std::array{1.0, 1.0, 1.0}, 100);
  EXPECT_GE(calls, 50U);
  EXPECT_LE(calls, 110U);
}

TEST(Csv, FieldsComeBack) {
  const std::vector<std::string> values{"a", "six.gguf, at random", "", "he said \"no\"", "1.5"};
  EXPECT_EQ(csv_fields(csv_line(values)), values);
  EXPECT_EQ(csv_fields("x,y\r"), (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(csv_fields(""), (std::vector<std::string>{""}));
}

TEST(Forecast, IsTheRoundWithoutDraftsAndSampling) {
  PlanInput input = testing::real_input();
  input.hardware.cpu.start_us = 7;
  const CostModel costs(input);
  const ExpertPlacement placement = all_in_ram(49, 512);
  for (const int rows : {1, 4}) {
    std::vector<BankLoad> loads = costs.loads(placement, rows - 1);
    const RoundTime time = costs.round(placement, rows - 1);
    const PassForecast got = forecast(costs, loads, static_cast<std::size_t>(rows), 7);
    EXPECT_NEAR(got.seconds, time.dense + time.experts + time.head, 1e-12);
    EXPECT_GT(got.crew, time.crew);
    EXPECT_LE(got.crew, time.crew + 49 * 7e-6);
  }
}

}  // namespace
}  // namespace tandem::bench
