#include "tests/ops/oracle.h"

#include <algorithm>
#include <numeric>

namespace tandem::oracle {

// ---- arithmetic -----------------------------------------------------------------------------------------------------

double product_error(Approx a, Approx b) {
  return std::fabs(a.value) * b.error + std::fabs(b.value) * a.error + a.error * b.error;
}

Approx operator/(Approx a, Approx b) {
  const double value = a.value / b.value;
  return rounded(value, (a.error + std::fabs(value) * b.error) / (std::fabs(b.value) - b.error));
}

Approx fma(Approx a, Approx b, Approx c) {
  return rounded(a.value * b.value + c.value, product_error(a, b) + c.error);
}

Approx sqrt(Approx x) {
  const double value = std::sqrt(x.value);
  return rounded(value, value - std::sqrt(x.value - x.error));
}

Approx exp(Approx x) {
  const double value = std::exp(x.value);
  return {value, value * (std::expm1(x.error) + kExpError) * kSecondOrder + kExpFloor};
}

// The exponential's error reaches the quotient at most in full; then a sum and a division.
Approx sigmoid(Approx x) {
  const double value = 1.0 / (1.0 + std::exp(-x.value));
  return {value, value * (std::expm1(x.error) + kExpError + 2 * kUnit) * kSecondOrder + kSigmoidFloor};
}

// As sigmoid, with x in the numerator; the slope of silu is at most 1.1.
Approx silu(Approx x) {
  const double value = x.value / (1.0 + std::exp(-x.value));
  const double relative = (kExpError + 2 * kUnit) * kSecondOrder;
  return {value, std::fabs(value) * relative + 1.1 * x.error + std::fabs(x.value) * kSigmoidFloor + kTiny};
}

Approx softplus(Approx x) {
  const double value = std::max(x.value, 0.0) + std::log1p(std::exp(-std::fabs(x.value)));
  return {value, value * kSoftplusError * kSecondOrder + x.error + kExpFloor};
}

Approx dot(std::span<const Approx> a, std::span<const Approx> b, int depth) {
  double value = 0, inherited = 0, magnitude = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    value += a[i].value * b[i].value;
    inherited += product_error(a[i], b[i]);
    magnitude += (std::fabs(a[i].value) + a[i].error) * (std::fabs(b[i].value) + b[i].error);
  }
  const double rounding = depth * kUnit * magnitude * kSecondOrder + static_cast<double>(a.size()) * kTiny;
  return {value, inherited + rounding};
}

namespace {
int log2_ceil(std::size_t n) {
  int levels = 0;
  while ((std::size_t{1} << levels) < n) ++levels;
  return levels;
}
}  // namespace

int tree_depth(std::size_t n, std::size_t segment, int chain, std::size_t lanes) {
  return chain + log2_ceil((n + segment - 1) / segment) + log2_ceil(lanes);
}

int float_dot_depth(std::size_t n) {
  return tree_depth(n, 256, 8, 32);
}

std::vector<Approx> exact(std::span<const float> values) {
  std::vector<Approx> out;
  for (const float v : values) out.push_back(exact(v));
  return out;
}

// ---- products -------------------------------------------------------------------------------------------------------

namespace {

struct WeightRow {
  std::vector<float> value;
  std::vector<double> magnitude;  // |d m c| + |e n|: what rounding is relative to, also where the two cancel
  std::vector<double> integer;    // |m c| + |n|
};

// A row of block weights. The values come from dequantize_row, which the format's golden table pins.
WeightRow block_row(const WeightView& w, std::size_t n) {
  WeightRow row;
  row.value.resize(w.cols);
  dequantize_row(w.type, w.row(n), w.cols, row.value.data());
  for (std::size_t b = 0; b < w.cols / 32; ++b) {
    Block32 block;
    decode_block32(w.type, w.row(n), b, block);
    for (std::size_t i = 0; i < 32; ++i) {
      const double mc = std::fabs(static_cast<double>(block.m[i / 16] * block.c[i]));
      const double offset = std::fabs(static_cast<double>(block.n[i / 16]));
      row.magnitude.push_back(std::fabs(static_cast<double>(block.d[i / 16])) * mc +
                              std::fabs(static_cast<double>(block.e)) * offset);
      row.integer.push_back(mc + offset);
    }
  }
  return row;
}

// Rounded steps between a block's integers and the result: d * da, float(P), up to 16 fused steps of a segment, the
// tree, the scale of the matrix; and two inside dequantize_row.
int block_depth(std::size_t cols) {
  return tree_depth(cols, 256, 16, 1) + 5;
}

}  // namespace

Approx block_product(const WeightView& w, std::size_t n, const QuantRows& q, std::size_t row) {
  const WeightRow weights = block_row(w, n);
  double value = 0, magnitude = 0, vanishing = 1;
  for (std::size_t i = 0; i < w.cols; ++i) {
    const double code = q.q_row(row)[i], x = static_cast<double>(q.d_row(row)[i / 32]) * code;
    value += static_cast<double>(weights.value[i]) * x;
    magnitude += weights.magnitude[i] * std::fabs(x);
    vanishing += weights.integer[i] * std::fabs(code);  // d * da below the normal range
  }
  const auto scale = static_cast<double>(w.scale);
  const double error = block_depth(w.cols) * kUnit * magnitude * kSecondOrder + vanishing * kTiny;
  return {value * scale, error * std::fabs(scale) + kTiny};
}

Approx float_product(const WeightView& w, std::size_t n, Row x) {
  std::vector<float> row(w.cols);
  dequantize_row(w.type, w.row(n), w.cols, row.data());
  return dot(exact(row), exact(x), float_dot_depth(w.cols)) * exact(w.scale);
}

// ---- norms ----------------------------------------------------------------------------------------------------------

Values rms_norm(const Values& x, std::size_t groups, Row gamma, float eps) {
  const std::size_t n = x.size() / groups;
  Values y;
  for (std::size_t g = 0; g < groups; ++g) {
    const std::span<const Approx> group(x.data() + g * n, n);
    const Approx mean = dot(group, group, float_dot_depth(n)) / exact(static_cast<float>(n));
    const Approx inverse = exact(1.0F) / sqrt(mean + exact(eps));
    for (std::size_t j = 0; j < n; ++j) y.push_back(group[j] * inverse * exact(gamma[g * n + j]));
  }
  return y;
}

Values l2_norm(const Values& x, std::size_t dim, float eps, float scale) {
  Values y;
  for (std::size_t h = 0; h < x.size(); h += dim) {
    const std::span<const Approx> head(x.data() + h, dim);
    const Approx inverse = exact(1.0F) / sqrt(dot(head, head, float_dot_depth(dim)) + exact(eps));
    for (const Approx v : head) y.push_back(v * inverse * exact(scale));
  }
  return y;
}

Values rotate(Values x, Row cos, Row sin) {
  const std::size_t half = cos.size();
  for (std::size_t i = 0; i < half; ++i) {
    const Approx a = x[i], b = x[i + half], c = exact(cos[i]), s = exact(sin[i]);
    x[i] = a * c - b * s;
    x[i + half] = b * c + a * s;
  }
  return x;
}

// ---- hyper-connections
// ------------------------------------------------------------------------------------------------

Values hc_mix(Row normed, Row gate, std::size_t streams) {
  const std::size_t d = normed.size() / streams;
  Values mixed;
  for (std::size_t j = 0; j < d; ++j) {
    Approx sum;
    for (std::size_t s = 0; s < streams; ++s) sum = fma(sigmoid(exact(gate[s * d + j])), exact(normed[s * d + j]), sum);
    mixed.push_back(sum / exact(static_cast<float>(streams)));
  }
  return mixed;
}

Values hc_write(Row x, Row y, Row inject) {
  Values out;
  const auto streams = static_cast<float>(inject.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const Approx weight = exact(2.0F) * sigmoid(exact(inject[i / y.size()]) / exact(streams));
    out.push_back(fma(weight, exact(y[i % y.size()]), exact(x[i])));
  }
  return out;
}

// ---- delta rule -----------------------------------------------------------------------------------------------------

namespace {
// S^T x.
Values read_state(const Values& state, const Values& x) {
  const std::size_t dim = x.size();
  Values out, column(dim);
  for (std::size_t j = 0; j < dim; ++j) {
    for (std::size_t i = 0; i < dim; ++i) column[i] = state[i * dim + j];
    out.push_back(dot(column, x, tree_depth(dim, 32, 32, 1)));
  }
  return out;
}
}  // namespace

Values delta_step(Values& state, Row q, Row k, Row v, float decay, float beta, Values& u) {
  const std::size_t dim = q.size();
  for (Approx& cell : state) cell = exact(decay) * cell;
  const Values predicted = read_state(state, exact(k));
  u.clear();
  for (std::size_t j = 0; j < dim; ++j) u.push_back(exact(beta) * (exact(v[j]) - predicted[j]));
  for (std::size_t i = 0; i < dim; ++i)
    for (std::size_t j = 0; j < dim; ++j) state[i * dim + j] = fma(exact(k[i]), u[j], state[i * dim + j]);
  return read_state(state, exact(q));
}

// ---- attention ------------------------------------------------------------------------------------------------------

Values attention(Row q, const std::vector<Values>& keys, const std::vector<Values>& values, float scale, Row gate) {
  Values weight;
  Approx top{-HUGE_VAL, 0};
  for (const Values& key : keys) {
    weight.push_back(dot(exact(q), key, float_dot_depth(q.size())) * exact(scale));
    top = {std::max(top.value, weight.back().value), std::max(top.error, weight.back().error)};
  }
  for (Approx& w : weight) w = exp(w - top);
  const int depth = tree_depth(keys.size(), 64, 64, 1);
  const Approx total = dot(weight, Values(weight.size(), exact(1.0F)), depth);
  Values out, column(keys.size());
  for (std::size_t j = 0; j < q.size(); ++j) {
    for (std::size_t i = 0; i < keys.size(); ++i) column[i] = values[i][j];
    out.push_back(dot(weight, column, depth) / total * sigmoid(exact(gate[j])));
  }
  return out;
}

Values ple_gate(Row key, Row query, Row value, std::size_t streams) {
  const std::size_t d = value.size();
  Values gv;
  for (std::size_t c = 0; c < streams; ++c) {
    const Values k = exact(key.subspan(c * d, d)), q = exact(query.subspan(c * d, d));
    const Approx s = dot(k, q, float_dot_depth(d)) / sqrt(exact(static_cast<float>(d)));
    const double sign = s.value > 0 ? 1 : s.value < 0 ? -1 : 0;
    const Approx floored = std::fabs(s.value) > 1e-6 ? Approx{std::fabs(s.value), s.error} : exact(1e-6F);
    const Approx root = sqrt(floored);
    for (std::size_t j = 0; j < d; ++j) gv.push_back(sigmoid({sign * root.value, root.error}) * exact(value[j]));
  }
  return gv;
}

// ---- experts --------------------------------------------------------------------------------------------------------

Values ffn(const ExpertWeights& w, const Activation& row) {
  const auto product = [&](const WeightView& m, std::size_t n) {
    const bool block = dtype_info(m.type).kind == DTypeKind::kBlock;
    return block ? block_product(m, n, row.q, 0) : float_product(m, n, row.x.span(0));
  };
  Values hidden;
  for (std::size_t i = 0; i < w.gate.rows; ++i) hidden.push_back(silu(product(w.gate, i)) * product(w.up, i));
  const bool block = dtype_info(w.down.type).kind == DTypeKind::kBlock;
  for (std::size_t b = 0; block && b < hidden.size(); b += 32) {
    double largest = 0;
    for (std::size_t i = b; i < b + 32; ++i) largest = std::max(largest, std::fabs(hidden[i].value) + hidden[i].error);
    const double half_step = largest / 127 / 2 * (1 + 256 * kUnit);
    for (std::size_t i = b; i < b + 32; ++i) hidden[i].error += half_step;
  }
  Values y;
  for (std::size_t n = 0; n < w.down.rows; ++n) {
    Values weights;
    if (block) {
      const WeightRow down = block_row(w.down, n);
      for (std::size_t i = 0; i < hidden.size(); ++i)
        weights.push_back({static_cast<double>(down.value[i]), 2 * kUnit * down.magnitude[i]});
    } else {
      std::vector<float> down(w.down.cols);
      dequantize_row(w.down.type, w.down.row(n), w.down.cols, down.data());
      weights = exact(down);
    }
    const int depth = block ? block_depth(w.down.cols) : float_dot_depth(w.down.cols);
    y.push_back(dot(weights, hidden, depth) * exact(w.down.scale));
  }
  return y;
}

// ---- discrete choices -----------------------------------------------------------------------------------------------

namespace {
// How many entries go before entry i: the larger ones, and the equal ones of lower index.
std::size_t rank_of(std::span<const double> scores, std::size_t i) {
  std::size_t before = 0;
  for (std::size_t j = 0; j < scores.size(); ++j)
    if (scores[j] > scores[i] || (scores[j] == scores[i] && j < i)) ++before;
  return before;
}
}  // namespace

std::vector<std::int32_t> ranking(std::span<const double> scores, std::size_t k) {
  std::vector<std::int32_t> out(k);
  for (std::size_t i = 0; i < scores.size(); ++i)
    if (const std::size_t rank = rank_of(scores, i); rank < k) out[rank] = static_cast<std::int32_t>(i);
  return out;
}

std::vector<double> block_scores(Row q, std::size_t heads, ConstRows pooled, std::size_t blocks) {
  std::vector<double> scores(blocks);
  const std::size_t dim = q.size() / heads;
  for (std::size_t b = 0; b < blocks; ++b)
    for (std::size_t h = 0; h < heads; ++h) {
      double sum = 0;
      for (std::size_t i = 0; i < dim; ++i)
        sum += static_cast<double>(q[h * dim + i]) * static_cast<double>(pooled.row(b)[i]);
      scores[b] += std::max(sum, 0.0);
    }
  return scores;
}

std::vector<std::int32_t> attended(std::span<const double> scores, std::size_t visible, std::size_t ratio,
                                   std::size_t blocks) {
  std::vector<std::int32_t> positions;
  for (std::size_t p = 0; p < visible; ++p) {
    const std::size_t block = p / ratio;
    const bool tail = block >= visible / ratio;
    if (tail || rank_of(scores, block) < blocks) positions.push_back(static_cast<std::int32_t>(p));
  }
  return positions;
}

}  // namespace tandem::oracle
