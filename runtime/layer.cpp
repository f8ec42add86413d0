#include "runtime/layer.h"

#include <cmath>

#include "runtime/timeline.h"

namespace tandem {

namespace {
std::size_t sz(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

std::vector<float> floats_of(const WeightView& w) {
  std::vector<float> values(w.rows * w.cols);
  for (std::size_t r = 0; r < w.rows; ++r) dequantize_row(w.type, w.row(r), w.cols, values.data() + r * w.cols);
  return values;
}

// [channels, taps] of the file to [taps, channels].
Array<float> decode_taps(MachineMemory& memory, const WeightView& w) {
  const std::vector<float> flat = floats_of(w);
  std::vector<float> taps(flat.size());
  for (std::size_t c = 0; c < w.rows; ++c)
    for (std::size_t k = 0; k < w.cols; ++k) taps[k * w.rows + c] = flat[c * w.cols + k];
  return Array<float>::of(memory, taps);
}
}  // namespace

Array<float> decode_floats(MachineMemory& memory, const WeightView& w) {
  return Array<float>::of(memory, floats_of(w));
}

HcParams make_hc_params(MachineMemory& memory, const HcWeights& w) {
  return {&w, decode_floats(memory, w.norm)};
}

LayerParams make_layer_params(MachineMemory& memory, const LayerWeights& w) {
  LayerParams p;
  p.w = &w;
  p.hc_attn = make_hc_params(memory, w.hc_attn);
  p.hc_ffn = make_hc_params(memory, w.hc_ffn);
  if (w.gdn) {
    p.gdn_conv = decode_taps(memory, w.gdn->conv);
    p.dt_bias = decode_floats(memory, w.gdn->dt_bias);
    p.a = decode_floats(memory, w.gdn->a);
    p.gdn_norm = decode_floats(memory, w.gdn->norm);
  }
  if (w.attention) {
    p.q_norm = decode_floats(memory, w.attention->q_norm);
    p.k_norm = decode_floats(memory, w.attention->k_norm);
    p.index_q_norm = decode_floats(memory, w.attention->indexer_q_norm);
    p.index_k_norm = decode_floats(memory, w.attention->indexer_k_norm);
  }
  if (w.ple) {
    p.ple_key = decode_floats(memory, w.ple->norm_key);
    p.ple_query = decode_floats(memory, w.ple->norm_query);
    p.ple_norm_conv = decode_floats(memory, w.ple->norm_conv);
    p.ple_conv = decode_taps(memory, w.ple->conv);
  }
  return p;
}

void Pass::show(std::string_view stage, ConstRows x) const {
  if (!tap) return;
  MachineMemory& memory = ops.memory();
  if (memory.is_host()) return tap(stage, layer, position, x);
  CHECK(x.stride == x.cols, "{}: rows {} apart", stage, x.stride);
  std::vector<float> copy(x.rows * x.cols);
  memory.read(copy.data(), x.data, copy.size() * sizeof(float));
  tap(stage, layer, position, ConstRows(copy.data(), x.rows, x.cols));
}

void Pass::fail_not_finite(const BadValue& value, std::size_t position) {
  fail_input(
      "{}, layer {}: expected finite values, found NaN or infinity at position {}. Fix: the weights are damaged or not "
      "those of this architecture; run `tandem inspect --check`",
      value.stage, value.layer, position + value.row);
}

Pass Pass::slice(std::size_t at, std::size_t count) const {
  Pass part = *this;
  part.position = position + at;
  part.rows = count;
  part.rope = {rope.cos.slice(at, count), rope.sin.slice(at, count)};
  part.first = first + at;
  return part;
}

Activation Pass::activation(std::string_view stage, ConstRows x, std::initializer_list<const WeightView*> matrices,
                            const QuantRows& q) const {
  bool block = false;
  for (const WeightView* w : matrices) block = block || (*w && dtype_info(w->type).kind == DTypeKind::kBlock);
  Activation a{x, {}};
  if (!block) return a;
  a.q = q ? q : ws.quant(x.rows, x.cols);
  ops.stage(stage, layer);
  const std::int64_t bad = ops.quantize(x, a.q);
  if (bad >= 0) fail_not_finite({std::string(stage), layer, static_cast<std::size_t>(bad)}, position);
  return a;
}

void fill_rope(const ModelShape& shape, std::size_t first, std::size_t step, Rows cos, Rows sin) {
  const std::size_t half = sz(shape.rope_dims / 2);
  for (std::size_t i = 0; i < half; ++i) {
    const double frequency = std::pow(shape.rope_theta, -static_cast<double>(2 * i) / static_cast<double>(2 * half));
    for (std::size_t r = 0; r < cos.rows; ++r) {
      const double angle = static_cast<double>(first + r * step) * frequency;
      cos.row(r)[i] = static_cast<float>(std::cos(angle));
      sin.row(r)[i] = static_cast<float>(std::sin(angle));
    }
  }
}

void Pass::write() const {
  if (!write_waits) return;
  write_waits = false;
  ops.stage("write", layer);
  ops.hc_write(of(ws.x), of(ws.block), of(ws.inject), shape.streams);
}

void hc_read(const Pass& pass, std::string_view stage, const HcParams& params, const QuantRows& q) {
  Workspace& ws = pass.ws;
  const std::size_t w = pass.rows;
  HcRead read;
  read.streams = pass.shape.streams;
  read.eps = pass.shape.norm_eps;
  read.gamma = params.gamma.data();
  read.weights = params.w;
  read.x = pass.of(ws.x);
  if (pass.write_waits) {
    read.written = pass.of(ws.block);
    read.written_inject = pass.of(ws.inject);
    pass.write_waits = false;
  }
  read.normed = ws.normed.rows(w);
  read.low = ws.low.rows(w);
  read.gate = ws.wide_a.rows(w);
  read.inject = pass.of(ws.inject);
  read.mixed = pass.of(ws.mixed);
  read.normed_q = ws.quant(w, read.normed.cols);
  read.low_q = ws.quant(w, read.low.cols);
  read.mixed_q = q ? q : ws.quant(w, read.mixed.cols);
  pass.ops.stage(stage, pass.layer);
  const std::int64_t bad = pass.ops.hc_read(read);
  if (bad >= 0) Pass::fail_not_finite({std::string(stage), pass.layer, static_cast<std::size_t>(bad)}, pass.position);
}

void gdn_mixer(const Pass& pass, const LayerParams& params, GdnLayerState& state) {
  Ops& ops = pass.ops;
  Workspace& ws = pass.ws;
  const ModelShape& shape = pass.shape;
  const GdnWeights& weights = *params.w->gdn;
  const std::size_t w = pass.rows, kw = sz(shape.gdn_key_width()), vw = sz(shape.gdn_value_width());
  const std::size_t dim = sz(shape.gdn_dim), heads = sz(shape.gdn_value_heads);

  const Activation m =
      pass.activation("gdn input", pass.of(ws.mixed), {&weights.qkv, &weights.gate, &weights.alpha, &weights.beta});
  ops.matmuls({{weights.qkv, ws.qkv.rows(w)},
               {weights.gate, ws.z.rows(w)},
               {weights.alpha, ws.alpha.rows(w)},
               {weights.beta, ws.beta.rows(w)}},
              m);
  const bool window = pass.mode == PassMode::kWindow;
  const std::size_t channels = sz(shape.gdn_conv_width());
  const Rows conv = ws.conv.rows(w), q = ws.qn.rows(w), k = ws.kn.rows(w), decay = ws.alpha.rows(w);
  const bool block = dtype_info(weights.out.type).kind == DTypeKind::kBlock;
  const Activation r{ws.gdn_out.rows(w), block ? ws.quant(w, vw) : QuantRows{}};
  Ops::GdnStep step;
  step.layer = pass.layer;

  GdnInput& input = step.input;
  input.key_heads = sz(shape.gdn_key_heads);
  input.dim = dim;
  input.alpha = decay;
  input.beta = ws.beta.rows(w);
  input.dt_bias = params.dt_bias.data();
  input.a = params.a.data();
  input.qkv = ws.qkv.rows(w);
  input.taps = ConstRows(params.gdn_conv.data(), sz(shape.gdn_conv), channels);
  input.history = state.conv.view();
  input.log = window;
  input.eps = shape.norm_eps;
  input.scale = 1.0F / std::sqrt(static_cast<float>(dim));
  input.conv = conv;
  input.q = q;
  input.k = k;

  const std::size_t replay = pass.first == 0 ? pass.state.replay : 0;
  step.scan = {sz(shape.gdn_key_heads),
               heads,
               dim,
               state.s.data(),
               ConstRows(state.log_k.data(), replay, kw),
               ConstRows(state.log_u.data(), replay, vw),
               ConstRows(state.log_decay.data(), replay, heads),
               q,
               k,
               ConstRows(conv.data + 2 * kw, w, vw, channels),
               decay,
               ws.beta.rows(w),
               ws.gdn_out.rows(w),
               window ? Rows(state.log_u.data(), w, vw) : Rows()};

  GdnResult& result = step.result;
  result.dim = dim;
  result.o = ws.gdn_out.rows(w);
  result.z = ws.z.rows(w);
  result.norm = params.gdn_norm.data();
  result.eps = shape.norm_eps;
  result.q = r.q;
  result.k = k;
  result.decay = decay;
  if (window) {
    result.log_k = state.log_k.data();
    result.log_decay = state.log_decay.data();
  }
  const std::int64_t bad = ops.gdn_step(step);
  if (bad >= 0) Pass::fail_not_finite({"gdn output", pass.layer, static_cast<std::size_t>(bad)}, pass.position);
  if (!window) ops.memory().commit_rows(state.conv.view(), ws.qkv.rows(w));
  ops.matmul(weights.out, r, pass.of(ws.block));
}

void attention_mixer(const Pass& pass, const LayerParams& params, AttentionLayerState& state, bool sparse) {
  Ops& ops = pass.ops;
  Workspace& ws = pass.ws;
  const ModelShape& shape = pass.shape;
  const AttentionWeights& weights = *params.w->attention;
  const std::size_t w = pass.rows, dim = sz(shape.head_dim), heads = sz(shape.heads);
  const std::size_t index_heads = sz(shape.indexer_heads), index_dim = sz(shape.indexer_dim);
  const float eps = shape.norm_eps;

  const Activation m = pass.activation("attention input", pass.of(ws.mixed),
                                       {&weights.q, &weights.k, &weights.v, &weights.indexer_q, &weights.indexer_k});
  const bool selects = sparse && pass.selects();
  const Ops::Product products[] = {{weights.q, ws.q_gate.rows(w)},
                                   {weights.k, ws.k.rows(w)},
                                   {weights.v, ws.v.rows(w)},
                                   {weights.indexer_k, ws.index_k.rows(w)},
                                   {weights.indexer_q, ws.index_q.rows(w)}};
  ops.matmuls(std::span(products).first(selects ? 5 : 4), m);
  AttentionInput input;
  input.heads = heads;
  input.head_stride = 2 * dim;
  input.dim = dim;
  input.q = ws.q_gate.rows(w);
  input.k = ws.k.rows(w);
  input.v = ws.v.rows(w);
  input.q_norm = params.q_norm.data();
  input.k_norm = params.k_norm.data();
  input.eps = eps;
  input.rope = pass.rope;
  input.kv = pass.state.kv_view(state);
  input.position = pass.position;
  input.q_rot = ws.q_rot.rows(w);
  input.k_rot = ws.k_rot.rows(w);
  ops.attention_input(input);
  const std::size_t ratio = sz(shape.indexer_ratio);
  // Of the blocks from this part's first one on; the buffers begin with the pass's.
  const std::size_t skipped = pass.position / ratio - (pass.position - pass.first) / ratio, blocks = w / ratio + 1;
  const RopeView block_rope{ws.block_cos.rows(skipped + blocks).slice(skipped, blocks),
                            ws.block_sin.rows(skipped + blocks).slice(skipped, blocks)};
  ops.index_blocks({state.raw_keys.view(), pass.pending, ws.index_k.rows(w), pass.position, ratio,
                    params.index_k_norm.data(), eps, block_rope, state.pooled.data()});
  if (pass.mode == PassMode::kWindow)
    ops.memory().log_rows(state.raw_keys.view(), pass.pending, ws.index_k.rows(w));
  else
    ops.memory().commit_rows(state.raw_keys.view(), ws.index_k.rows(w));

  ops.stage("attention", pass.layer);
  if (sparse) {
    if (selects)
      ops.norm_rope(ws.index_q.rows(w), index_heads, index_dim, index_dim, params.index_q_norm.data(), eps, pass.rope,
                    ws.index_q_rot.rows(w));
    ops.select_positions(ws.index_q_rot.rows(w), index_heads,
                         ConstRows(state.pooled.data(), state.pooled.size() / index_dim, index_dim), pass.position,
                         ratio, sz(shape.indexer_blocks()), ws.lists(w));
  } else {
    ops.all_positions(pass.position, ws.lists(w));
  }
  const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
  const ConstRows gate(ws.q_gate.rows(w).data + dim, w, 2 * heads * dim - dim, 2 * heads * dim);
  ops.attention(ws.q_rot.rows(w), input.kv, ws.lists(w), scale, gate, 2 * dim, ws.attn_out.rows(w));
  ops.matmul(weights.out, pass.activation("attention output", ws.attn_out.rows(w), {&weights.out}), pass.of(ws.block));
}

void ple(const Pass& pass, const LayerParams& params, RowHistory& history) {
  Ops& ops = pass.ops;
  Workspace& ws = pass.ws;
  const ModelShape& shape = pass.shape;
  const PleWeights& weights = *params.w->ple;
  const std::size_t w = pass.rows, streams = sz(shape.streams);
  const float eps = shape.norm_eps;

  const Rows x = pass.of(ws.x), value = pass.of(ws.mixed);
  pass.write();
  if (pass.first == 0) {
    ops.await_late();
    ws.ngram.send(pass.whole);
  }
  const Activation e = pass.activation("n-gram embedding", pass.of(ws.ngram), {&weights.key, &weights.value});
  ops.matmuls({{weights.key, ws.wide_b.rows(w)}, {weights.value, value}}, e);
  ops.rms_norm(ws.wide_b.rows(w), streams, params.ple_key.data(), eps, ws.wide_b.rows(w));
  ops.rms_norm(x, streams, params.ple_query.data(), eps, ws.wide_a.rows(w));
  ops.ple_gate(ws.wide_b.rows(w), ws.wide_a.rows(w), value, shape.streams, ws.normed.rows(w));
  const Rows gated = ws.normed.rows(w), conv_in = ws.wide_a.rows(w), conv_out = ws.wide_b.rows(w);
  ops.rms_norm(gated, streams, params.ple_norm_conv.data(), eps, conv_in);
  ops.causal_conv(history.committed(), conv_in, ConstRows(params.ple_conv.data(), sz(shape.ple_conv), sz(shape.wide())),
                  sz(shape.ngram_size), conv_out);
  if (pass.mode == PassMode::kWindow)
    ops.memory().log_rows(history.view(), 0, conv_in);
  else
    ops.memory().commit_rows(history.view(), conv_in);
  ops.add2(x, gated, conv_out);
}

void run_layer(const Pass& pass, const LayerParams& params, GdnLayerState* gdn, AttentionLayerState* attention,
               bool sparse) {
  Workspace& ws = pass.ws;
  moe(pass, params.w->moe, [&](const Pass& part) {
    if (params.w->ple) ple(part, params, part.state.ple_conv);
    {
      const Span span(gdn != nullptr ? "GDN" : "attention", part.layer);
      hc_read(part, "hc_attn", params.hc_attn);
      part.show("hc_attn_mixed", part.of(ws.mixed));
      part.show("attn_inject", part.of(ws.inject));
      if (gdn != nullptr)
        gdn_mixer(part, params, *gdn);
      else
        attention_mixer(part, params, *attention, sparse);
      part.show("attn_out", part.of(ws.block));
      part.write_waits = true;
    }
    const Span span("mix before the experts", part.layer);
    hc_read(part, "hc_ffn", params.hc_ffn, ws.block_quant(pass.rows).slice(part.first, part.rows));
    part.show("hc_ffn_mixed", part.of(ws.mixed));
  });
  pass.show("ffn_out", pass.of(ws.block));
  pass.write_waits = true;
  if (!pass.tap) return;
  pass.by_parts([](const Pass& part) { part.write(); });
  pass.show("last", pass.of(ws.x));
}

}  // namespace tandem
