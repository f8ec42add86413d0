// The draft head (spec/model.md section 7).
#include "runtime/pipeline_impl.h"

namespace tandem {

struct MtpHead::Impl {
  Impl(Pipeline::Impl& shared_, MtpNorm norm_, MtpAttention attention_)
      : shared(shared_),
        weights(*shared_.model.mtp),
        norm(norm_),
        attention(attention_),
        layer(make_layer_params(shared_.ops.memory(), weights.layer)),
        head(make_hc_params(shared_.ops.memory(), weights.head)),
        enorm(decode_floats(shared_.ops.memory(), weights.enorm)),
        hnorm(decode_floats(shared_.ops.memory(), weights.hnorm)),
        ids(Array<TokenId>::of(shared_.ops.memory(), weights.output_ids)) {}

  // X[s] = We e + Wh h[s] for every stream: one product over [e | h_s], or two where the file splits the projection.
  void fuse(const Pass& pass, ConstRows wide) const {
    pass.by_parts([&](const Pass& part) { fuse_part(part, wide.slice(part.first, part.rows)); });
  }
  void fuse_part(const Pass& pass, ConstRows wide) const {
    Ops& ops = pass.ops;
    Workspace& ws = pass.ws;
    const ModelShape& shape = pass.shape;
    const Rows wide_x = pass.of(ws.x), mixed = pass.of(ws.mixed), block = pass.of(ws.block);
    const std::size_t w = pass.rows, d = static_cast<std::size_t>(shape.hidden);
    const std::size_t streams = static_cast<std::size_t>(shape.streams);
    ops.rms_norm(wide, norm == MtpNorm::kFull ? 1 : streams, hnorm.data(), shape.norm_eps, ws.normed.rows(w));
    ops.rms_norm(pass.of(ws.embedding), 1, enorm.data(), shape.norm_eps, mixed);
    const Rows x(wide_x.data, w * streams, d);
    if (weights.eh_proj) {
      const Rows pairs = ws.concat.rows(w * streams);
      ops.pair_streams(mixed, ws.normed.rows(w), shape.streams, pairs);
      ops.matmul(weights.eh_proj, pass.activation("mtp input", pairs, {&weights.eh_proj}), x);
      return;
    }
    ops.matmul(weights.e_proj, pass.activation("mtp embedding", mixed, {&weights.e_proj}), block);
    const ConstRows h(ws.normed.rows(w).data, w * streams, d);
    ops.matmul(weights.h_proj, pass.activation("mtp hidden", h, {&weights.h_proj}), x);
    ops.add_streams(wide_x, block, shape.streams);
  }

  Pipeline::Impl& shared;
  const MtpWeights& weights;
  MtpNorm norm;
  MtpAttention attention;
  LayerParams layer;
  HcParams head;
  Array<float> enorm, hnorm;
  Array<TokenId> ids;  // of the logits; empty: all
  std::uint64_t identity = new_identity();
};

MtpHead::MtpHead(Pipeline& pipeline, MtpNorm norm, MtpAttention attention) {
  CHECK(pipeline.model().mtp.has_value(), "the model has no MTP block");
  impl_ = std::make_unique<Impl>(*pipeline.impl_, norm, attention);
}
MtpHead::~MtpHead() = default;

PassOutput MtpHead::forward(SequenceState& state, ConstRows wide, std::span<const TokenId> next, PassMode mode,
                            LogitRows logits, const std::optional<DraftChoice>& choice) {
  Pipeline::Impl& shared = impl_->shared;
  const ModelShape& shape = shared.model.shape;
  const std::size_t w = next.size(), position = state.mtp.rows + state.mtp.pending;
  CHECK(w > 0 && w == wide.rows && w <= shared.max_rows, "{} tokens, {} rows", w, wide.rows);
  CHECK(mode == PassMode::kWindow || state.mtp.pending == 0, "{} rows of an open draft window", state.mtp.pending);
  CHECK(position + w <= state.context(), "{} + {} rows in {}", position, w, state.context());
  CHECK(!choice || logits == LogitRows::kLast, "a draft is chosen from the last row");

  const bool sparse = impl_->attention == MtpAttention::kSparse;
  // The trunk's pass has asked for these rows as well (cache_rows_needed), unless the head runs by itself.
  if (position + w > state.needed_rows()) state.need_rows(static_cast<std::int64_t>(position + w));
  Workspace& ws = shared.begin(w);
  shared.prepare(impl_->weights.token_embd, next, position);
  // The rows may be the last pass's own.
  const bool sent = !shared.ops.memory().is_host();
  for (std::size_t r = 0; sent && r < w; ++r) std::copy_n(wide.row(r), wide.cols, ws.wide_in.host(w).row(r));
  ws.reserve_logits(logits == LogitRows::kAll ? w : logits == LogitRows::kLast ? 1 : 0, impl_->weights.output.rows);
  if (!sparse) ws.reserve_positions(ws.part_rows, position + w);
  const Pass pass = shared.make_pass(state, shape.layers, position, state.mtp.pending, w, mode);
  Wanted wanted{.rows = logits};
  if (choice)
    wanted = {.rows = logits,
              .fetched = !choice->alone,
              .choice = choice->choice,
              .chosen_from = choice->position,
              .sum = true,
              .ids = impl_->ids.empty() ? nullptr : impl_->ids.data()};
  shared.run(pass, impl_->identity, sparse, wanted, {}, [&] {
    shared.send_inputs(w);
    if (sent) ws.wide_in.send(w);
    impl_->fuse(pass, sent ? ConstRows(ws.wide_in.rows(w)) : wide);
    run_layer(pass, impl_->layer, nullptr, &state.mtp.attention, sparse);
    shared.head(pass, impl_->head, impl_->weights.output, wanted);
  });
  (mode == PassMode::kWindow ? state.mtp.pending : state.mtp.rows) += w;
  shared.count_routes(shape.layers, shape.layers + 1, pass);
  PassOutput out = shared.output(w, wanted);
  out.ids = impl_->weights.output_ids;
  return out;
}

}  // namespace tandem
