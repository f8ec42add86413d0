// Routed and shared experts of one layer: the place where, from the placement work on, two machines meet.
#include "runtime/layer.h"

namespace tandem {

void moe(const Pass& pass, const MoeWeights& weights) {
  Ops& ops = pass.ops;
  Workspace& ws = pass.ws;
  const std::size_t w = pass.rows, used = static_cast<std::size_t>(pass.shape.experts_used);

  const Activation f = pass.activation("expert input", ws.mixed.rows(w),
                                       {&weights.router, &weights.routed.gate, &weights.routed.up, &weights.shared.gate,
                                        &weights.shared.up, &weights.shared_gate});
  ops.matmul(weights.router, f, ws.router.rows(w));
  pass.show("router_logits", ws.router.rows(w));
  const Routes routes = ws.routes(w, used);
  const std::int64_t bad = ops.route(ws.router.rows(w), routes);
  if (bad >= 0)
    fail_input(
        "router, layer {}: expected finite values, found NaN at position {}. Fix: the weights are damaged or not "
        "those of this architecture; run `tandem inspect --check`",
        pass.layer, pass.position + static_cast<std::size_t>(bad));
  pass.tell(routes);
  ops.expert_ffn(weights.routed, routes, f, ws.expert_y.rows(w * used));
  ops.ffn(weights.shared, f, ws.shared.rows(w));
  ops.matmul(weights.shared_gate, f, ws.shared_logit.rows(w));
  ops.combine(routes, ws.expert_y.rows(w * used), ws.shared_logit.rows(w), ws.shared.rows(w), ws.block.rows(w));
}

}  // namespace tandem
