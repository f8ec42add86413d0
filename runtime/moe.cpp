// Routed and shared experts of one layer: the place where the two sides meet. The crew computes the experts that are
// off the card while the machine computes those on it and the shared expert.
#include <chrono>

#include "runtime/expert_store.h"
#include "runtime/layer.h"
#include "runtime/timeline.h"

namespace tandem {

namespace {

Routes slice(const Routes& routes, std::size_t first, std::size_t count) {
  return {routes.expert + first * routes.used, routes.weight + first * routes.used, count, routes.used};
}

}  // namespace

void moe(const Pass& pass, const MoeWeights& weights, FunctionRef<void(const Pass&)> prepare) {
  Ops& ops = pass.ops;
  Workspace& ws = pass.ws;
  const std::size_t w = pass.rows, used = static_cast<std::size_t>(pass.shape.experts_used);
  Activation f{ws.mixed.rows(w), {}};
  const Ops::SharedExpert shared{&weights.shared, ws.shared.rows(w)};
  const Rows y = ws.expert_y.rows(w * used);
  const Routes routes = ws.routes(w, used), hits = ws.hits(w, used), misses = ws.misses(w, used);
  std::int32_t* const log = ws.route_log(static_cast<std::size_t>(pass.layer), w, used);
  RouteSplit split;
  bool shared_runs = false;
  pass.by_parts([&](const Pass& part) {
    prepare(part);
    const Activation own = part.activation("expert input", part.of(ws.mixed),
                                           {&weights.router, &weights.routed.gate, &weights.routed.up,
                                            &weights.shared.gate, &weights.shared.up, &weights.shared_gate},
                                           ws.block_quant(w).slice(part.first, part.rows));
    if (own.q) f.q = ws.block_quant(w);
    if (!pass.in_parts()) shared_runs = ops.start_ffn(*shared.weights, own, shared.y);
    const Rows logits = ws.router.rows(part.rows);
    const Ops::Product products[] = {{weights.router, logits}, {weights.shared_gate, part.of(ws.shared_logit)}};
    ops.stage("router", pass.layer);
    RouteSplit now;
    const std::int64_t bad =
        ops.router(products, own,
                   {&weights.routed, pass.experts, pass.layer, slice(routes, part.first, part.rows),
                    slice(hits, part.first, part.rows), slice(misses, part.first, part.rows), log + part.first * used},
                   now);
    part.show("router_logits", logits);
    if (bad >= 0) Pass::fail_not_finite({"router", pass.layer, static_cast<std::size_t>(bad)}, part.position);
    split.hits = split.hits || now.hits;
    split.misses = split.misses || now.misses;
  });
  // With nothing on the card, all that a layer has to do for its experts is one list, which everybody shares.
  const bool crew_alone = split.misses && !split.hits && !shared_runs;
  ops.stage("hand-off", pass.layer);
  if (split.misses) ops.start_experts(weights.routed, misses, f, y, crew_alone ? shared : Ops::SharedExpert{});
  if (split.hits) {
    const Span span("experts on the card", pass.layer);
    ops.stage("experts on the card", pass.layer);
    ops.expert_ffn(weights.routed, hits, f, y);
  }
  if (!crew_alone && !shared_runs) {
    const Span span("shared expert", pass.layer);
    ops.stage("shared expert", pass.layer);
    ops.ffn(*shared.weights, f, shared.y);
  }
  if (split.misses) {
    const Span span("wait for the crew", pass.layer);
    ops.stage("wait for the crew", pass.layer);
    const auto start = std::chrono::steady_clock::now();
    ops.finish_experts();
    // A card's own waiting is not seen from here, least of all while a pass is only recorded.
    if (ops.memory().is_host())
      pass.experts->add_crew_wait(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  ops.stage("combine, write", pass.layer);
  ops.combine(routes, y, ws.shared_logit.rows(w), shared.y, ws.block.rows(w));
}

}  // namespace tandem
