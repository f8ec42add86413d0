#include "runtime/workspace.h"

#include <algorithm>

#include "runtime/sequence_state.h"

namespace tandem {

namespace {
std::size_t sz(std::int64_t n) {
  return static_cast<std::size_t>(n);
}
}  // namespace

Workspace::Workspace(MachineMemory& growing, MachineMemory& m, const ModelShape& shape, std::size_t w,
                     std::size_t context, std::size_t part)
    : memory(growing),
      max_rows(w),
      part_rows(std::min(part, w)),
      embedding(m, w, sz(shape.hidden)),
      rope_cos(m, w, sz(shape.rope_dims / 2)),
      rope_sin(m, w, sz(shape.rope_dims / 2)),
      block_cos(m, w + 1, sz(shape.rope_dims / 2)),
      block_sin(m, w + 1, sz(shape.rope_dims / 2)),
      ngram(m, shape.ple_layer >= 0 ? w : 0, sz(shape.ple_width())),
      wide_in(m, shape.mtp_layers > 0 && !m.is_host() ? w : 0, sz(shape.wide())),
      x(m, w, sz(shape.wide())),
      mixed(m, w, sz(shape.hidden)),
      inject(m, w, sz(shape.streams)),
      block(m, w, sz(shape.hidden)),
      expert_y(m, w * sz(shape.experts_used), sz(shape.hidden)),
      shared(m, w, sz(shape.hidden)),
      shared_logit(m, w, 1),
      route_expert(m, w * sz(shape.experts_used)),
      hit_expert(m, route_expert.size()),
      miss_expert(m, route_expert.size()),
      route_weight(m, w * sz(shape.experts_used)),
      normed(m, part_rows, sz(shape.wide())),
      wide_a(m, part_rows, sz(shape.wide())),
      wide_b(m, shape.ple_layer >= 0 ? part_rows : 0, sz(shape.wide())),
      low(m, part_rows, sz(shape.hc_rank)),
      qkv(m, part_rows, sz(shape.gdn_conv_width())),
      conv(m, part_rows, sz(shape.gdn_conv_width())),
      z(m, part_rows, sz(shape.gdn_value_width())),
      gdn_out(m, part_rows, sz(shape.gdn_value_width())),
      qn(m, part_rows, sz(shape.gdn_key_width())),
      kn(m, part_rows, sz(shape.gdn_key_width())),
      alpha(m, part_rows, sz(shape.gdn_value_heads)),
      beta(m, part_rows, sz(shape.gdn_value_heads)),
      q_gate(m, part_rows, sz(2 * shape.heads * shape.head_dim)),
      q_rot(m, part_rows, sz(shape.heads * shape.head_dim)),
      attn_out(m, part_rows, sz(shape.heads * shape.head_dim)),
      k(m, part_rows, sz(shape.kv_heads * shape.head_dim)),
      k_rot(m, part_rows, sz(shape.kv_heads * shape.head_dim)),
      v(m, part_rows, sz(shape.kv_heads * shape.head_dim)),
      index_q(m, part_rows, sz(shape.indexer_heads * shape.indexer_dim)),
      index_q_rot(m, part_rows, sz(shape.indexer_heads * shape.indexer_dim)),
      index_k(m, part_rows, sz(shape.indexer_dim)),
      position_stride(0),
      router(m, part_rows, sz(shape.experts)),
      chosen(m, kMaxWindow),
      concat(m, shape.mtp_layers > 0 ? part_rows * sz(shape.streams) : 0, sz(2 * shape.hidden)),
      hidden_(sz(shape.hidden)) {
  CHECK(part_rows > 0 && (part_rows == w || part_rows % 16 == 0), "parts of {} rows", part_rows);
  const std::size_t widest =
      part_rows * std::max({sz(shape.wide()), sz(shape.gdn_value_width()), sz(shape.heads * shape.head_dim),
                            sz(shape.ple_width()), sz(shape.streams) * 2 * sz(shape.hidden), sz(shape.hc_rank)});
  quant_q_ = {m, widest};
  quant_d_ = {m, widest / 32 + 1};
  quant_s_ = {m, widest / 16 + 1};
  block_q_ = {m, w * hidden_};
  block_d_ = {m, w * hidden_ / 32 + 1};
  block_s_ = {m, w * hidden_ / 16 + 1};
  const std::size_t banks = sz(shape.layers + shape.mtp_layers);
  route_log_bytes_ = banks * w * sz(shape.experts_used) * sizeof(std::int32_t);
  route_log_ = m.allocate_staging(route_log_bytes_);
  position_stride = std::min(context, sz(shape.indexer_budget + shape.indexer_ratio));
  positions = {m, part_rows * position_stride};
  position_count = {m, part_rows};
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
       {&positions, &position_count, &route_expert, &hit_expert, &miss_expert, &quant_s_, &block_s_})
    total += array->bytes();
  return total + chosen.bytes() + route_weight.bytes() + quant_d_.bytes() + quant_q_.bytes() + block_d_.bytes() +
         block_q_.bytes() + route_log_bytes_;
}

std::int64_t workspace_bytes(const ModelShape& s, std::int64_t rows, std::int64_t context, std::int64_t logit_rows,
                             std::int64_t part_rows) {
  const bool ple = s.ple_layer >= 0, mtp = s.mtp_layers > 0;
  const std::int64_t fused = s.streams * 2 * s.hidden, heads = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  const std::int64_t index_q = s.indexer_heads * s.indexer_dim, part_count = std::min(rows, part_rows);
  // Floats of one row, in the order of the members: of the pass, and of a part.
  std::int64_t row = s.hidden + 4 * (s.rope_dims / 2) + (ple ? s.ple_width() : 0);
  row += s.wide() + 2 * s.hidden + s.streams + s.experts_used * s.hidden + s.hidden + 1;
  std::int64_t part = (ple ? 3 : 2) * s.wide() + s.hc_rank;
  part += 2 * s.gdn_conv_width() + 2 * s.gdn_value_width() + 2 * s.gdn_key_width() + 2 * s.gdn_value_heads;
  part += 2 * heads + 2 * heads + 3 * kv + 2 * index_q + s.indexer_dim + s.experts + (mtp ? fused : 0);
  const std::int64_t once = 2 * (s.rope_dims / 2) + static_cast<std::int64_t>(kMaxWindow * sizeof(Chosen) / 4);
  part += std::min<std::int64_t>(context, s.indexer_budget + s.indexer_ratio) + 1;
  row += (4 + s.layers + s.mtp_layers) * s.experts_used;  // experts, hits, misses, weights; log
  const std::int64_t widest =
      part_count * std::max({s.wide(), s.gdn_value_width(), heads, s.ple_width(), fused, s.hc_rank});
  const auto quantised = [](std::int64_t n) { return n + (n / 32 + 1) * 4 + (n / 16 + 1) * 4; };
  return (rows * row + part_count * part + once + logit_rows * s.vocab) * 4 + quantised(widest) +
         quantised(rows * s.hidden);
}

}  // namespace tandem
