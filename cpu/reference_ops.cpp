#include "cpu/reference_ops.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/reference_dot.h"
#include "runtime/exact_math.h"

namespace tandem {

std::unique_ptr<Ops> make_reference_ops() {
  return std::make_unique<ReferenceOps>();
}

// ---- products -------------------------------------------------------------------------------------------------------

std::int64_t ReferenceOps::quantize(ConstRows x, QuantRows q) {
  CHECK(x.cols % 32 == 0 && q.rows == x.rows && q.cols == x.cols, "{} columns into {} x {}", x.cols, q.rows, q.cols);
  for (std::size_t r = 0; r < x.rows; ++r)
    if (!quantize_row_ref(x.row(r), x.cols, q.q + r * x.cols, q.d + r * (x.cols / 32), q.s + r * (x.cols / 16)))
      return static_cast<std::int64_t>(r);
  return -1;
}

void ReferenceOps::matmul(const WeightView& w, const Activation& a, Rows y) {
  const bool block = dtype_info(w.type).kind == DTypeKind::kBlock;
  CHECK(y.cols == w.rows && y.rows == a.x.rows && w.cols == a.x.cols && (!block || a.q.cols == w.cols),
        "{}: [{}, {}] times [{}, {}] into [{}, {}]", w.name, w.rows, w.cols, a.x.rows, a.x.cols, y.rows, y.cols);
  std::vector<float> weights(block ? 0 : w.cols);
  for (std::size_t n = 0; n < w.rows; ++n) {
    if (!block) dequantize_row(w.type, w.row(n), w.cols, weights.data());
    for (std::size_t r = 0; r < y.rows; ++r) {
      const float dot = block ? dot_block_ref(w.type, w.row(n), w.cols, a.q.q_row(r), a.q.d_row(r), a.q.s_row(r))
                              : dot_float_ref(weights.data(), a.x.row(r), w.cols);
      y.row(r)[n] = dot * w.scale;
    }
  }
}

// ---- norms ----------------------------------------------------------------------------------------------------------

namespace {
// 1 / sqrt(sum x^2 / n + eps), or without the division by n.
float inverse_rms(const float* x, std::size_t n, float eps) {
  return 1.0F / std::sqrt(dot_float_ref(x, x, n) / static_cast<float>(n) + eps);
}
}  // namespace

void ReferenceOps::rms_norm(ConstRows x, std::size_t groups, const float* gamma, float eps, Rows y) {
  const std::size_t n = x.cols / groups;
  CHECK(n * groups == x.cols && y.cols == x.cols && y.rows == x.rows);
  for (std::size_t r = 0; r < x.rows; ++r)
    for (std::size_t g = 0; g < groups; ++g) {
      const float inverse = inverse_rms(x.row(r) + g * n, n, eps);
      for (std::size_t j = g * n; j < (g + 1) * n; ++j) y.row(r)[j] = (x.row(r)[j] * inverse) * gamma[j];
    }
}

void ReferenceOps::l2_norm(ConstRows x, std::size_t dim, float eps, float scale, Rows y) {
  CHECK(x.cols % dim == 0 && y.cols == x.cols && y.rows == x.rows);
  for (std::size_t r = 0; r < x.rows; ++r)
    for (std::size_t h = 0; h < x.cols; h += dim) {
      const float* in = x.row(r) + h;
      const float inverse = 1.0F / std::sqrt(dot_float_ref(in, in, dim) + eps);
      for (std::size_t j = 0; j < dim; ++j) y.row(r)[h + j] = (in[j] * inverse) * scale;
    }
}

void ReferenceOps::norm_rope(ConstRows x, std::size_t heads, std::size_t dim, std::size_t head_stride,
                             const float* gamma, float eps, const RopeView& rope, Rows y) {
  const std::size_t half = rope.cos.cols;
  CHECK(y.cols == heads * dim && 2 * half <= dim && x.cols >= (heads - 1) * head_stride + dim);
  for (std::size_t r = 0; r < x.rows; ++r)
    for (std::size_t h = 0; h < heads; ++h) {
      const float* in = x.row(r) + h * head_stride;
      float* out = y.row(r) + h * dim;
      const float inverse = inverse_rms(in, dim, eps);
      for (std::size_t j = 0; j < dim; ++j) out[j] = (in[j] * inverse) * gamma[j];
      for (std::size_t i = 0; i < half; ++i) {
        const float a = out[i], b = out[i + half], c = rope.cos.row(r)[i], s = rope.sin.row(r)[i];
        out[i] = std::fma(-b, s, a * c);
        out[i + half] = std::fma(a, s, b * c);
      }
    }
}

// ---- hyper-connections
// ------------------------------------------------------------------------------------------------

void ReferenceOps::hc_low(Rows lo, int streams) {
  const auto divisor = static_cast<float>(streams);
  for (std::size_t r = 0; r < lo.rows; ++r)
    for (float& v : lo.span(r)) v = silu_c(v / divisor);
}

void ReferenceOps::hc_mix(ConstRows normed, ConstRows gate, int streams, Rows mixed) {
  const std::size_t d = mixed.cols, count = static_cast<std::size_t>(streams);
  CHECK(normed.cols == d * count && gate.cols == normed.cols);
  for (std::size_t r = 0; r < mixed.rows; ++r)
    for (std::size_t j = 0; j < d; ++j) {
      float sum = 0.0F;
      for (std::size_t s = 0; s < count; ++s)
        sum = std::fma(sigmoid_c(gate.row(r)[s * d + j]), normed.row(r)[s * d + j], sum);
      mixed.row(r)[j] = sum / static_cast<float>(streams);
    }
}

void ReferenceOps::hc_write(Rows x, ConstRows y, ConstRows inject, int streams) {
  const std::size_t d = y.cols, count = static_cast<std::size_t>(streams);
  CHECK(x.cols == d * count && inject.cols == count);
  for (std::size_t r = 0; r < x.rows; ++r)
    for (std::size_t s = 0; s < count; ++s) {
      const float weight = 2.0F * sigmoid_c(inject.row(r)[s] / static_cast<float>(streams));
      float* stream = x.row(r) + s * d;
      for (std::size_t j = 0; j < d; ++j) stream[j] = std::fma(weight, y.row(r)[j], stream[j]);
    }
}

// ---- convolution, GDN
// -------------------------------------------------------------------------------------------------

void ReferenceOps::causal_conv(ConstRows history, ConstRows x, ConstRows weights, std::size_t dilation, Rows y) {
  const std::size_t taps = weights.rows;
  CHECK(history.rows == (taps - 1) * dilation && x.cols == weights.cols && y.cols == x.cols);
  const auto input = [&](std::size_t t) { return t < history.rows ? history.row(t) : x.row(t - history.rows); };
  for (std::size_t t = 0; t < x.rows; ++t)
    for (std::size_t c = 0; c < x.cols; ++c) {
      float sum = 0.0F;
      for (std::size_t k = 0; k < taps; ++k) sum = std::fma(weights.row(k)[c], input(t + k * dilation)[c], sum);
      y.row(t)[c] = silu_c(sum);
    }
}

void ReferenceOps::gdn_gates(Rows alpha, Rows beta, const float* dt_bias, const float* a) {
  for (std::size_t r = 0; r < alpha.rows; ++r)
    for (std::size_t h = 0; h < alpha.cols; ++h) {
      float& decay = alpha.row(r)[h];
      decay = exp_c(a[h] * softplus_c(decay + dt_bias[h]));
      beta.row(r)[h] = sigmoid_c(beta.row(r)[h]);
    }
}

namespace {
// sum_i S[i,j] x[i]: fma in ascending order inside segments of 32, tree over segments.
float column_dot(const float* state, const float* x, std::size_t dim, std::size_t j) {
  float segments[64];
  const std::size_t count = (dim + 31) / 32;
  CHECK(count <= 32, "head dim {}", dim);
  for (std::size_t s = 0; s < count; ++s) {
    segments[s] = 0.0F;
    for (std::size_t i = s * 32; i < std::min(dim, s * 32 + 32); ++i)
      segments[s] = std::fma(state[i * dim + j], x[i], segments[s]);
  }
  return tree_sum(segments, count);
}

void delta_write(float* state, const float* k, const float* u, std::size_t dim) {
  for (std::size_t i = 0; i < dim; ++i)
    for (std::size_t j = 0; j < dim; ++j) state[i * dim + j] = std::fma(k[i], u[j], state[i * dim + j]);
}
}  // namespace

void ReferenceOps::gdn_scan(const GdnScan& scan) {
  const std::size_t dim = scan.dim, cells = dim * dim;
  std::vector<float> work(cells), u(dim);
  for (std::size_t h = 0; h < scan.value_heads; ++h) {
    const std::size_t kh = h % scan.key_heads;
    float* kept = scan.state + h * cells;
    for (std::size_t t = 0; t < scan.replay_k.rows; ++t) {
      for (std::size_t i = 0; i < cells; ++i) kept[i] = scan.replay_decay.row(t)[h] * kept[i];
      delta_write(kept, scan.replay_k.row(t) + kh * dim, scan.replay_u.row(t) + h * dim, dim);
    }
    std::copy_n(kept, cells, work.data());
    for (std::size_t t = 0; t < scan.q.rows; ++t) {
      const float* q = scan.q.row(t) + kh * dim;
      const float* k = scan.k.row(t) + kh * dim;
      const float* v = scan.v.row(t) + h * dim;
      for (float& cell : work) cell = scan.decay.row(t)[h] * cell;
      for (std::size_t j = 0; j < dim; ++j) u[j] = scan.beta.row(t)[h] * (v[j] - column_dot(work.data(), k, dim, j));
      delta_write(work.data(), k, u.data(), dim);
      for (std::size_t j = 0; j < dim; ++j) scan.out.row(t)[h * dim + j] = column_dot(work.data(), q, dim, j);
      if (scan.log_u) std::copy(u.begin(), u.end(), scan.log_u.row(t) + h * dim);
    }
    if (!scan.log_u) std::copy_n(work.data(), cells, kept);
  }
}

void ReferenceOps::gdn_output(ConstRows o, ConstRows z, const float* norm, std::size_t dim, float eps, Rows r) {
  for (std::size_t t = 0; t < o.rows; ++t)
    for (std::size_t h = 0; h < o.cols; h += dim) {
      const float inverse = inverse_rms(o.row(t) + h, dim, eps);
      for (std::size_t j = 0; j < dim; ++j)
        r.row(t)[h + j] = ((o.row(t)[h + j] * inverse) * norm[j]) * sigmoid_c(z.row(t)[h + j]);
    }
}

// ---- n-gram embedding and sums
// ------------------------------------------------------------------------------------------

void ReferenceOps::ple_gate(ConstRows key, ConstRows query, ConstRows value, int streams, Rows gv) {
  const std::size_t d = value.cols;
  const float root = std::sqrt(static_cast<float>(d));
  for (std::size_t r = 0; r < value.rows; ++r)
    for (std::size_t c = 0; c < static_cast<std::size_t>(streams); ++c) {
      const float s = dot_float_ref(key.row(r) + c * d, query.row(r) + c * d, d) / root;
      const float magnitude = std::sqrt(std::max(std::fabs(s), 1e-6F));
      const float gate = sigmoid_c(s > 0.0F ? magnitude : s < 0.0F ? -magnitude : 0.0F);
      for (std::size_t j = 0; j < d; ++j) gv.row(r)[c * d + j] = gate * value.row(r)[j];
    }
}

void ReferenceOps::add2(Rows x, ConstRows a, ConstRows b) {
  for (std::size_t r = 0; r < x.rows; ++r)
    for (std::size_t j = 0; j < x.cols; ++j) x.row(r)[j] = (x.row(r)[j] + a.row(r)[j]) + b.row(r)[j];
}

void ReferenceOps::softmax_sum(ConstRows logits, float temperature, Chosen* chosen) {
  const float scale = softmax_scale(temperature);
  const std::vector<float> ones(logits.cols, 1.0F);
  std::vector<float> e(logits.cols);
  for (std::size_t r = 0; r < logits.rows; ++r) {
    const std::span<const float> row = logits.span(r);
    const float top = *std::max_element(row.begin(), row.end()) + 0.0F;
    std::transform(row.begin(), row.end(), e.begin(), [&](float logit) { return exp_c((logit - top) * scale); });
    chosen[r].top = top;
    chosen[r].sum = dot_float_ref(e.data(), ones.data(), e.size());
  }
}

void ReferenceOps::tile_streams(ConstRows a, int streams, Rows x) {
  CHECK(x.cols == a.cols * static_cast<std::size_t>(streams));
  for (std::size_t r = 0; r < x.rows; ++r)
    for (std::size_t j = 0; j < x.cols; ++j) x.row(r)[j] = a.row(r)[j % a.cols];
}

void ReferenceOps::add_streams(Rows x, ConstRows a, int streams) {
  CHECK(x.cols == a.cols * static_cast<std::size_t>(streams));
  for (std::size_t r = 0; r < x.rows; ++r)
    for (std::size_t j = 0; j < x.cols; ++j) x.row(r)[j] = x.row(r)[j] + a.row(r)[j % a.cols];
}

void ReferenceOps::pair_streams(ConstRows a, ConstRows h, int streams, Rows out) {
  const auto count = static_cast<std::size_t>(streams);
  const std::size_t d = a.cols;
  CHECK(h.cols == d * count && out.cols == 2 * d && out.rows == a.rows * count);
  for (std::size_t i = 0; i < out.rows; ++i) {
    std::copy_n(a.row(i / count), d, out.row(i));
    std::copy_n(h.row(i / count) + i % count * d, d, out.row(i) + d);
  }
}

}  // namespace tandem
