// The draft head (spec/model.md section 7).
#include "runtime/pipeline_impl.h"

namespace tandem {

struct MtpHead::Impl {
  Impl(Pipeline::Impl& shared_, MtpNorm norm_, MtpAttention attention_)
      : shared(shared_),
        weights(*shared_.model.mtp),
        norm(norm_),
        attention(attention_),
        layer(make_layer_params(weights.layer)),
        head(make_hc_params(weights.head)),
        enorm(decode_floats(weights.enorm)),
        hnorm(decode_floats(weights.hnorm)) {}

  // X[s] = We e + Wh h[s] for every stream: one product over [e | h_s], or two where the file splits the projection.
  void fuse(const Pass& pass, ConstRows wide, std::span<const TokenId> next) {
    Ops& ops = pass.ops;
    Workspace& ws = pass.ws;
    const ModelShape& shape = pass.shape;
    const std::size_t w = pass.rows, d = static_cast<std::size_t>(shape.hidden);
    const std::size_t streams = static_cast<std::size_t>(shape.streams);
    ops.rms_norm(wide, norm == MtpNorm::kFull ? 1 : streams, hnorm.data(), shape.norm_eps, ws.normed.rows(w));
    shared.embed(weights.token_embd, next, ws.mixed.rows(w));
    ops.rms_norm(ws.mixed.rows(w), 1, enorm.data(), shape.norm_eps, ws.mixed.rows(w));
    const Rows x(ws.x.rows(w).data, w * streams, d);
    if (weights.eh_proj) {
      const Rows pairs = ws.concat.rows(w * streams);
      for (std::size_t i = 0; i < pairs.rows; ++i) {
        std::copy_n(ws.mixed.rows(w).row(i / streams), d, pairs.row(i));
        std::copy_n(ws.normed.rows(w).row(i / streams) + i % streams * d, d, pairs.row(i) + d);
      }
      ops.matmul(weights.eh_proj, pass.activation("mtp input", pairs, {&weights.eh_proj}), x);
      return;
    }
    ops.matmul(weights.e_proj, pass.activation("mtp embedding", ws.mixed.rows(w), {&weights.e_proj}), ws.block.rows(w));
    const ConstRows h(ws.normed.rows(w).data, w * streams, d);
    ops.matmul(weights.h_proj, pass.activation("mtp hidden", h, {&weights.h_proj}), x);
    ops.add_streams(ws.x.rows(w), ws.block.rows(w), shape.streams);
  }

  Pipeline::Impl& shared;
  const MtpWeights& weights;
  MtpNorm norm;
  MtpAttention attention;
  LayerParams layer;
  HcParams head;
  std::vector<float> enorm, hnorm;
};

MtpHead::MtpHead(Pipeline& pipeline, MtpNorm norm, MtpAttention attention) {
  CHECK(pipeline.model().mtp.has_value(), "the model has no MTP block");
  impl_ = std::make_unique<Impl>(*pipeline.impl_, norm, attention);
}
MtpHead::~MtpHead() = default;

PassOutput MtpHead::forward(SequenceState& state, ConstRows wide, std::span<const TokenId> next, PassMode mode,
                            LogitRows logits) {
  Pipeline::Impl& shared = impl_->shared;
  Workspace& ws = *shared.ws;
  const ModelShape& shape = shared.model.shape;
  const std::size_t w = next.size(), position = state.mtp.rows + state.mtp.pending;
  CHECK(w > 0 && w == wide.rows && w <= shared.max_rows, "{} tokens, {} rows", w, wide.rows);
  CHECK(mode == PassMode::kWindow || state.mtp.pending == 0, "{} rows of an open draft window", state.mtp.pending);
  CHECK(position + w <= state.context(), "{} + {} rows in {}", position, w, state.context());

  const RopeView rope = fill_rope(shape, position, 1, ws.rope_cos.rows(w), ws.rope_sin.rows(w));
  const Pass pass{shared.ops,
                  ws,
                  shape,
                  state,
                  shared.tap,
                  position,
                  w,
                  mode,
                  rope,
                  shape.layers,
                  shared.loaded.experts.get(),
                  shared.route_observer};
  impl_->fuse(pass, wide, next);
  run_layer(pass, impl_->layer, nullptr, &state.mtp.attention, impl_->attention == MtpAttention::kSparse);
  (mode == PassMode::kWindow ? state.mtp.pending : state.mtp.rows) += w;
  return shared.head(pass, impl_->head, impl_->weights.output, logits);
}

}  // namespace tandem
