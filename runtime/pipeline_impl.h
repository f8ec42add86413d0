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
  std::uint64_t identity = new_identity();
  LoadedModel loaded;  // the machine's own form of the weights
  std::vector<LayerParams> layers;
  HcParams output_hc;
  std::optional<NgramTable> ngrams;
  std::unique_ptr<Workspace> ws;
  StageTap tap;
  RouteObserver* route_observer = nullptr;

  // What a pass is given by the host, into the staging areas: embedding rows of `table`, RoPE of its positions and of
  // the blocks that it may complete.
  void prepare(const WeightView& table, std::span<const TokenId> tokens, std::size_t position) const;
  // body(first, count) for blocks of 0 .. n - 1 on the host: side by side where there are many.
  void host_blocks(std::size_t n, FunctionRef<void(std::size_t, std::size_t)> body) const;
  // Sends them; the first thing inside of a pass.
  void send_inputs(std::size_t rows) const;
  Pass make_pass(SequenceState& state, int layer, std::size_t position, std::size_t pending, std::size_t rows,
                 PassMode mode);
  // Runs the body, which is that of the holder of the identity `code`.
  // `late`: what await_late() in the body waits for.
  void run(const Pass& pass, std::uint64_t code, bool sparse, LogitRows logits,
           const std::optional<TokenChoice>& choice, const LateInput& late, FunctionRef<void()> body);
  // Final mixer and head over the rows that want logits, and the choice of their tokens; ws.x holds the pass.
  void head(const Pass& pass, const HcParams& mixer, const WeightView& output, LogitRows logits,
            const std::optional<TokenChoice>& choice) const;
  // What head left for the host.
  PassOutput output(std::size_t rows, LogitRows logits, bool chosen) const;
  // Tells observer and store of the routes of banks first .. last - 1, after the pass.
  void count_routes(int first, int last, std::size_t rows, PassMode mode) const;
};

}  // namespace tandem
