#include "runtime/workspace.h"

#include <algorithm>

namespace tandem {

namespace {
std::size_t sz(std::int64_t n) {
  return static_cast<std::size_t>(n);
}
}  // namespace

Workspace::Workspace(const ModelShape& shape, std::size_t w, std::size_t context)
    : max_rows(w),
      x(w, sz(shape.wide())),
      normed(w, sz(shape.wide())),
      wide_a(w, sz(shape.wide())),
      wide_b(shape.ple_layer >= 0 ? w : 0, sz(shape.wide())),
      low(w, sz(shape.hc_rank)),
      mixed(w, sz(shape.hidden)),
      inject(w, sz(shape.streams)),
      block(w, sz(shape.hidden)),
      qkv(w, sz(shape.gdn_conv_width())),
      conv(w, sz(shape.gdn_conv_width())),
      z(w, sz(shape.gdn_value_width())),
      gdn_out(w, sz(shape.gdn_value_width())),
      qn(w, sz(shape.gdn_key_width())),
      kn(w, sz(shape.gdn_key_width())),
      alpha(w, sz(shape.gdn_value_heads)),
      beta(w, sz(shape.gdn_value_heads)),
      q_gate(w, sz(2 * shape.heads * shape.head_dim)),
      q_rot(w, sz(shape.heads * shape.head_dim)),
      attn_out(w, sz(shape.heads * shape.head_dim)),
      k(w, sz(shape.kv_heads * shape.head_dim)),
      k_rot(w, sz(shape.kv_heads * shape.head_dim)),
      v(w, sz(shape.kv_heads * shape.head_dim)),
      index_q(w, sz(shape.indexer_heads * shape.indexer_dim)),
      index_q_rot(w, sz(shape.indexer_heads * shape.indexer_dim)),
      index_k(w, sz(shape.indexer_dim)),
      pool_in(w + sz(shape.indexer_ratio), sz(shape.indexer_dim)),
      pool(w + 1, sz(shape.indexer_dim)),
      rope_cos(w, sz(shape.rope_dims / 2)),
      rope_sin(w, sz(shape.rope_dims / 2)),
      block_cos(w + 1, sz(shape.rope_dims / 2)),
      block_sin(w + 1, sz(shape.rope_dims / 2)),
      position_stride(0),
      router(w, sz(shape.experts)),
      expert_y(w * sz(shape.experts_used), sz(shape.hidden)),
      shared(w, sz(shape.hidden)),
      shared_logit(w, 1),
      route_expert(w * sz(shape.experts_used)),
      hit_expert(route_expert.size()),
      miss_expert(route_expert.size()),
      route_weight(w * sz(shape.experts_used)),
      ngram(shape.ple_layer >= 0 ? w : 0, sz(shape.ple_width())),
      concat(shape.mtp_layers > 0 ? w * sz(shape.streams) : 0, sz(2 * shape.hidden)) {
  const std::size_t widest =
      std::max({w * sz(shape.wide()), w * sz(shape.gdn_value_width()), w * sz(shape.heads * shape.head_dim),
                w * sz(shape.ple_width()), w * sz(shape.streams) * 2 * sz(shape.hidden), w * sz(shape.hc_rank)});
  quant_q_.resize(widest);
  quant_d_.resize(widest / 32 + 1);
  quant_s_.resize(widest / 16 + 1);
  reserve_positions(w, std::min(context, sz(shape.indexer_budget + shape.indexer_ratio)));
}

void Workspace::reserve_logits(std::size_t rows, std::size_t vocab) {
  if (rows <= logit_rows_) return;
  logits = Buffer(rows, vocab);
  logit_rows_ = rows;
}

QuantRows Workspace::quant(std::size_t rows, std::size_t cols) {
  CHECK(rows * cols <= quant_q_.size(), "{} x {} values in {}", rows, cols, quant_q_.size());
  return {quant_q_.data(), quant_d_.data(), quant_s_.data(), rows, cols};
}

void Workspace::reserve_positions(std::size_t rows, std::size_t stride) {
  if (stride <= position_stride) return;
  position_stride = stride;
  positions.resize(rows * stride);
  position_count.resize(rows);
}

std::size_t Workspace::bytes() const {
  std::size_t total = 0;
  for (const Buffer* buffer :
       {&x,        &normed,   &wide_a,    &wide_b,    &low,     &mixed,       &inject,  &block,        &qkv,
        &conv,     &z,        &gdn_out,   &qn,        &kn,      &alpha,       &beta,    &q_gate,       &q_rot,
        &attn_out, &k,        &k_rot,     &v,         &index_q, &index_q_rot, &index_k, &pool_in,      &pool,
        &rope_cos, &rope_sin, &block_cos, &block_sin, &router,  &expert_y,    &shared,  &shared_logit, &ngram,
        &logits,   &concat})
    total += buffer->bytes();
  return total +
         (positions.size() + position_count.size() + route_expert.size() + hit_expert.size() + miss_expert.size() +
          quant_s_.size()) *
             4 +
         (route_weight.size() + quant_d_.size()) * sizeof(float) + quant_q_.size();
}

std::int64_t workspace_bytes(const ModelShape& s, std::int64_t rows, std::int64_t context, std::int64_t logit_rows) {
  const bool ple = s.ple_layer >= 0, mtp = s.mtp_layers > 0;
  const std::int64_t fused = s.streams * 2 * s.hidden, heads = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  const std::int64_t index_q = s.indexer_heads * s.indexer_dim;
  // Floats of one row, in the order of the members.
  std::int64_t row = (ple ? 4 : 3) * s.wide() + s.hc_rank + s.hidden + s.streams + s.hidden;
  row += 2 * s.gdn_conv_width() + 2 * s.gdn_value_width() + 2 * s.gdn_key_width() + 2 * s.gdn_value_heads;
  row += 2 * heads + 2 * heads + 3 * kv + 2 * index_q + 3 * s.indexer_dim + 4 * (s.rope_dims / 2);
  row += s.experts + s.experts_used * s.hidden + s.hidden + 1;
  row += (ple ? s.ple_width() : 0) + (mtp ? fused : 0);
  const std::int64_t once = s.indexer_ratio * s.indexer_dim + s.indexer_dim + 2 * (s.rope_dims / 2);
  const std::int64_t listed = std::min<std::int64_t>(context, s.indexer_budget + s.indexer_ratio) + 1;
  const std::int64_t routes = 4 * s.experts_used;  // experts, hits, misses, weights
  const std::int64_t widest = rows * std::max({s.wide(), s.gdn_value_width(), heads, s.ple_width(), fused, s.hc_rank});
  const std::int64_t quantised = widest + (widest / 32 + 1) * 4 + (widest / 16 + 1) * 4;
  return (rows * (row + listed + routes) + once + logit_rows * s.vocab) * 4 + quantised;
}

}  // namespace tandem
