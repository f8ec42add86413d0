#include "runtime/pipeline.h"

#include "runtime/expert_store.h"
#include "runtime/pipeline_impl.h"
#include "runtime/timeline.h"

namespace tandem {

LoadedModel Ops::load(const Model&, const LoadOptions&) {
  return {};
}

Pipeline::Impl::Impl(const Model& model_, Ops& ops_, std::size_t max_rows_, const LoadOptions& options)
    : model(model_),
      ops(ops_),
      max_rows(std::max(max_rows_, kMaxWindow)),
      loaded(ops_.load(model_, options)),
      output_hc(make_hc_params(model_.output_hc)) {
  for (const LayerWeights& layer : model.layers) layers.push_back(make_layer_params(layer));
  if (model.shape.ple_layer >= 0) ngrams.emplace(model.shape, model.ple_table, options.ngram_in_ram);
  ws = std::make_unique<Workspace>(model.shape, max_rows, static_cast<std::size_t>(model.shape.max_positions));
}

void Pipeline::Impl::embed(const WeightView& table, std::span<const TokenId> tokens, Rows out) const {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const TokenId id = tokens[i];
    CHECK(id >= 0 && static_cast<std::size_t>(id) < table.rows, "token {} of a vocabulary of {}", id, table.rows);
    table.read_row(static_cast<std::size_t>(id), out.row(i));
  }
}

PassOutput Pipeline::Impl::head(const Pass& pass, const HcParams& mixer, const WeightView& output, LogitRows logits) {
  PassOutput out;
  out.wide = ws->x.rows(pass.rows);
  if (logits == LogitRows::kNone) return out;
  const Span span("head", pass.layer);
  hc_read(pass, "output_hc", mixer);
  pass.show("final_mixer", ws->mixed.rows(pass.rows));
  const std::size_t count = logits == LogitRows::kAll ? pass.rows : 1;
  ws->reserve_logits(count, output.rows);
  const ConstRows rows = ws->mixed.rows(pass.rows).slice(pass.rows - count, count);
  ops.matmul(output, pass.activation("head", rows, {&output}), ws->logits.rows(count));
  out.logits = ws->logits.rows(count);
  return out;
}

Pipeline::Pipeline(const Model& model, Ops& ops, std::size_t max_rows, const LoadOptions& options)
    : impl_(std::make_unique<Impl>(model, ops, max_rows, options)) {}
Pipeline::~Pipeline() = default;

std::size_t Pipeline::max_rows() const {
  return impl_->max_rows;
}
const Model& Pipeline::model() const {
  return impl_->model;
}
Ops& Pipeline::ops() {
  return impl_->ops;
}
ExpertStore* Pipeline::experts() const {
  return impl_->loaded.experts.get();
}
void Pipeline::set_tap(StageTap tap) {
  impl_->tap = std::move(tap);
}
void Pipeline::set_route_observer(RouteObserver* observer) {
  impl_->route_observer = observer;
}

PassOutput Pipeline::forward(SequenceState& state, std::span<const TokenId> tokens, PassMode mode, LogitRows logits) {
  Impl& impl = *impl_;
  Workspace& ws = *impl.ws;
  const ModelShape& shape = impl.model.shape;
  const std::size_t w = tokens.size();
  CHECK(w > 0 && w <= (mode == PassMode::kWindow ? kMaxWindow : impl.max_rows), "{} rows in a pass", w);
  CHECK(state.pending() == 0, "{} rows of an open window", state.pending());
  CHECK(w <= state.room(), "{} rows with room for {}", w, state.room());

  const std::size_t position = state.position();
  const RopeView rope = fill_rope(shape, position, 1, ws.rope_cos.rows(w), ws.rope_sin.rows(w));
  Pass pass{impl.ops,           ws, shape, state, impl.tap, position, w, mode, rope, -1, impl.loaded.experts.get(),
            impl.route_observer};
  impl.embed(impl.model.token_embd, tokens, ws.block.rows(w));
  impl.ops.tile_streams(ws.block.rows(w), shape.streams, ws.x.rows(w));
  if (impl.ngrams) {
    const auto before = state.history_before(static_cast<std::size_t>(shape.ngram_size - 1));
    impl.ngrams->gather(before, tokens, ws.ngram.rows(w));
  }
  if (pass.experts != nullptr) pass.experts->begin_round(mode == PassMode::kWindow || w == 1, w);
  for (std::size_t i = 0; i < impl.layers.size(); ++i) {
    pass.layer = static_cast<int>(i);
    run_layer(pass, impl.layers[i], shape.is_gdn[i] ? &state.gdn[i] : nullptr,
              shape.is_gdn[i] ? nullptr : &state.attention[i], true);
  }
  pass.layer = -1;
  if (mode == PassMode::kWindow)
    state.append_window(tokens);
  else
    state.append_committed(tokens);
  return impl.head(pass, impl.output_hc, impl.model.output, logits);
}

bool Pipeline::prefill(SequenceState& state, std::span<const TokenId> tokens, std::size_t chunk, LogitRows logits,
                       const std::function<void(std::size_t, const PassOutput&)>& on_rows,
                       const std::function<bool()>& cancelled) {
  CHECK(chunk > 0 && chunk <= impl_->max_rows, "chunks of {} rows, at most {}", chunk, impl_->max_rows);
  for (std::size_t done = 0; done < tokens.size();) {
    if (cancelled && cancelled()) return false;
    const std::size_t count = std::min(chunk, tokens.size() - done);
    const bool last = done + count == tokens.size();
    const std::size_t position = state.position();
    const PassOutput out = forward(state, tokens.subspan(done, count), PassMode::kCommit,
                                   logits == LogitRows::kLast && !last ? LogitRows::kNone : logits);
    if (on_rows && out.logits) on_rows(position + count - out.logits.rows, out);
    done += count;
  }
  return true;
}

}  // namespace tandem
