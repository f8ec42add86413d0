// The elementary functions of the contract (R6) against double precision: the largest relative error over every
// exponent, order, clamps and exact values. The bounds are those of tests/ops/oracle.h.
#include "runtime/exact_math.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "tests/ops/oracle.h"

namespace tandem {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Worst {
  double error = 0;
  float at = 0;
};

// Calls visit(x) for floats of both signs (or the positive ones) over the exponents of [low, high]: `steps` evenly
// spread mantissas of every exponent, and the last float of each.
void sweep(float low, float high, std::uint32_t steps, bool negative, const std::function<void(float)>& visit) {
  const std::uint32_t first = std::bit_cast<std::uint32_t>(low), last = std::bit_cast<std::uint32_t>(high);
  for (std::uint32_t exponent = first >> 23; exponent <= last >> 23; ++exponent)
    for (std::uint32_t step = 0; step <= steps; ++step) {
      const std::uint32_t mantissa = step == steps ? 0x7FFFFFU : step * (0x800000U / steps);
      const std::uint32_t bits = exponent << 23 | mantissa;
      if (bits < first || bits > last) continue;
      visit(std::bit_cast<float>(bits));
      if (negative) visit(-std::bit_cast<float>(bits));
    }
}

void record(Worst& worst, float x, float got, double expected) {
  const double error = std::fabs(static_cast<double>(got) - expected) / std::fabs(expected);
  if (!(error <= worst.error)) worst = {error, x};
}

void report(const char* name, const Worst& worst) {
  ::testing::Test::RecordProperty(std::string(name) + "_error", std::to_string(worst.error));
  std::printf("  %s: largest relative error %.3e at %a\n", name, worst.error, static_cast<double>(worst.at));
}

constexpr std::uint32_t kSteps = 8192;

TEST(ExactMath, Exp) {
  Worst worst;
  std::size_t points = 0;
  const auto visit = [&](float x) {
    if (x > 88.0F || x < -87.0F) return;
    ++points;
    record(worst, x, exp_c(x), std::exp(static_cast<double>(x)));
  };
  visit(0.0F);
  sweep(0x1p-126F, 88.0F, kSteps, true, visit);
  for (float x = -87.0F; x <= 88.0F; x += 0x1p-13F) visit(x);  // the large exponents hold most of the range
  report("exp_c", worst);
  EXPECT_GT(points, 3000000U);
  EXPECT_LT(worst.error, oracle::kExpError);
}

// Rounding averages out over many neighbours, the polynomial's own error does not: at most 2.0e-8, at the ends of the
// reduced range, where a wrong last coefficient would show first.
TEST(ExactMath, ExpPolynomial) {
  constexpr int kBuckets = 64, kPoints = 8192;
  constexpr double kHalfLn2 = 0.34657359027997264;
  for (int bucket = 0; bucket < kBuckets; ++bucket) {
    double sum = 0;
    for (int i = 0; i < kPoints; ++i) {
      const double place = (bucket + (i + 0.5) / kPoints) / kBuckets;  // of the range, 0 .. 1
      const auto x = static_cast<float>((2 * place - 1) * kHalfLn2);
      sum += static_cast<double>(exp_c(x)) / std::exp(static_cast<double>(x)) - 1;
    }
    EXPECT_LT(std::fabs(sum / kPoints), 2.2e-8) << "bucket " << bucket;
  }
}

TEST(ExactMath, ExpAtItsEdges) {
  EXPECT_EQ(exp_c(0.0F), 1.0F);
  EXPECT_EQ(exp_c(-0.0F), 1.0F);
  EXPECT_EQ(exp_c(0x1p-149F), 1.0F);
  for (const float x : {88.0F, std::nextafter(88.0F, 100.0F), 1e30F, kInfinity}) EXPECT_EQ(exp_c(x), exp_c(88.0F)) << x;
  for (const float x : {-87.0F, std::nextafter(-87.0F, -100.0F), -1e30F, -kInfinity})
    EXPECT_EQ(exp_c(x), exp_c(-87.0F)) << x;
  EXPECT_LT(exp_c(std::nextafter(88.0F, 0.0F)), exp_c(88.0F));
  EXPECT_GT(exp_c(std::nextafter(-87.0F, 0.0F)), exp_c(-87.0F));
  EXPECT_GE(exp_c(-87.0F), std::numeric_limits<float>::min()) << "never denormal";
  EXPECT_TRUE(std::isfinite(exp_c(88.0F)));
  EXPECT_TRUE(std::isnan(exp_c(std::numeric_limits<float>::quiet_NaN())));
}

// Never falls by more than rounding between neighbours, and rises over any step of 2^-20 of the value.
TEST(ExactMath, ExpRises) {
  float before = 0.0F;
  for (float x = -90.0F; x <= 90.0F; x += 0x1p-12F) {
    const float y = exp_c(x);
    ASSERT_TRUE(x <= -87.0F || x > 88.0F ? y >= before : y > before) << x;
    before = y;
  }
  for (const float centre : {-87.0F, -1.0F, -0x1.62e43p-2F, 0x1.62e43p-2F, 1.0F, 88.0F}) {
    float x = centre - std::fabs(centre) * 0x1p-12F;
    for (int i = 0; i < 20000; ++i) {
      const float next = std::nextafter(x, kInfinity);
      const float low = exp_c(x), high = exp_c(next);
      ASSERT_GE(high, std::nextafter(low, 0.0F)) << x;
      x = next;
    }
  }
}

TEST(ExactMath, Log) {
  Worst worst;
  std::size_t points = 0;
  sweep(0x1p-126F, std::numeric_limits<float>::max(), kSteps, false, [&](float x) {
    if (x == 1.0F) return;
    ++points;
    record(worst, x, log_c(x), std::log(static_cast<double>(x)));
  });
  for (std::uint32_t d = 1; d < 200000; ++d)  // around 1, where the result vanishes, float by float
    for (const std::uint32_t bits : {0x3F800000U - d, 0x3F800000U + d}) {
      const float x = std::bit_cast<float>(bits);
      record(worst, x, log_c(x), std::log(static_cast<double>(x)));
    }
  report("log_c", worst);
  EXPECT_GT(points, 2000000U);
  EXPECT_LT(worst.error, oracle::kLogError);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(log_c(1.0F)), 0U);
}

TEST(ExactMath, Softplus) {
  Worst worst;
  const auto visit = [&](float x) {
    if (x < -87.0F) return;
    const auto wide = static_cast<double>(x);
    record(worst, x, softplus_c(x), std::max(wide, 0.0) + std::log1p(std::exp(-std::fabs(wide))));
  };
  sweep(0x1p-126F, std::numeric_limits<float>::max(), kSteps, true, visit);
  for (float x = -87.0F; x <= 30.0F; x += 0x1p-13F) visit(x);
  report("softplus_c", worst);
  EXPECT_LT(worst.error, oracle::kSoftplusError);
  EXPECT_EQ(softplus_c(0.0F), static_cast<float>(std::log(2.0)));
  EXPECT_EQ(softplus_c(100.0F), 100.0F);
  EXPECT_EQ(softplus_c(1e30F), 1e30F);
  EXPECT_EQ(softplus_c(-1e30F), exp_c(-87.0F));
}

// The bounds that the oracle computes for one exact argument, which contain the clamps.
template <typename Function, typename Bound>
void expect_within(const char* name, Function function, Bound bound) {
  Worst worst;  // as a part of the bound
  const auto visit = [&](float x) {
    const oracle::Approx expected = bound(oracle::exact(x));
    const double part = std::fabs(static_cast<double>(function(x)) - expected.value) / expected.error;
    if (!(part <= worst.error)) worst = {part, x};
  };
  visit(0.0F);
  sweep(0x1p-126F, std::numeric_limits<float>::max(), kSteps, true, visit);
  for (float x = -100.0F; x <= 100.0F; x += 0x1p-12F) visit(x);
  std::printf("  %s: at most %.3f of its bound, at %a\n", name, worst.error, static_cast<double>(worst.at));
  EXPECT_LE(worst.error, 1.0);
}

TEST(ExactMath, SigmoidAndSilu) {
  expect_within("sigmoid_c", sigmoid_c, oracle::sigmoid);
  expect_within("silu_c", silu_c, oracle::silu);
  EXPECT_EQ(sigmoid_c(0.0F), 0.5F);
  EXPECT_EQ(sigmoid_c(1e30F), 1.0F);
  EXPECT_GT(sigmoid_c(-1e30F), 0.0F);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(silu_c(0.0F)), 0U);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(silu_c(-0.0F)), 0x80000000U);
  EXPECT_EQ(silu_c(1e30F), 1e30F);
  float before = 0.0F;
  for (float x = -95.0F; x <= 95.0F; x += 0x1p-10F) {
    const float y = sigmoid_c(x);
    ASSERT_GE(y, before) << x;
    before = y;
  }
}

}  // namespace
}  // namespace tandem
