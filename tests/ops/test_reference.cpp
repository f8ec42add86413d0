// ReferenceOps against double precision (tests/ops/oracle.h): every element within the rounding that its own operands
// justify. The other machines have the reference's bits, so this holds for them too.
#include <gtest/gtest.h>

#include <cmath>

#include "cpu/reference_ops.h"
#include "tests/ops/cases.h"
#include "tests/ops/guarded.h"
#include "tests/ops/oracle.h"

namespace tandem::testing {
namespace {

constexpr float kEps = 1e-6F;
constexpr std::size_t kStreams = 4;

class Reference : public ::testing::Test {
 protected:
  // Filled floats; `scale` multiplies what `values` draws.
  Floats make(std::size_t rows, std::size_t cols, Values values = Values::kNormal, float scale = 1.0F) {
    Floats array(rows, cols);
    array.fill([&] { return scale * draw(random_, values); });
    return array;
  }
  ReferenceOps ops_;
  Random random_{71};
};

ConstRows view(const Floats& array) {
  return rows_of(array);
}
std::span<const float> row(const Floats& array, std::size_t r = 0) {
  return {array.row(r), array.cols()};
}

void expect_within(std::span<const float> got, const oracle::Values& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(std::isfinite(expected[i].value) && std::isfinite(expected[i].error)) << what << ": no bound";
    ASSERT_LE(std::fabs(static_cast<double>(got[i]) - expected[i].value), expected[i].error)
        << what << ", element " << i << ": " << got[i] << " for " << expected[i].value;
  }
}

// Powers of ten by which inputs are scaled: the formulas hold at every magnitude.
constexpr float kMagnitudes[] = {1.0F, 1e-3F, 1e3F, 1e-12F, 1e12F};

// ---- products -------------------------------------------------------------------------------------------------------

// |x - d q| is at most half a step, plus the rounding of x * (127 / amax) and of amax / 127; s sums the codes.
TEST_F(Reference, Quantize) {
  for (const Values values : kAllValues) {
    const Floats x = make(8, 320, values);
    OwnedQuant q(8, 320);
    ASSERT_EQ(ops_.quantize(view(x), q.rows()), -1);
    for (std::size_t r = 0; r < 8; ++r)
      for (std::size_t b = 0; b < 10; ++b) {
        double amax = 0;
        std::int32_t largest = 0, sums[2] = {0, 0};
        const auto d = static_cast<double>(q.d.row(r)[b]);
        for (std::size_t i = 32 * b; i < 32 * (b + 1); ++i)
          amax = std::max(amax, std::fabs(static_cast<double>(x.row(r)[i])));
        const bool vanishes = amax < 3.74e-37;  // 127 / amax overflows
        for (std::size_t i = 32 * b; i < 32 * (b + 1); ++i) {
          const std::int32_t code = q.q.row(r)[i];
          const double half_step = vanishes ? amax : d / 2 + 4 * oracle::kUnit * amax + 256 * oracle::kTiny;
          ASSERT_LE(std::fabs(static_cast<double>(x.row(r)[i]) - d * code), half_step) << values_name(values);
          sums[i / 16 % 2] += code;
          largest = std::max(largest, std::abs(code));
        }
        ASSERT_EQ(largest, vanishes ? 0 : 127);
        ASSERT_EQ(sums[0], q.s.row(r)[2 * b]);
        ASSERT_EQ(sums[1], q.s.row(r)[2 * b + 1]);
      }
  }
}

TEST_F(Reference, BlockMatmul) {
  for (const DType type : types_of_kind(DTypeKind::kBlock))
    for (const std::size_t cols : kBlockLengths) {
      if (cols % dtype_info(type).block_elems != 0) continue;
      for (const Values values : {Values::kNormal, Values::kSigns, Values::kTiny, Values::kLarge}) {
        const Scales scales = values == Values::kNormal ? Scales::kNormal : Scales::kModerate;
        Weights w = block_weights(type, 3, cols, scales, random_, 1);
        w.view.scale = 1.25F;
        const Floats x = make(2, cols, values);
        OwnedQuant q(2, cols);
        Floats y(2, 3);
        ASSERT_EQ(ops_.quantize(view(x), q.rows()), -1);
        ops_.matmul(w.view, {view(x), q.rows()}, rows_of(y));
        for (std::size_t r = 0; r < 2; ++r) {
          oracle::Values expected;
          for (std::size_t n = 0; n < 3; ++n) expected.push_back(oracle::block_product(w.view, n, q.rows(), r));
          expect_within(row(y, r), expected, fmt::format("{} [{}]", dtype_name(type), cols));
        }
      }
    }
}

TEST_F(Reference, FloatMatmul) {
  for (const DType type : {DType::F32, DType::F16, DType::BF16})
    for (const std::size_t cols : kFloatLengths)
      for (const Values values : kAllValues) {
        Weights w = float_weights(type, 3, cols, values, random_, 1);
        w.view.scale = 0.75F;
        const Floats x = make(1, cols, values);
        Floats y(1, 3);
        ops_.matmul(w.view, {view(x), {}}, rows_of(y));
        oracle::Values expected;
        for (std::size_t n = 0; n < 3; ++n) expected.push_back(oracle::float_product(w.view, n, row(x)));
        expect_within(row(y), expected, fmt::format("{} [{}], {}", dtype_name(type), cols, values_name(values)));
      }
}

// ---- norms ----------------------------------------------------------------------------------------------------------

TEST_F(Reference, Norms) {
  for (const std::size_t n : {1U, 24U, 33U, 128U, 320U, 2560U})
    for (const float scale : kMagnitudes) {
      const Floats x = make(1, 2 * n, Values::kNormal, scale), gamma = make(1, 2 * n);
      Floats rms(1, 2 * n), unit(1, 2 * n);
      ops_.rms_norm(view(x), 2, gamma.data(), kEps, rows_of(rms));
      ops_.l2_norm(view(x), n, kEps, 0.3F, rows_of(unit));
      const std::string what = fmt::format("{} values of {}", n, scale);
      expect_within(row(rms), oracle::rms_norm(oracle::exact(row(x)), 2, row(gamma), kEps), "rms_norm, " + what);
      expect_within(row(unit), oracle::l2_norm(oracle::exact(row(x)), n, kEps, 0.3F), "l2_norm, " + what);
    }
}

TEST_F(Reference, NormRope) {
  constexpr std::size_t kHeads = 3, kDim = 64, kStride = 80, kHalf = 16;
  for (const float scale : kMagnitudes) {
    const Floats x = make(2, kHeads * kStride, Values::kNormal, scale), gamma = make(1, kDim);
    const Floats cos = make(2, kHalf), sin = make(2, kHalf);
    Floats y(2, kHeads * kDim);
    ops_.norm_rope(view(x), kHeads, kDim, kStride, gamma.data(), kEps, {view(cos), view(sin)}, rows_of(y));
    for (std::size_t r = 0; r < 2; ++r)
      for (std::size_t h = 0; h < kHeads; ++h) {
        const oracle::Values head = oracle::exact(row(x, r).subspan(h * kStride, kDim));
        const oracle::Values normed = oracle::rms_norm(head, 1, row(gamma), kEps);
        expect_within(row(y, r).subspan(h * kDim, kDim), oracle::rotate(normed, row(cos, r), row(sin, r)), "norm_rope");
      }
  }
}

// ---- hyper-connections
// ------------------------------------------------------------------------------------------------

TEST_F(Reference, HyperConnections) {
  constexpr std::size_t kD = 40;
  for (const float scale : kMagnitudes) {
    const Floats wide = make(2, kStreams * kD, Values::kNormal, scale), gate = make(2, kStreams * kD);
    const Floats y = make(2, kD, Values::kNormal, scale), inject = make(2, kStreams);
    Floats low = wide, mixed(2, kD), x = wide;
    ops_.hc_low(rows_of(low), 4);
    ops_.hc_mix(view(wide), view(gate), 4, rows_of(mixed));
    ops_.hc_write(rows_of(x), view(y), view(inject), 4);
    for (std::size_t r = 0; r < 2; ++r) {
      oracle::Values expected;
      for (const float v : row(wide, r)) expected.push_back(oracle::silu(oracle::exact(v) / oracle::exact(4.0F)));
      expect_within(row(low, r), expected, "hc_low");
      expect_within(row(mixed, r), oracle::hc_mix(row(wide, r), row(gate, r), kStreams), "hc_mix");
      expect_within(row(x, r), oracle::hc_write(row(wide, r), row(y, r), row(inject, r)), "hc_write");
    }
  }
}

// ---- convolution, GDN
// -------------------------------------------------------------------------------------------------

// y[t] = silu(sum_k W[k] * z[t - (taps - 1 - k) * dilation]), z the window behind its history.
TEST_F(Reference, CausalConv) {
  constexpr std::size_t kChannels = 24, kTaps = 4, kRows = 7;
  for (const std::size_t dilation : {1U, 3U})
    for (const float scale : kMagnitudes) {
      const std::size_t before = (kTaps - 1) * dilation;
      const Floats history = make(before, kChannels, Values::kNormal, scale);
      const Floats x = make(kRows, kChannels, Values::kNormal, scale), taps = make(kTaps, kChannels);
      Floats y(kRows, kChannels);
      ops_.causal_conv(view(history), view(x), view(taps), dilation, rows_of(y));
      for (std::size_t t = 0; t < kRows; ++t) {
        oracle::Values expected;
        for (std::size_t c = 0; c < kChannels; ++c) {
          oracle::Values inputs, weights;
          for (std::size_t k = 0; k < kTaps; ++k) {
            const std::size_t back = (kTaps - 1 - k) * dilation;
            inputs.push_back(oracle::exact(back <= t ? x.row(t - back)[c] : history.row(before + t - back)[c]));
            weights.push_back(oracle::exact(taps.row(k)[c]));
          }
          expected.push_back(oracle::silu(oracle::dot(inputs, weights, kTaps)));
        }
        expect_within(row(y, t), expected, fmt::format("dilation {}, row {}", dilation, t));
      }
    }
}

TEST_F(Reference, GdnGates) {
  constexpr std::size_t kHeads = 48;
  for (const float scale : {1.0F, 1e-3F, 10.0F, 100.0F}) {
    const Floats alpha = make(2, kHeads, Values::kNormal, scale), logit = make(2, kHeads, Values::kNormal, scale);
    const Floats bias = make(1, kHeads);
    Floats a(1, kHeads), decay = alpha, beta = logit;
    a.fill([&] { return -random_.uniform(0.0F, 4.0F); });
    ops_.gdn_gates(rows_of(decay), rows_of(beta), bias.data(), a.data());
    for (std::size_t r = 0; r < 2; ++r) {
      oracle::Values decays, betas;
      for (std::size_t h = 0; h < kHeads; ++h) {
        const oracle::Approx shifted = oracle::exact(alpha.row(r)[h]) + oracle::exact(bias.data()[h]);
        decays.push_back(oracle::exp(oracle::exact(a.data()[h]) * oracle::softplus(shifted)));
        betas.push_back(oracle::sigmoid(oracle::exact(logit.row(r)[h])));
      }
      expect_within(row(decay, r), decays, "decay");
      expect_within(row(beta, r), betas, "beta");
    }
  }
}

// Some rows replayed, some new; value head h reads key head h mod key_heads.
TEST_F(Reference, GdnScan) {
  constexpr std::size_t kKeyHeads = 2, kHeads = 6, kReplay = 2, kRows = 3;
  for (const std::size_t dim : {12U, 16U, 64U}) {
    Floats state = make(kHeads * dim, dim);
    const Floats start = state, replay_k = make(kReplay, kKeyHeads * dim, Values::kNormal, 0.2F);
    const Floats replay_u = make(kReplay, kHeads * dim), v = make(kRows, kHeads * dim);
    const Floats q = make(kRows, kKeyHeads * dim, Values::kNormal, 0.2F);
    const Floats k = make(kRows, kKeyHeads * dim, Values::kNormal, 0.2F);
    Floats replay_decay(kReplay, kHeads), decay(kRows, kHeads), beta(kRows, kHeads), out(kRows, kHeads * dim);
    for (Floats* gate : {&replay_decay, &decay, &beta}) gate->fill([&] { return random_.uniform(0.0F, 1.0F); });
    Floats log(kRows, kHeads * dim);
    GdnScan scan{kKeyHeads, kHeads,  dim,     state.data(), view(replay_k), view(replay_u), view(replay_decay),
                 view(q),   view(k), view(v), view(decay),  view(beta),     rows_of(out),   rows_of(log)};
    ops_.gdn_scan(scan);
    for (std::size_t h = 0; h < kHeads; ++h) {
      const std::size_t key = h % kKeyHeads * dim, at = h * dim;
      oracle::Values s = oracle::exact({start.row(at), dim * dim}), u;
      for (std::size_t t = 0; t < kReplay; ++t)
        for (std::size_t i = 0; i < dim; ++i)
          for (std::size_t j = 0; j < dim; ++j) {
            oracle::Approx& cell = s[i * dim + j];
            cell = oracle::fma(oracle::exact(replay_k.row(t)[key + i]), oracle::exact(replay_u.row(t)[at + j]),
                               oracle::exact(replay_decay.row(t)[h]) * cell);
          }
      expect_within({state.row(at), dim * dim}, s, "state after the replay");
      for (std::size_t t = 0; t < kRows; ++t) {
        const auto part = [&](const Floats& x, std::size_t offset) { return row(x, t).subspan(offset, dim); };
        const oracle::Values o =
            oracle::delta_step(s, part(q, key), part(k, key), part(v, at), decay.row(t)[h], beta.row(t)[h], u);
        const std::string what = fmt::format("dim {}, head {}, row {}", dim, h, t);
        expect_within(part(out, at), o, what + ", output");
        expect_within(part(log, at), u, what + ", u");
      }
    }
  }
}

TEST_F(Reference, GdnOutput) {
  constexpr std::size_t kHeads = 3, kDim = 32;
  for (const float scale : kMagnitudes) {
    const Floats o = make(2, kHeads * kDim, Values::kNormal, scale), z = make(2, kHeads * kDim), norm = make(1, kDim);
    Floats r(2, kHeads * kDim);
    ops_.gdn_output(view(o), view(z), norm.data(), kDim, kEps, rows_of(r));
    for (std::size_t t = 0; t < 2; ++t)
      for (std::size_t h = 0; h < kHeads * kDim; h += kDim) {
        oracle::Values head = oracle::rms_norm(oracle::exact(row(o, t).subspan(h, kDim)), 1, row(norm), kEps);
        for (std::size_t j = 0; j < kDim; ++j) head[j] = head[j] * oracle::sigmoid(oracle::exact(z.row(t)[h + j]));
        expect_within(row(r, t).subspan(h, kDim), head, "gdn_output");
      }
  }
}

// ---- attention ------------------------------------------------------------------------------------------------------

// The nearest half, ties to the even one; at 65520 and above infinity.
double nearest_half(double x) {
  const double magnitude = std::fabs(x);
  if (magnitude >= 65520) return std::copysign(HUGE_VAL, x);
  const double quantum = std::ldexp(1.0, std::max(magnitude > 0 ? std::ilogb(magnitude) : -14, -14) - 10);
  return std::copysign(std::nearbyint(magnitude / quantum) * quantum, x);
}

TEST_F(Reference, KvStore) {
  constexpr std::size_t kWidth = 24, kCapacity = 9, kPosition = 3, kRows = 4;
  for (const float scale : {1.0F, 1e-4F, 1e-6F, 1e-8F, 2e4F, 1e5F}) {
    const Floats k = make(kRows, kWidth, Values::kNormal, scale), v = make(kRows, kWidth, Values::kNormal, scale);
    Guarded<std::uint16_t> keys(kCapacity, kWidth), values(kCapacity, kWidth);
    keys.fill([] { return 1; });
    values.fill([] { return 2; });
    ops_.kv_store({KvType::kF16, keys.data(), values.data(), 2, kWidth / 2, kCapacity}, kPosition, view(k), view(v));
    for (std::size_t p = 0; p < kCapacity; ++p)
      for (std::size_t c = 0; c < kWidth; ++c) {
        const bool stored = p >= kPosition && p < kPosition + kRows;
        if (!stored) {
          ASSERT_EQ(keys.row(p)[c], 1);
          ASSERT_EQ(values.row(p)[c], 2);
          continue;
        }
        ASSERT_EQ(static_cast<double>(half_to_float(keys.row(p)[c])), nearest_half(k.row(p - kPosition)[c]));
        ASSERT_EQ(static_cast<double>(half_to_float(values.row(p)[c])), nearest_half(v.row(p - kPosition)[c]));
      }
  }
}

TEST_F(Reference, MeanPool) {
  for (const std::size_t ratio : {1U, 3U, 4U}) {
    const Floats x = make(3 * ratio, 16);
    Floats y(3, 16);
    ops_.mean_pool(view(x), ratio, rows_of(y));
    for (std::size_t b = 0; b < 3; ++b) {
      oracle::Values expected(16);
      for (std::size_t c = 0; c < 16; ++c) {
        for (std::size_t j = 0; j < ratio; ++j) expected[c] = expected[c] + oracle::exact(x.row(b * ratio + j)[c]);
        expected[c] = expected[c] / oracle::exact(static_cast<float>(ratio));
      }
      expect_within(row(y, b), expected, fmt::format("ratio {}", ratio));
    }
  }
}

TEST_F(Reference, Attention) {
  constexpr std::size_t kDim = 16, kHeads = 6, kKvHeads = 2, kGateStride = 2 * kDim;
  for (const KvType type : {KvType::kF32, KvType::kF16})
    for (const std::size_t n : {1U, 2U, 63U, 64U, 65U, 129U, 300U}) {
      const Floats q = make(1, kHeads * kDim), gate = make(1, kHeads * kGateStride);
      Floats k = make(2 * n, kKvHeads * kDim), v = make(2 * n, kKvHeads * kDim);
      Guarded<std::uint16_t> k16(2 * n, kKvHeads * kDim), v16(2 * n, kKvHeads * kDim);
      KvView kv{type, k.data(), v.data(), kKvHeads, kDim, 2 * n};
      if (type == KvType::kF16) {
        for (std::size_t i = 0; i < 2 * n * kKvHeads * kDim; ++i) {
          k16.data()[i] = float_to_half(k.data()[i]);
          v16.data()[i] = float_to_half(v.data()[i]);
          k.data()[i] = half_to_float(k16.data()[i]);
          v.data()[i] = half_to_float(v16.data()[i]);
        }
        kv.k = k16.data();
        kv.v = v16.data();
      }
      std::vector<std::int32_t> positions(n), count = {static_cast<std::int32_t>(n)};
      for (std::size_t i = 0; i < n; ++i) positions[i] = static_cast<std::int32_t>(2 * i + random_.below(2));
      Floats out(1, kHeads * kDim);
      ops_.attention(view(q), kv, {positions.data(), count.data(), 1, n}, 0.25F, view(gate), kGateStride, rows_of(out));
      for (std::size_t h = 0; h < kHeads; ++h) {
        std::vector<oracle::Values> keys, values;
        for (const std::int32_t p : positions) {
          const auto listed = [&](const Floats& cache) {
            return oracle::exact(row(cache, static_cast<std::size_t>(p)).subspan(h / 3 * kDim, kDim));
          };
          keys.push_back(listed(k));
          values.push_back(listed(v));
        }
        const auto expected = oracle::attention(row(q).subspan(h * kDim, kDim), keys, values, 0.25F,
                                                row(gate).subspan(h * kGateStride, kDim));
        expect_within(row(out).subspan(h * kDim, kDim), expected, fmt::format("{} positions, head {}", n, h));
      }
    }
}

// ---- experts, sums
// ----------------------------------------------------------------------------------------------------

TEST_F(Reference, Route) {
  for (const float scale : {0.1F, 1.0F, 20.0F}) {
    const Floats logits = make(1, 512, Values::kNormal, scale);
    Guarded<std::int32_t> experts(1, 10);
    Floats weights(1, 10);
    ASSERT_EQ(ops_.route(view(logits), {experts.data(), weights.data(), 1, 10}), -1);
    oracle::Values e;
    const auto logit = [&](std::size_t k) { return oracle::exact(logits.data()[experts.data()[k]]); };
    for (std::size_t k = 0; k < 10; ++k) e.push_back(oracle::exp(logit(k) - logit(0)));
    const oracle::Approx total = oracle::dot(e, oracle::Values(10, oracle::exact(1.0F)), 10);
    for (oracle::Approx& w : e) w = w / total;
    expect_within(row(weights), e, fmt::format("spread {}", scale));
  }
}

TEST_F(Reference, Ffn) {
  struct Shape {
    DType gate, down;
    std::size_t d, ff;
  };
  for (const Shape& s : {Shape{DType::F32, DType::F32, 40, 24}, Shape{DType::Q8_0, DType::Q8_0, 96, 64},
                         Shape{DType::Q4_K, DType::Q5_1, 256, 96}, Shape{DType::Q8_0, DType::F16, 64, 40}}) {
    const auto weights = [&](DType type, std::size_t rows, std::size_t cols) {
      const bool block = dtype_info(type).kind == DTypeKind::kBlock;
      return block ? block_weights(type, rows, cols, Scales::kNormal, random_)
                   : float_weights(type, rows, cols, Values::kNormal, random_);
    };
    const Weights gate = weights(s.gate, s.ff, s.d), up = weights(s.gate, s.ff, s.d), down = weights(s.down, s.d, s.ff);
    const ExpertWeights expert{gate.view, up.view, down.view};
    const Floats x = make(1, s.d);
    OwnedQuant q(1, s.d / 32 * 32);
    const bool block = dtype_info(s.gate).kind == DTypeKind::kBlock;
    if (block) {
      ASSERT_EQ(ops_.quantize(view(x), q.rows()), -1);
    }
    const Activation a{view(x), block ? q.rows() : QuantRows{}};
    Floats y(1, s.d);
    ops_.ffn(expert, a, rows_of(y));
    expect_within(row(y), oracle::ffn(expert, a), std::string(dtype_name(s.down)));
  }
}

TEST_F(Reference, Combine) {
  constexpr std::size_t kD = 40, kUsed = 10;
  const Floats shared = make(2, kD), logit = make(2, 1), weights = make(2, kUsed);
  Floats y = make(2 * kUsed, kD), w = weights, out(2, kD);
  std::vector<std::int32_t> experts(2 * kUsed);
  for (const std::size_t left_out : {std::size_t{3}, kUsed, 2 * kUsed - 1}) {  // their rows of y are not read
    experts[left_out] = -1;
    y.row(left_out)[1] = std::numeric_limits<float>::quiet_NaN();
  }
  ops_.combine({experts.data(), w.data(), 2, kUsed}, view(y), view(logit), view(shared), rows_of(out));
  for (std::size_t r = 0; r < 2; ++r) {
    oracle::Values expected(kD);
    for (std::size_t j = 0; j < kD; ++j) {
      for (std::size_t k = 0; k < kUsed; ++k)
        if (experts[r * kUsed + k] >= 0)
          expected[j] =
              oracle::fma(oracle::exact(weights.row(r)[k]), oracle::exact(y.row(r * kUsed + k)[j]), expected[j]);
      expected[j] =
          oracle::fma(oracle::sigmoid(oracle::exact(logit.row(r)[0])), oracle::exact(shared.row(r)[j]), expected[j]);
    }
    expect_within(row(out, r), expected, "combine");
  }
}

// sigma(sign(s) * sqrt(max(|s|, 1e-6))): small products take the floor, a zero one gives one half.
TEST_F(Reference, PleGate) {
  constexpr std::size_t kD = 48;
  for (const float scale : {1.0F, 0.1F, 1e-3F, 1e-5F, 1e-8F, 1e-20F, 0.0F}) {
    const Floats key = make(2, kStreams * kD, Values::kNormal, scale), query = make(2, kStreams * kD),
                 value = make(2, kD);
    Floats gv(2, kStreams * kD);
    ops_.ple_gate(view(key), view(query), view(value), 4, rows_of(gv));
    for (std::size_t r = 0; r < 2; ++r) {
      expect_within(row(gv, r), oracle::ple_gate(row(key, r), row(query, r), row(value, r), kStreams),
                    fmt::format("keys of {}", scale));
      for (std::size_t i = 0; scale == 0.0F && i < gv.cols(); ++i) ASSERT_EQ(gv.row(r)[i], 0.5F * value.row(r)[i % kD]);
    }
  }
}

TEST_F(Reference, Sums) {
  constexpr std::size_t kD = 24;
  const Floats x = make(2, kD), a = make(2, kD), b = make(2, kD), wide = make(2, kStreams * kD);
  Floats sum = x, tiled(2, kStreams * kD), streams = wide;
  ops_.add2(rows_of(sum), view(a), view(b));
  ops_.tile_streams(view(a), 4, rows_of(tiled));
  ops_.add_streams(rows_of(streams), view(a), 4);
  for (std::size_t r = 0; r < 2; ++r)
    for (std::size_t i = 0; i < kStreams * kD; ++i) {
      const float value = a.row(r)[i % kD];
      if (i < kD) {
        ASSERT_EQ(sum.row(r)[i], (x.row(r)[i] + value) + b.row(r)[i]);
      }
      ASSERT_EQ(tiled.row(r)[i], value);
      ASSERT_EQ(streams.row(r)[i], wide.row(r)[i] + value);
    }
}

}  // namespace
}  // namespace tandem::testing
