// The float32 reference machine against products in double: every type, strips and their tails, strides, scales, and
// experts that several rows share.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cpu/float_ops.h"
#include "tests/ops/cases.h"

namespace tandem::testing {
namespace {

std::vector<double> decoded_row(const WeightView& w, std::size_t row) {
  std::vector<float> values(w.cols);
  dequantize_row(w.type, w.row(row), w.cols, values.data());
  return {values.begin(), values.end()};
}

std::vector<float> random_values(std::size_t n, Random& random) {
  std::vector<float> values(n);
  for (float& v : values) v = draw(random, Values::kNormal);
  return values;
}

// K roundings at most, each of half a unit in the last place of a sum that never exceeds the sum of magnitudes.
void expect_products(const WeightView& w, ConstRows x, ConstRows y, const std::string& what) {
  for (std::size_t n = 0; n < w.rows; ++n) {
    const std::vector<double> row = decoded_row(w, n);
    for (std::size_t r = 0; r < x.rows; ++r) {
      double sum = 0, magnitude = 0;
      for (std::size_t k = 0; k < w.cols; ++k) {
        const double product = row[k] * static_cast<double>(x.row(r)[k]);
        sum += product;
        magnitude += std::fabs(product);
      }
      const double scale = static_cast<double>(w.scale), bound = static_cast<double>(w.cols + 2) * 0x1p-24;
      ASSERT_NEAR(static_cast<double>(y.row(r)[n]), sum * scale, bound * magnitude * std::fabs(scale))
          << what << ": row " << r << ", column " << n;
    }
  }
}

void check_matmul(const Weights& weights, std::size_t rows, int workers, Random& random, const std::string& what) {
  FloatOps ops(workers);
  WeightView w = weights.view;
  w.scale = -0.75F;
  constexpr std::size_t kGap = 3;
  constexpr float kGuard = 12345.0F;
  const std::size_t x_stride = w.cols + kGap, y_stride = w.rows + kGap;
  const std::vector<float> x = random_values(rows * x_stride, random);
  std::vector<float> y(rows * y_stride, kGuard);
  const Rows out(y.data(), rows, w.rows, y_stride);
  for (std::size_t r = 0; r < rows; ++r)  // what was there before must not come in, not even as 0 * NaN
    std::fill_n(out.row(r), w.rows, std::numeric_limits<float>::quiet_NaN());
  const ConstRows in(x.data(), rows, w.cols, x_stride);
  ops.matmul(w, Activation{in, {}}, out);
  expect_products(w, in, out, what);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t i = w.rows; i < y_stride; ++i) ASSERT_EQ(y[r * y_stride + i], kGuard) << what;
}

TEST(FloatOps, EveryTypeOfWeight) {
  Random random(1);
  std::vector<DType> types = types_of_kind(DTypeKind::kBlock);
  for (const DType type : types)
    check_matmul(block_weights(type, 37, 512, Scales::kNormal, random), 3, 2, random, std::string(dtype_name(type)));
  for (const DType type : types_of_kind(DTypeKind::kFloat))
    check_matmul(float_weights(type, 37, 257, Values::kNormal, random), 3, 2, random, std::string(dtype_name(type)));
  EXPECT_GE(types.size(), 20U);
}

// 10,240 columns make strips of 51 rows: whole strips, a tail, and fewer rows than workers.
TEST(FloatOps, StripsAndTails) {
  Random random(2);
  for (const int workers : {1, 2, 5})
    for (const std::size_t rows : {1UL, 2UL, 17UL})
      for (const std::size_t n : {1UL, 3UL, 51UL, 102UL, 115UL})
        check_matmul(block_weights(DType::Q8_0, n, 10240, Scales::kNormal, random), rows, workers, random,
                     fmt::format("{} workers, {} x {}", workers, rows, n));
}

double silu(double v) {
  return v / (1.0 + std::exp(-v));
}

std::vector<double> ffn_in_double(const ExpertWeights& w, const float* x) {
  const auto product = [](const WeightView& m, const auto& in) {
    std::vector<double> out(m.rows);
    for (std::size_t n = 0; n < m.rows; ++n) {
      const std::vector<double> row = decoded_row(m, n);
      for (std::size_t k = 0; k < m.cols; ++k) out[n] += row[k] * static_cast<double>(in[k]);
      out[n] *= static_cast<double>(m.scale);
    }
    return out;
  };
  std::vector<double> hidden = product(w.gate, x);
  const std::vector<double> up = product(w.up, x);
  for (std::size_t i = 0; i < hidden.size(); ++i) hidden[i] = silu(hidden[i]) * up[i];
  return product(w.down, hidden);
}

// Two products of 128 and 96 terms and the silu between them: some hundred roundings of 2^-24, a sum of magnitudes a
// few times its result.
void expect_ffn(const std::vector<double>& expected, const float* found, const std::string& what) {
  double square = 0;
  for (const double v : expected) square += v * v;
  const double rms = std::sqrt(square / static_cast<double>(expected.size()));
  for (std::size_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR(static_cast<double>(found[i]), expected[i], 3e-5 * rms) << what << ", column " << i;
}

// Large enough that all workers join in on a busy machine: a strip shared between them is found in the first round.
// Sequential OpenBLAS, whose own buffers collide for nanoseconds, is not found so; it is refused, see below.
TEST(FloatOps, WorkersDoNotDisturbEachOther) {
  constexpr std::size_t kExperts = 256, kWidth = 256, kHidden = 128, kRows = 7 * kExperts;
  Random random(4);
  const Weights gate = block_weights(DType::Q8_0, kExperts * kHidden, kWidth, Scales::kNormal, random);
  const Weights down = block_weights(DType::Q8_0, kExperts * kWidth, kHidden, Scales::kNormal, random);
  ExpertBank bank{gate.view.slice(0, kHidden), gate.view.slice(0, kHidden), down.view.slice(0, kWidth)};
  bank.gate_up_stride = bank.up_stride = bank.gate.bytes();
  bank.down_stride = bank.down.bytes();
  bank.experts = kExperts;
  const std::vector<float> x = random_values(kRows * kWidth, random);
  std::vector<std::int32_t> expert(kRows);
  for (std::size_t r = 0; r < kRows; ++r) expert[r] = static_cast<std::int32_t>(r % kExperts);
  std::vector<float> weight(kRows, 1.0F), expected(kRows * kWidth), y(kRows * kWidth);
  const auto run = [&](FloatOps& ops, std::vector<float>& to) {
    ops.expert_ffn(bank, {expert.data(), weight.data(), kRows, 1}, {ConstRows(x.data(), kRows, kWidth), {}},
                   Rows(to.data(), kRows, kWidth));
  };
  FloatOps alone(1), many(4);
  run(alone, expected);
  for (int i = 0; i < 8; ++i) {
    run(many, y);
    ASSERT_EQ(y, expected) << "round " << i;  // the same calls in another thread: the same bits
  }
}

TEST(FloatOps, RefusesASequentialBlasForSeveralWorkers) {
  constexpr int kSequential = 0, kPthread = 1, kOpenMp = 2;
  EXPECT_NO_THROW(require_concurrent_blas(kSequential, 1));
  EXPECT_NO_THROW(require_concurrent_blas(kPthread, 64));
  EXPECT_NO_THROW(require_concurrent_blas(kOpenMp, 64));
  try {
    require_concurrent_blas(kSequential, 2);
    ADD_FAILURE() << "not refused";
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(),
                 "OpenBLAS: expected a variant that 2 workers may call at once, found the sequential one. Fix: install "
                 "libopenblas0-pthread (update-alternatives chooses between them), or --workers 1");
  }
}

TEST(FloatOps, SaysWhatItIs) {
  FloatOps ops(3);
  EXPECT_NE(ops.describe().find("OpenBLAS"), std::string::npos) << ops.describe();
  EXPECT_NE(ops.describe().find("3 workers"), std::string::npos) << ops.describe();
}

TEST(FloatOps, ExpertsAndTheSharedExpert) {
  constexpr std::size_t kExperts = 5, kWidth = 128, kHidden = 96, kRows = 7, kUsed = 3;
  Random random(3);
  const Weights gate = block_weights(DType::Q4_0, kExperts * kHidden, kWidth, Scales::kNormal, random);
  const Weights up = block_weights(DType::Q8_0, kExperts * kHidden, kWidth, Scales::kNormal, random);
  const Weights down = block_weights(DType::Q5_1, kExperts * kWidth, kHidden, Scales::kNormal, random);
  const std::vector<float> gate_scale{1, 0.5F, 2, -1, 0.25F}, up_scale{0.5F, 1, 1, 2, 1}, down_scale{1, 1, 3, 1, 0.5F};
  ExpertBank bank{gate.view.slice(0, kHidden), up.view.slice(0, kHidden), down.view.slice(0, kWidth)};
  bank.gate_up_stride = bank.gate.bytes();
  bank.up_stride = bank.up.bytes();
  bank.down_stride = bank.down.bytes();
  bank.experts = kExperts;
  bank.gate_scale = gate_scale.data();
  bank.up_scale = up_scale.data();
  bank.down_scale = down_scale.data();

  const std::vector<float> x = random_values(kRows * (kWidth + 1), random);
  const ConstRows in(x.data(), kRows, kWidth, kWidth + 1);
  std::vector<std::int32_t> expert;  // expert 4 is busy in every row, expert 1 is never used
  for (std::size_t r = 0; r < kRows; ++r) expert.insert(expert.end(), {r % 2 == 0 ? 2 : 3, 4, 0});
  std::vector<float> weight(kRows * kUsed, 1.0F / kUsed), y(kRows * kUsed * kWidth), z(kRows * kWidth);
  for (const int workers : {1, 2}) {
    FloatOps ops(workers);
    std::fill(y.begin(), y.end(), std::numeric_limits<float>::quiet_NaN());
    ops.expert_ffn(bank, {expert.data(), weight.data(), kRows, kUsed}, {in, {}}, Rows(y.data(), kRows * kUsed, kWidth));
    ops.ffn(bank.expert(1), {in, {}}, Rows(z.data(), kRows, kWidth));
    for (std::size_t r = 0; r < kRows; ++r) {
      for (std::size_t k = 0; k < kUsed; ++k)
        expect_ffn(ffn_in_double(bank.expert(expert[r * kUsed + k]), in.row(r)), &y[(r * kUsed + k) * kWidth],
                   fmt::format("{} workers, row {}, rank {}", workers, r, k));
      expect_ffn(ffn_in_double(bank.expert(1), in.row(r)), &z[r * kWidth], fmt::format("shared, row {}", r));
    }
  }
}

// An expert is one task: its matrices are walked in strips (of 51 and 4,096 rows here) inside it.
TEST(FloatOps, AnExpertOfSeveralStrips) {
  constexpr std::size_t kWidth = 10240, kHidden = 128;
  Random random(5);
  const Weights gate = block_weights(DType::Q8_0, kHidden, kWidth, Scales::kNormal, random);
  const Weights up = block_weights(DType::Q4_0, kHidden, kWidth, Scales::kNormal, random);
  const Weights down = block_weights(DType::Q8_0, kWidth, kHidden, Scales::kNormal, random);
  ExpertBank bank{gate.view, up.view, down.view};
  bank.experts = 1;
  const std::vector<float> x = random_values(2 * kWidth, random);
  const ConstRows in(x.data(), 2, kWidth);
  std::vector<std::int32_t> expert{0, 0};
  std::vector<float> weight{1.0F, 1.0F}, y(2 * kWidth, std::numeric_limits<float>::quiet_NaN());
  FloatOps ops(2);
  ops.expert_ffn(bank, {expert.data(), weight.data(), 2, 1}, {in, {}}, Rows(y.data(), 2, kWidth));
  for (std::size_t r = 0; r < 2; ++r)
    expect_ffn(ffn_in_double(bank.expert(0), in.row(r)), &y[r * kWidth], fmt::format("row {}", r));
}

}  // namespace
}  // namespace tandem::testing
