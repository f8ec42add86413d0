// ReferenceOps: QSA attention, routing, experts.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/reference_dot.h"
#include "cpu/reference_ops.h"
#include "cpu/select.h"
#include "runtime/exact_math.h"

namespace tandem {

namespace {
// Element `column` of the key or value row at `position`.
float kv_value(const KvView& kv, const void* base, std::size_t position, std::size_t column) {
  const std::size_t at = position * kv.width() + column;
  return kv.type == KvType::kF32 ? static_cast<const float*>(base)[at]
                                 : half_to_float(static_cast<const std::uint16_t*>(base)[at]);
}

void kv_write(const KvView& kv, void* base, std::size_t position, const float* row) {
  for (std::size_t c = 0; c < kv.width(); ++c) {
    const std::size_t at = position * kv.width() + c;
    if (kv.type == KvType::kF32)
      static_cast<float*>(base)[at] = row[c];
    else
      static_cast<std::uint16_t*>(base)[at] = float_to_half(row[c]);
  }
}
}  // namespace

void ReferenceOps::kv_store(const KvView& kv, std::size_t position, ConstRows k, ConstRows v) {
  CHECK(position + k.rows <= kv.capacity, "{} + {} rows in {} positions", position, k.rows, kv.capacity);
  for (std::size_t r = 0; r < k.rows; ++r) {
    kv_write(kv, kv.k, position + r, k.row(r));
    kv_write(kv, kv.v, position + r, v.row(r));
  }
}

void ReferenceOps::mean_pool(ConstRows x, std::size_t ratio, Rows y) {
  CHECK(x.rows == y.rows * ratio && x.cols == y.cols);
  for (std::size_t b = 0; b < y.rows; ++b)
    for (std::size_t c = 0; c < y.cols; ++c) {
      float sum = x.row(b * ratio)[c];
      for (std::size_t j = 1; j < ratio; ++j) sum = sum + x.row(b * ratio + j)[c];
      y.row(b)[c] = sum / static_cast<float>(ratio);
    }
}

void ReferenceOps::select_positions(ConstRows q, std::size_t heads, ConstRows pooled, std::size_t position,
                                    std::size_t ratio, std::size_t blocks, AttendLists lists) {
  const std::size_t dim = q.cols / heads;
  std::vector<float> scores;
  for (std::size_t r = 0; r < q.rows; ++r) {
    const std::size_t visible = position + r + 1, complete = visible / ratio;
    scores.assign(complete, 0.0F);
    for (std::size_t b = 0; complete > blocks && b < complete; ++b) {
      for (std::size_t h = 0; h < heads; ++h) {
        const float dot = dot_float_ref(q.row(r) + h * dim, pooled.row(b), dim);
        scores[b] = scores[b] + std::max(dot, 0.0F);
      }
      CHECK(std::isfinite(scores[b]), "score of block {} at position {} is {}", b, position + r, scores[b]);
    }
    lists.count[r] =
        write_positions(scores.data(), complete, visible, ratio, blocks, lists.positions + r * lists.stride);
  }
}

void ReferenceOps::index_blocks(const IndexBlocks& b) {
  const std::size_t first = b.position / b.ratio, last = (b.position + b.keys.rows) / b.ratio, dim = b.keys.cols;
  if (first == last) return;
  const std::size_t blocks = last - first;
  CHECK(b.raw.width == dim && b.raw.depth + 1 >= b.ratio && b.rope.cos.rows >= blocks, "{} of {}, {} blocks, {} angles",
        b.raw.width, dim, blocks, b.rope.cos.rows);
  block_keys_.resize(blocks * b.ratio * dim);
  block_means_.resize(blocks * dim);
  for (std::size_t i = 0; i < blocks * b.ratio; ++i) {
    const std::size_t at = first * b.ratio + i;
    const float* raw = nullptr;
    if (at >= b.position) {
      raw = b.keys.row(at - b.position);
    } else if (const std::size_t back = b.position - at; back <= b.pending) {
      raw = b.raw.window + (b.pending - back) * dim;
    } else {
      raw = b.raw.rows + (b.raw.depth + b.pending - back) * dim;
    }
    std::copy_n(raw, dim, block_keys_.data() + i * dim);
  }
  const Rows means(block_means_.data(), blocks, dim);
  mean_pool(ConstRows(block_keys_.data(), blocks * b.ratio, dim), b.ratio, means);
  norm_rope(means, 1, dim, dim, b.gamma, b.eps, {b.rope.cos.slice(0, blocks), b.rope.sin.slice(0, blocks)},
            Rows(b.pooled + first * dim, blocks, dim));
}

void ReferenceOps::all_positions(std::size_t position, AttendLists lists) {
  for (std::size_t r = 0; r < lists.rows; ++r) {
    lists.count[r] = static_cast<std::int32_t>(position + r + 1);
    for (std::int32_t p = 0; p < lists.count[r]; ++p)
      lists.positions[r * lists.stride + static_cast<std::size_t>(p)] = p;
  }
}

void ReferenceOps::attention(ConstRows q, const KvView& kv, const AttendLists& lists, float scale, ConstRows gate,
                             std::size_t gate_stride, Rows out) {
  const std::size_t dim = kv.head_dim, heads = q.cols / dim, per_kv = heads / kv.kv_heads;
  std::vector<float> key(dim), weight, segments;
  for (std::size_t r = 0; r < q.rows; ++r) {
    const std::int32_t* positions = lists.positions + r * lists.stride;
    const auto n = static_cast<std::size_t>(lists.count[r]);
    const std::size_t count = (n + kKeySegment - 1) / kKeySegment;
    weight.resize(n);
    segments.resize(2 * count);
    for (std::size_t h = 0; h < heads; ++h) {
      const std::size_t base = h / per_kv * dim;
      float top = -HUGE_VALF;
      for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t j = 0; j < dim; ++j)
          key[j] = kv_value(kv, kv.k, static_cast<std::size_t>(positions[i]), base + j);
        weight[i] = dot_float_ref(q.row(r) + h * dim, key.data(), dim) * scale;
        top = std::max(top, weight[i]);
      }
      for (float& w : weight) w = exp_c(w - top);
      const auto tree = [&](auto term) {
        for (std::size_t s = 0; s < count; ++s) {
          float acc = 0.0F;
          for (std::size_t i = s * kKeySegment; i < std::min(n, (s + 1) * kKeySegment); ++i) acc = term(i, acc);
          segments[s] = acc;
        }
        return tree_sum(segments.data(), count);
      };
      const float total = tree([&](std::size_t i, float acc) { return acc + weight[i]; });
      for (std::size_t j = 0; j < dim; ++j) {
        const float sum = tree([&](std::size_t i, float acc) {
          return std::fma(weight[i], kv_value(kv, kv.v, static_cast<std::size_t>(positions[i]), base + j), acc);
        });
        out.row(r)[h * dim + j] = (sum / total) * sigmoid_c(gate.row(r)[h * gate_stride + j]);
      }
    }
  }
}

// ---- experts --------------------------------------------------------------------------------------------------------

std::int64_t ReferenceOps::route(ConstRows logits, Routes routes) {
  for (std::size_t r = 0; r < logits.rows; ++r) {
    const float* row = logits.row(r);
    for (std::size_t e = 0; e < logits.cols; ++e)
      if (std::isnan(row[e])) return static_cast<std::int64_t>(r);
    std::int32_t* expert = routes.expert + r * routes.used;
    float* weight = routes.weight + r * routes.used;
    top_k_sorted(row, logits.cols, routes.used, expert);
    float total = 0.0F;
    for (std::size_t k = 0; k < routes.used; ++k) {
      weight[k] = exp_c(row[expert[k]] - row[expert[0]]);
      total = total + weight[k];
    }
    for (std::size_t k = 0; k < routes.used; ++k) weight[k] = weight[k] / total;
  }
  return -1;
}

void ReferenceOps::ffn(const ExpertWeights& weights, const Activation& a, Rows y) {
  const std::size_t ff = weights.gate.rows;
  std::vector<float> gate(ff), up(ff), d(ff / 32 + 1);
  std::vector<std::int8_t> q(ff);
  std::vector<std::int32_t> s(ff / 16 + 1);
  for (std::size_t r = 0; r < y.rows; ++r) {
    const Activation row = a.row(r);
    ReferenceOps::matmul(weights.gate, row, Rows(gate.data(), 1, ff));
    ReferenceOps::matmul(weights.up, row, Rows(up.data(), 1, ff));
    for (std::size_t i = 0; i < ff; ++i) gate[i] = silu_c(gate[i]) * up[i];
    Activation hidden{ConstRows(gate.data(), 1, ff), {}};
    if (dtype_info(weights.down.type).kind == DTypeKind::kBlock) {
      hidden.q = {q.data(), d.data(), s.data(), 1, ff};
      // A non-finite hidden value stays visible: the row becomes NaN and the next quantisation reports it.
      if (!quantize_row_ref(gate.data(), ff, q.data(), d.data(), s.data())) {
        std::fill_n(y.row(r), y.cols, NAN);
        continue;
      }
    }
    ReferenceOps::matmul(weights.down, hidden, y.slice(r, 1));
  }
}

void ReferenceOps::expert_ffn(const ExpertBank& bank, const Routes& routes, const Activation& a, Rows y) {
  for (std::size_t r = 0; r < routes.rows; ++r) {
    const Activation row = a.row(r);
    for (std::size_t k = 0; k < routes.used; ++k) {
      const std::int32_t id = routes.expert[r * routes.used + k];
      if (id >= 0) ReferenceOps::ffn(bank.expert(id), row, y.slice(r * routes.used + k, 1));
    }
  }
}

void ReferenceOps::combine(const Routes& routes, ConstRows y, ConstRows shared_logit, ConstRows shared, Rows out) {
  for (std::size_t r = 0; r < out.rows; ++r) {
    const float shared_weight = sigmoid_c(shared_logit.row(r)[0]);
    for (std::size_t j = 0; j < out.cols; ++j) {
      float sum = 0.0F;
      for (std::size_t k = r * routes.used; k < (r + 1) * routes.used; ++k)
        if (routes.expert[k] >= 0) sum = std::fma(routes.weight[k], y.row(k)[j], sum);
      out.row(r)[j] = std::fma(shared_weight, shared.row(r)[j], sum);
    }
  }
}

}  // namespace tandem
