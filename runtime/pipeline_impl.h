// What Pipeline and MtpHead share: parameters, work memory, embedding and head.
#pragma once

#include <memory>
#include <optional>

#include "runtime/layer.h"
#include "runtime/ngram.h"
#include "runtime/pipeline.h"

namespace tandem {

struct Pipeline::Impl {
  Impl(const Model& model_, Ops& ops_, std::size_t max_rows_, const LoadOptions& options);

  const Model& model;
  Ops& ops;
  std::size_t max_rows;
  LoadedModel loaded;  // the machine's own form of the weights
  std::vector<LayerParams> layers;
  HcParams output_hc;
  std::optional<NgramTable> ngrams;
  std::unique_ptr<Workspace> ws;
  StageTap tap;
  RouteObserver* route_observer = nullptr;

  // Token embedding rows of `table` to out [tokens, d].
  void embed(const WeightView& table, std::span<const TokenId> tokens, Rows out) const;
  // Final mixer and head over the rows that want logits; ws.x holds the pass. Returns the output of the pass.
  PassOutput head(const Pass& pass, const HcParams& mixer, const WeightView& output, LogitRows logits);
};

}  // namespace tandem
