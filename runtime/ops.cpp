#include "runtime/ops.h"

#include <algorithm>

#include "runtime/expert_store.h"

namespace tandem {

LoadedModel Ops::load(const Model&, const LoadOptions&) {
  return {};
}

RouteSplit Ops::split_routes(const ExpertBank&, const ExpertStore* store, int index, const Routes& routes,
                             const Routes& hits, const Routes& misses, std::int32_t* log) {
  const std::size_t count = routes.rows * routes.used;
  std::copy_n(routes.expert, count, log);
  if (store != nullptr) return store->split(index, routes, hits, misses);
  std::copy_n(routes.expert, count, hits.expert);
  return {.hits = true, .misses = false};
}

std::int64_t Ops::router(std::span<const Product> products, const Activation& a, const RoutePlan& plan,
                         RouteSplit& split) {
  matmuls(products, a);
  const std::int64_t bad = route(products[0].y, plan.routes);
  if (bad < 0) split = split_routes(*plan.bank, plan.store, plan.index, plan.routes, plan.hits, plan.misses, plan.log);
  return bad;
}

void Ops::choose(ConstRows logits, const TokenChoice& choice, std::size_t position, const TokenId* ids,
                 Chosen* chosen) {
  const std::span<const TokenId> tokens(ids, ids == nullptr ? 0 : logits.cols);
  for (std::size_t r = 0; r < logits.rows; ++r) {
    const Chosen one = choose_token(logits.span(r), choice, position + r, tokens);
    chosen[r].token = one.token;
    chosen[r].logit = one.logit;
  }
}

void Ops::gdn_input(const GdnInput& in) {
  const std::size_t w = in.qkv.rows, channels = in.qkv.cols, keys = in.key_heads * in.dim;
  gdn_gates(in.alpha, in.beta, in.dt_bias, in.a);
  causal_conv({in.history.rows, in.history.depth, in.history.width}, in.qkv, in.taps, 1, in.conv);
  l2_norm(ConstRows(in.conv.data, w, keys, channels), in.dim, in.eps, in.scale, in.q);
  l2_norm(ConstRows(in.conv.data + keys, w, keys, channels), in.dim, in.eps, 1.0F, in.k);
  if (in.log) memory().log_rows(in.history, 0, in.qkv);
}

std::int64_t Ops::gdn_result(const GdnResult& result) {
  const auto log = [this](float* to, const ConstRows& from) {
    CHECK(from.stride == from.cols, "rows {} apart", from.stride);
    memory().copy(to, from.data, from.rows * from.cols * sizeof(float));
  };
  if (result.log_k != nullptr) log(result.log_k, result.k);
  if (result.log_decay != nullptr) log(result.log_decay, result.decay);
  gdn_output(result.o, result.z, result.norm, result.dim, result.eps, result.o);
  return result.q ? quantize(result.o, result.q) : -1;
}

std::int64_t Ops::gdn_step(const GdnStep& step) {
  gdn_input(step.input);
  stage("delta rule", step.layer);
  gdn_scan(step.scan);
  stage("gdn output", step.layer);
  return gdn_result(step.result);
}

void Ops::attention_input(const AttentionInput& in) {
  norm_rope(in.q, in.heads, in.dim, in.head_stride, in.q_norm, in.eps, in.rope, in.q_rot);
  norm_rope(in.k, in.kv.kv_heads, in.dim, in.dim, in.k_norm, in.eps, in.rope, in.k_rot);
  kv_store(in.kv, in.position, in.k_rot, in.v);
}

std::int64_t Ops::hc_read(const HcRead& read) {
  const auto block = [](const WeightView& w) { return w && dtype_info(w.type).kind == DTypeKind::kBlock; };
  const HcWeights& weights = *read.weights;
  if (read.written) hc_write(read.x, read.written, read.written_inject, read.streams);
  rms_norm(read.x, static_cast<std::size_t>(read.streams), read.gamma, read.eps, read.normed);
  Activation normed{read.normed, {}};
  if (block(weights.down) || block(weights.inject)) {
    normed.q = read.normed_q;
    if (const std::int64_t bad = quantize(read.normed, read.normed_q); bad >= 0) return bad;
  }
  if (weights.inject)
    matmuls({{weights.down, read.low}, {weights.inject, read.inject}}, normed);
  else
    matmul(weights.down, normed, read.low);
  hc_low(read.low, read.streams);
  Activation low{read.low, {}};
  if (block(weights.up)) {
    low.q = read.low_q;
    if (const std::int64_t bad = quantize(read.low, read.low_q); bad >= 0) return bad;
  }
  matmul(weights.up, low, read.gate);
  hc_mix(read.normed, read.gate, read.streams, read.mixed);
  return -1;
}

}  // namespace tandem
