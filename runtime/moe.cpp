// Routed and shared experts of one layer: the place where the two sides meet. The crew computes the experts that are
// off the card while the machine computes those on it and the shared expert.
#include <chrono>

#include "runtime/expert_store.h"
#include "runtime/layer.h"
#include "runtime/timeline.h"

namespace tandem {

void moe(const Pass& pass, const MoeWeights& weights) {
  Ops& ops = pass.ops;
  Workspace& ws = pass.ws;
  const std::size_t w = pass.rows, used = static_cast<std::size_t>(pass.shape.experts_used);

  const Activation f = pass.activation("expert input", ws.mixed.rows(w),
                                       {&weights.router, &weights.routed.gate, &weights.routed.up, &weights.shared.gate,
                                        &weights.shared.up, &weights.shared_gate});
  const Ops::SharedExpert shared{&weights.shared, ws.shared.rows(w)};
  const bool shared_runs = ops.start_ffn(*shared.weights, f, shared.y);
  ops.matmuls({{weights.router, ws.router.rows(w)}, {weights.shared_gate, ws.shared_logit.rows(w)}}, f);
  pass.show("router_logits", ws.router.rows(w));
  const Routes routes = ws.routes(w, used);
  ops.stage("router", pass.layer);
  const Rows y = ws.expert_y.rows(w * used);
  const Routes hits = ws.hits(w, used), misses = ws.misses(w, used);
  RouteSplit split;
  const std::int64_t bad = ops.route_split(ws.router.rows(w),
                                           {&weights.routed, pass.experts, pass.layer, routes, hits, misses,
                                            ws.route_log(static_cast<std::size_t>(pass.layer), w, used)},
                                           split);
  if (bad >= 0) Pass::fail_not_finite({"router", pass.layer, static_cast<std::size_t>(bad)}, pass.position);
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
  ops.combine(routes, y, ws.shared_logit.rows(w), ws.shared.rows(w), ws.block.rows(w));
}

}  // namespace tandem
