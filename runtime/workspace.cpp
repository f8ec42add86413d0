#include "runtime/workspace.h"

#include <algorithm>

#include "runtime/sequence_state.h"

namespace tandem {

namespace {
std::size_t sz(std::int64_t n) {
  return static_cast<std::size_t>(n);
}
}  // namespace

Workspace::Workspace(MachineMemory& m, const ModelShape& shape, std::size_t w, std::size_t context)
    : memory(m),
      max_rows(w),
      embedding(m, w, sz(shape.hidden)),
      rope_cos(m, w, sz(shape.rope_dims / 2)),
      rope_sin(m, w, sz(shape.rope_dims / 2)),
      block_cos(m, w + 1, sz(shape.rope_dims / 2)),
      block_sin(m, w + 1, sz(shape.rope_dims / 2)),
      ngram(m, shape.ple_layer >= 0 ? w : 0, sz(shape.ple_width())),
      wide_in(m, shape.mtp_layers > 0 && !m.is_host() ? w : 0, sz(shape.wide())),
      x(m, w, sz(shape.wide())),
      normed(m, w, sz(shape.wide())),
      wide_a(m, w, sz(shape.wide())),
      wide_b(m, shape.ple_layer >= 0 ? w : 0, sz(shape.wide())),
      low(m, w, sz(shape.hc_rank)),
      mixed(m, w, sz(shape.hidden)),
      inject(m, w, sz(shape.streams)),
      block(m, w, sz(shape.hidden)),
      qkv(m, w, sz(shape.gdn_conv_width())),
      conv(m, w, sz(shape.gdn_conv_width())),
      z(m, w, sz(shape.gdn_value_width())),
      gdn_out(m, w, sz(shape.gdn_value_width())),
      qn(m, w, sz(shape.gdn_key_width())),
      kn(m, w, sz(shape.gdn_key_width())),
      alpha(m, w, sz(shape.gdn_value_heads)),
      beta(m, w, sz(shape.gdn_value_heads)),
      q_gate(m, w, sz(2 * shape.heads * shape.head_dim)),
      q_rot(m, w, sz(shape.heads * shape.head_dim)),
      attn_out(m, w, sz(shape.heads * shape.head_dim)),
      k(m, w, sz(shape.kv_heads * shape.head_dim)),
      k_rot(m, w, sz(shape.kv_heads * shape.head_dim)),
      v(m, w, sz(shape.kv_heads * shape.head_dim)),
      index_q(m, w, sz(shape.indexer_heads * shape.indexer_dim)),
      index_q_rot(m, w, sz(shape.indexer_heads * shape.indexer_dim)),
      index_k(m, w, sz(shape.indexer_dim)),
      position_stride(0),
      router(m, w, sz(shape.experts)),
      expert_y(m, w * sz(shape.experts_used), sz(shape.hidden)),
      shared(m, w, sz(shape.hidden)),
      shared_logit(m, w, 1),
      route_expert(m, w * sz(shape.experts_used)),
      hit_expert(m, route_expert.size()),
      miss_expert(m, route_expert.size()),
      route_weight(m, w * sz(shape.experts_used)),
      chosen(m, kMaxWindow),
      concat(m, shape.mtp_layers > 0 ? w * sz(shape.streams) : 0, sz(2 * shape.hidden)) {
  const std::size_t widest =
      std::max({w * sz(shape.wide()), w * sz(shape.gdn_value_width()), w * sz(shape.heads * shape.head_dim),
                w * sz(shape.ple_width()), w * sz(shape.streams) * 2 * sz(shape.hidden), w * sz(shape.hc_rank)});
  quant_q_ = {m, widest};
  quant_d_ = {m, widest / 32 + 1};
  quant_s_ = {m, widest / 16 + 1};
  const std::size_t banks = sz(shape.layers + shape.mtp_layers);
  route_log_bytes_ = banks * w * sz(shape.experts_used) * sizeof(std::int32_t);
  route_log_ = m.allocate_staging(route_log_bytes_);
  reserve_positions(w, std::min(context, sz(shape.indexer_budget + shape.indexer_ratio)));
}

void Workspace::reserve_logits(std::size_t rows, std::size_t tokens) {
  if (rows * tokens <= logits.data().size()) {
    if (rows > 0) logits = StagedBuffer(logits.data(), tokens);
    return;
  }
  logits = StagedBuffer(memory, rows, tokens);
  identity = new_identity();
}

QuantRows Workspace::quant(std::size_t rows, std::size_t cols) {
  CHECK(rows * cols <= quant_q_.size(), "{} x {} values in {}", rows, cols, quant_q_.size());
  return {quant_q_.data(), quant_d_.data(), quant_s_.data(), rows, cols};
}

void Workspace::reserve_positions(std::size_t rows, std::size_t stride) {
  if (stride <= position_stride) return;
  position_stride = stride;
  positions = {memory, rows * stride};
  position_count = {memory, rows};
  identity = new_identity();
}

std::size_t Workspace::bytes() const {
  std::size_t total = 0;
  for (const Buffer* buffer :
       {&normed,  &wide_a,  &wide_b,      &low,     &mixed,  &inject,   &block,  &qkv,          &conv,  &z,
        &gdn_out, &qn,      &kn,          &alpha,   &beta,   &q_gate,   &q_rot,  &attn_out,     &k,     &k_rot,
        &v,       &index_q, &index_q_rot, &index_k, &router, &expert_y, &shared, &shared_logit, &concat})
    total += buffer->bytes();
  for (const StagedBuffer* buffer :
       {&embedding, &rope_cos, &rope_sin, &block_cos, &block_sin, &ngram, &wide_in, &x, &logits})
    total += buffer->bytes();
  for (const Array<std::int32_t>* array :
       {&positions, &position_count, &route_expert, &hit_expert, &miss_expert, &quant_s_})
    total += array->bytes();
  return total + chosen.bytes() + route_weight.bytes() + quant_d_.bytes() + quant_q_.bytes() + route_log_bytes_;
}

std::int64_t workspace_bytes(const ModelShape& s, std::int64_t rows, std::int64_t context, std::int64_t logit_rows) {
  const bool ple = s.ple_layer >= 0, mtp = s.mtp_layers > 0;
  const std::int64_t fused = s.streams * 2 * s.hidden, heads = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  const std::int64_t index_q = s.indexer_heads * s.indexer_dim;
  // Floats of one row, in the order of the members.
  std::int64_t row = (ple ? 4 : 3) * s.wide() + s.hc_rank + s.hidden + s.streams + s.hidden;
  row += 2 * s.gdn_conv_width() + 2 * s.gdn_value_width() + 2 * s.gdn_key_width() + 2 * s.gdn_value_heads;
  row += 2 * heads + 2 * heads + 3 * kv + 2 * index_q + s.indexer_dim + 4 * (s.rope_dims / 2) + s.hidden;
  row += s.experts + s.experts_used * s.hidden + s.hidden + 1;
  row += (ple ? s.ple_width() : 0) + (mtp ? fused : 0);
  const std::int64_t once = 2 * (s.rope_dims / 2) + static_cast<std::int64_t>(kMaxWindow);
  const std::int64_t listed = std::min<std::int64_t>(context, s.indexer_budget + s.indexer_ratio) + 1;
  const std::int64_t routes = (4 + s.layers + s.mtp_layers) * s.experts_used;  // experts, hits, misses, weights; log
  const std::int64_t widest = rows * std::max({s.wide(), s.gdn_value_width(), heads, s.ple_width(), fused, s.hc_rank});
  const std::int64_t quantised = widest + (widest / 32 + 1) * 4 + (widest / 16 + 1) * 4;
  return (rows * (row + listed + routes) + once + logit_rows * s.vocab) * 4 + quantised;
}

}  // namespace tandem
