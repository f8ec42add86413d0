// Every matrix of a bound model that products are made with, and every bank of routed experts. Tables that only rows
// are read of (token embedding, n-gram table) are not among them.
#pragma once

#include "runtime/model.h"

namespace tandem {

template <typename Visit>
void for_each_matrix(const Model& model, Visit&& visit) {
  const auto view = [&](const WeightView& w) {
    if (w) visit(w);
  };
  const auto hc = [&](const HcWeights& w) {
    view(w.down);
    view(w.up);
    view(w.inject);
  };
  const auto layer = [&](const LayerWeights& w) {
    hc(w.hc_attn);
    hc(w.hc_ffn);
    if (w.gdn)
      for (const WeightView* m : {&w.gdn->qkv, &w.gdn->gate, &w.gdn->alpha, &w.gdn->beta, &w.gdn->out}) view(*m);
    if (w.attention)
      for (const WeightView* m : {&w.attention->q, &w.attention->k, &w.attention->v, &w.attention->out,
                                  &w.attention->indexer_q, &w.attention->indexer_k})
        view(*m);
    if (w.ple) {
      view(w.ple->key);
      view(w.ple->value);
    }
    for (const WeightView* m :
         {&w.moe.router, &w.moe.shared_gate, &w.moe.shared.gate, &w.moe.shared.up, &w.moe.shared.down})
      view(*m);
  };
  for (const LayerWeights& w : model.layers) layer(w);
  hc(model.output_hc);
  view(model.output);
  if (!model.mtp) return;
  layer(model.mtp->layer);
  hc(model.mtp->head);
  for (const WeightView* m : {&model.mtp->eh_proj, &model.mtp->e_proj, &model.mtp->h_proj}) view(*m);
  if (model.mtp->output.data != model.output.data) view(model.mtp->output);
}

template <typename Visit>
void for_each_bank(const Model& model, Visit&& visit) {
  for (const LayerWeights& w : model.layers) visit(w.moe.routed);
  if (model.mtp) visit(model.mtp->layer.moe.routed);
}

}  // namespace tandem
