// The order of every sum, bit for bit, against the contract's words put into code a second time: a recursive tree
// instead of strides, one loop per rule, no shared helper (docs/numerics.md R3, R4, R5, R7).
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>

#include "cpu/reference_dot.h"
#include "runtime/exact_math.h"
#include "tests/machines.h"
#include "tests/ops/cases.h"
#include "tests/ops/guarded.h"

namespace tandem::testing {
namespace {

std::uint32_t bits(float x) {
  return std::bit_cast<std::uint32_t>(x);
}

// "Summed pairwise: pad with +0 to a power of two, then neighbours": the sum of a padded range is the sum of its
// halves' sums.
float tree(std::vector<float> v) {
  if (v.empty()) return 0.0F;
  while (!std::has_single_bit(v.size())) v.push_back(0.0F);
  if (v.size() == 1) return v[0];
  const auto middle = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2);
  return tree({v.begin(), middle}) + tree({middle, v.end()});
}

// Partial results of segments of `length`, each from its first to its last element, joined by the tree.
float segmented(std::size_t n, std::size_t length, const std::function<float(std::size_t, float)>& step) {
  std::vector<float> sums;
  for (std::size_t i = 0; i < n; ++i) {
    if (i % length == 0) sums.push_back(0.0F);
    sums.back() = step(i, sums.back());
  }
  return tree(sums);
}

// 32 lanes by index mod 32: the elements of a lane are a sequence of their own, in segments of 256 / 32 elements.
float dot_by_lanes(const float* a, const float* b, std::size_t n) {
  std::vector<float> lanes(32);
  const std::size_t segments = (n + 255) / 256;
  for (std::size_t lane = 0; lane < 32; ++lane) {
    std::vector<float> sums(segments);
    for (std::size_t i = lane; i < n; i += 32) sums[i / 256] = std::fma(a[i], b[i], sums[i / 256]);
    lanes[lane] = tree(sums);
  }
  return tree(lanes);
}

// R3: P and R in integers, then one fused step each; NVFP4 one per half.
float dot_by_blocks(DType type, const std::uint8_t* row, std::size_t n, const QuantRows& x, std::size_t r) {
  return segmented(n / 32, 8, [&](std::size_t b, float acc) {
    Block32 w;
    decode_block32(type, row, b, w);
    const float da = x.d_row(r)[b];
    std::int64_t p[2] = {0, 0}, sums[2] = {0, 0};
    for (std::size_t i = 0; i < 32; ++i) {
      const std::int64_t q = x.q_row(r)[b * 32 + i];
      p[i / 16] += w.m[i / 16] * w.c[i] * q;
      sums[i / 16] += w.n[i / 16] * q;
    }
    if (type == DType::NVFP4) {
      acc = std::fma(w.d[0] * da, static_cast<float>(p[0]), acc);
      return std::fma(w.d[1] * da, static_cast<float>(p[1]), acc);
    }
    acc = std::fma(w.d[0] * da, static_cast<float>(p[0] + p[1]), acc);
    if (w.has_offset) acc = std::fma(w.e * da, static_cast<float>(sums[0] + sums[1]), acc);
    return acc;
  });
}

TEST(TreeSum, PairsNeighbours) {
  Random random(61);
  for (std::size_t n = 0; n <= 130; ++n)
    for (const Values values : {Values::kNormal, Values::kMixed, Values::kNegativeZero}) {
      std::vector<float> v(n);
      for (float& x : v) x = draw(random, values);
      const float expected = tree(v);
      v.resize(2 * n + 1, 99.0F);  // what lies behind the n values does not count
      EXPECT_EQ(bits(tree_sum(v.data(), n)), bits(expected)) << n << " values, " << values_name(values);
    }
}

class Orders : public MachineTest {};
INSTANTIATE_FOR_MACHINES(Orders);

TEST_P(Orders, FloatProduct) {
  Random random(62);
  for (const std::size_t n : {1U, 7U, 31U, 32U, 33U, 64U, 255U, 256U, 257U, 300U, 640U, 1025U, 2560U})
    for (const Values values : {Values::kNormal, Values::kTiny, Values::kMixed}) {
      const Weights w = float_weights(DType::F32, 3, n, values, random);
      Floats x(2, n, 3), y(2, 3);
      x.fill([&] { return draw(random, values); });
      machine().matmul(w.view, {rows_of(std::as_const(x)), {}}, rows_of(y));
      std::vector<float> row(n);
      for (std::size_t i = 0; i < 3; ++i) {
        std::memcpy(row.data(), w.view.row(i), n * sizeof(float));
        for (std::size_t r = 0; r < 2; ++r)
          EXPECT_EQ(bits(y.row(r)[i]), bits(dot_by_lanes(row.data(), x.row(r), n))) << n << " elements";
      }
    }
}

TEST_P(Orders, BlockProduct) {
  Random random(63);
  for (const DType type : types_of_kind(DTypeKind::kBlock))
    for (const std::size_t n : {32U, 64U, 128U, 256U, 288U, 512U, 768U, 1280U, 2560U}) {
      if (n % dtype_info(type).block_elems != 0) continue;
      Weights w = block_weights(type, 2, n, Scales::kNormal, random, 1);
      w.view.scale = 0.75F;
      Floats x(2, n, 3), y(2, 2);
      OwnedQuant q(2, n);
      x.fill([&] { return draw(random, Values::kNormal); });
      ASSERT_EQ(machine().quantize(rows_of(std::as_const(x)), q.rows()), -1);
      machine().matmul(w.view, {rows_of(std::as_const(x)), q.rows()}, rows_of(y));
      for (std::size_t i = 0; i < 2; ++i)
        for (std::size_t r = 0; r < 2; ++r)
          EXPECT_EQ(bits(y.row(r)[i]), bits(dot_by_blocks(type, w.view.row(i), n, q.rows(), r) * 0.75F))
              << dtype_name(type) << ", " << n << " elements";
    }
}

TEST_P(Orders, Norms) {
  Random random(64);
  for (const std::size_t n : {24U, 128U, 320U, 2560U}) {
    Floats x(1, 2 * n), rms(1, 2 * n), unit(1, 2 * n), gamma(1, 2 * n);
    x.fill([&] { return draw(random, Values::kNormal); });
    gamma.fill([&] { return draw(random, Values::kNormal); });
    machine().rms_norm(rows_of(std::as_const(x)), 2, gamma.data(), 1e-6F, rows_of(rms));
    machine().l2_norm(rows_of(std::as_const(x)), n, 1e-6F, 0.125F, rows_of(unit));
    for (std::size_t i = 0; i < 2 * n; ++i) {
      const float* group = x.data() + i / n * n;
      const float squares = dot_by_lanes(group, group, n);
      const float mean = squares / static_cast<float>(n);
      EXPECT_EQ(bits(rms.data()[i]), bits((x.data()[i] * (1.0F / std::sqrt(mean + 1e-6F))) * gamma.data()[i]));
      EXPECT_EQ(bits(unit.data()[i]), bits((x.data()[i] * (1.0F / std::sqrt(squares + 1e-6F))) * 0.125F));
    }
  }
}

// Segments of 32 along the key axis; decay before prediction, prediction before the write, the write before the output.
TEST_P(Orders, DeltaRule) {
  Random random(65);
  for (const std::size_t dim : {16U, 32U, 40U, 64U, 96U, 128U}) {
    constexpr std::size_t kHeads = 3, kKeyHeads = 2, kRows = 2;
    Floats state(kHeads * dim, dim), q(kRows, kKeyHeads * dim), k(kRows, kKeyHeads * dim), v(kRows, kHeads * dim);
    Floats decay(kRows, kHeads), beta(kRows, kHeads), out(kRows, kHeads * dim);
    for (Floats* array : {&state, &q, &k, &v}) array->fill([&] { return 0.3F * draw(random, Values::kNormal); });
    for (Floats* array : {&decay, &beta}) array->fill([&] { return random.uniform(0.0F, 1.0F); });
    std::vector<float> s(state.data(), state.data() + kHeads * dim * dim);
    GdnScan scan{kKeyHeads,
                 kHeads,
                 dim,
                 state.data(),
                 {},
                 {},
                 {},
                 rows_of(std::as_const(q)),
                 rows_of(std::as_const(k)),
                 rows_of(std::as_const(v)),
                 rows_of(std::as_const(decay)),
                 rows_of(std::as_const(beta)),
                 rows_of(out),
                 {}};
    machine().gdn_scan(scan);
    for (std::size_t h = 0; h < kHeads; ++h) {
      float* cells = s.data() + h * dim * dim;
      for (std::size_t t = 0; t < kRows; ++t) {
        const float* key = k.row(t) + h % kKeyHeads * dim;
        const float* query = q.row(t) + h % kKeyHeads * dim;
        const auto read = [&](const float* x, std::size_t j) {
          return segmented(dim, 32, [&](std::size_t i, float acc) { return std::fma(cells[i * dim + j], x[i], acc); });
        };
        for (std::size_t i = 0; i < dim * dim; ++i) cells[i] = decay.row(t)[h] * cells[i];
        std::vector<float> u(dim);
        for (std::size_t j = 0; j < dim; ++j) u[j] = beta.row(t)[h] * (v.row(t)[h * dim + j] - read(key, j));
        for (std::size_t i = 0; i < dim * dim; ++i) cells[i] = std::fma(key[i / dim], u[i % dim], cells[i]);
        for (std::size_t j = 0; j < dim; ++j)
          ASSERT_EQ(bits(out.row(t)[h * dim + j]), bits(read(query, j))) << "dim " << dim << ", row " << t;
      }
    }
    EXPECT_EQ(std::memcmp(s.data(), state.data(), s.size() * sizeof(float)), 0) << "dim " << dim;
  }
}

// Segments of 64 list entries for both sums; the gate after the division.
TEST_P(Orders, Attention) {
  Random random(66);
  for (const std::size_t n : {1U, 63U, 64U, 65U, 128U, 130U, 200U}) {
    constexpr std::size_t kDim = 24, kHeads = 4, kKvHeads = 2;
    Floats q(1, kHeads * kDim), gate(1, kHeads * 30), out(1, kHeads * kDim);
    Floats keys(2 * n, kKvHeads * kDim), values(2 * n, kKvHeads * kDim);
    for (Floats* array : {&q, &gate, &keys, &values}) array->fill([&] { return draw(random, Values::kNormal); });
    std::vector<std::int32_t> positions(n), count = {static_cast<std::int32_t>(n)};
    for (std::size_t i = 0; i < n; ++i) positions[i] = static_cast<std::int32_t>(2 * i + random.below(2));
    const KvView kv{KvType::kF32, keys.data(), values.data(), kKvHeads, kDim, 2 * n};
    machine().attention(rows_of(std::as_const(q)), kv, {positions.data(), count.data(), 1, n}, 0.3F,
                        rows_of(std::as_const(gate)), 30, rows_of(out));
    for (std::size_t h = 0; h < kHeads; ++h) {
      const std::size_t at = h / 2 * kDim;
      std::vector<float> e(n);
      float top = -HUGE_VALF;
      for (std::size_t i = 0; i < n; ++i) {
        const float* key = keys.row(static_cast<std::size_t>(positions[i])) + at;
        e[i] = dot_by_lanes(q.data() + h * kDim, key, kDim) * 0.3F;
        top = std::fmax(top, e[i]);
      }
      for (float& x : e) x = exp_c(x - top);
      const float total = segmented(n, 64, [&](std::size_t i, float acc) { return acc + e[i]; });
      for (std::size_t j = 0; j < kDim; ++j) {
        const float sum = segmented(n, 64, [&](std::size_t i, float acc) {
          return std::fma(e[i], values.row(static_cast<std::size_t>(positions[i]))[at + j], acc);
        });
        const float expected = (sum / total) * (1.0F / (1.0F + exp_c(-gate.data()[h * 30 + j])));
        ASSERT_EQ(bits(out.data()[h * kDim + j]), bits(expected)) << n << " positions, head " << h;
      }
    }
  }
}

// Rank order from 0, then the shared expert; taps from the oldest; streams in order. All by fused steps.
TEST_P(Orders, FusedChains) {
  Random random(67);
  constexpr std::size_t kWidth = 16, kUsed = 5, kStreams = 4;
  Floats y(kUsed, kWidth), shared(1, kWidth), logit(1, 1), weight(1, kUsed), out(1, kWidth);
  Floats normed(1, kStreams * kWidth), gate(1, kStreams * kWidth), mixed(1, kWidth);
  Floats history(6, kWidth), x(1, kWidth), taps(3, kWidth), conv(1, kWidth);
  for (Floats* array : {&y, &shared, &logit, &weight, &normed, &gate, &history, &x, &taps})
    array->fill([&] { return draw(random, Values::kNormal); });
  std::vector<std::int32_t> experts(kUsed);
  machine().combine({experts.data(), weight.data(), 1, kUsed}, rows_of(std::as_const(y)), rows_of(std::as_const(logit)),
                    rows_of(std::as_const(shared)), rows_of(out));
  machine().hc_mix(rows_of(std::as_const(normed)), rows_of(std::as_const(gate)), kStreams, rows_of(mixed));
  machine().causal_conv(rows_of(std::as_const(history)), rows_of(std::as_const(x)), rows_of(std::as_const(taps)), 3,
                        rows_of(conv));
  const auto sigmoid = [](float v) { return 1.0F / (1.0F + exp_c(-v)); };
  for (std::size_t j = 0; j < kWidth; ++j) {
    float sum = 0.0F;
    for (std::size_t k = 0; k < kUsed; ++k) sum = std::fma(weight.data()[k], y.row(k)[j], sum);
    EXPECT_EQ(bits(out.data()[j]), bits(std::fma(sigmoid(logit.data()[0]), shared.data()[j], sum)));
    sum = 0.0F;
    for (std::size_t s = j; s < kStreams * kWidth; s += kWidth)
      sum = std::fma(sigmoid(gate.data()[s]), normed.data()[s], sum);
    EXPECT_EQ(bits(mixed.data()[j]), bits(sum / 4.0F));
    sum = std::fma(taps.row(0)[j], history.row(0)[j], 0.0F);
    sum = std::fma(taps.row(1)[j], history.row(3)[j], sum);
    sum = std::fma(taps.row(2)[j], x.row(0)[j], sum);
    EXPECT_EQ(bits(conv.data()[j]), bits(sum / (1.0F + exp_c(-sum))));
  }
}

// exp(logit - largest) over their sum in rank order; enough rows for another order to show.
TEST_P(Orders, RouterWeights) {
  Random random(68);
  constexpr std::size_t kRows = 40, kUsed = 10;
  Floats logits(kRows, 64), weights(kRows, kUsed);
  logits.fill([&] { return 2.0F * draw(random, Values::kNormal); });
  Guarded<std::int32_t> experts(kRows, kUsed);
  ASSERT_EQ(machine().route(rows_of(std::as_const(logits)), {experts.data(), weights.data(), kRows, kUsed}), -1);
  for (std::size_t r = 0; r < kRows; ++r) {
    const auto logit = [&](std::size_t rank) { return logits.row(r)[experts.row(r)[rank]]; };
    std::vector<float> e(kUsed);
    float total = 0.0F;
    for (std::size_t k = 0; k < kUsed; ++k) {
      e[k] = exp_c(logit(k) - logit(0));
      total += e[k];
    }
    for (std::size_t k = 0; k < kUsed; ++k) EXPECT_EQ(bits(weights.row(r)[k]), bits(e[k] / total)) << r << ", " << k;
  }
}

}  // namespace
}  // namespace tandem::testing
