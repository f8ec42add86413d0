// What Pipeline and MtpHead share: parameters, work memory, embedding and head.
#pragma once

#include <memory>
#include <optional>

#include "runtime/layer.h"
#include "runtime/ngram.h"
#include "runtime/pipeline.h"

namespace tandem {

// What is wanted of the logits of a pass.
struct Wanted {
  LogitRows rows = LogitRows::kNone;
  bool fetched = true;  // the logits themselves; otherwise a token of each row is chosen
  std::optional<TokenChoice> choice = {};
  std::size_t chosen_from = 0;   // position of the token chosen from the first row
  bool sum = false;              // over the softmax of each row, at the choice's temperature
  const TokenId* ids = nullptr;  // of the logits, in the machine's memory (Ops::choose)
};

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
  // Of all passes; or, where the machine lends the memory of the longer ones, of the short ones and of the long ones.
  std::unique_ptr<Workspace> work, long_work;
  Workspace* ws = nullptr;  // of the pass that runs, or was the last
  StageTap tap;
  RouteObserver* route_observer = nullptr;

  // A pass of so many rows is next: `ws` is its own from here on.
  Workspace& begin(std::size_t rows);
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
  void run(const Pass& pass, std::uint64_t code, bool sparse, const Wanted& wanted, const LateInput& late,
           FunctionRef<void()> body);
  // Final mixer and head over the rows that want logits, and the choice of their tokens; ws.x holds the pass.
  void head(const Pass& pass, const HcParams& mixer, const WeightView& output, const Wanted& wanted) const;
  // What head left for the host.
  PassOutput output(std::size_t rows, const Wanted& wanted) const;
  // Tells observer and store of the routes of banks first .. last - 1, after the pass.
  void count_routes(int first, int last, const Pass& pass) const;
};

}  // namespace tandem
