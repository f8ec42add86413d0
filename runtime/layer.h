// One layer of the model as named stages; the trunk and the draft block share it.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "runtime/pipeline.h"
#include "runtime/workspace.h"

namespace tandem {

// The small float vectors of a layer, decoded once into the machine's memory (norms, convolution taps transposed to
// [taps, channels], gates).
struct HcParams {
  const HcWeights* w = nullptr;
  Array<float> gamma;
};
struct LayerParams {
  const LayerWeights* w = nullptr;
  HcParams hc_attn, hc_ffn;
  Array<float> gdn_conv, dt_bias, a, gdn_norm;               // GDN
  Array<float> q_norm, k_norm, index_q_norm, index_k_norm;   // attention
  Array<float> ple_key, ple_query, ple_norm_conv, ple_conv;  // n-gram layer
};
Array<float> decode_floats(MachineMemory& memory, const WeightView& w);
HcParams make_hc_params(MachineMemory& memory, const HcWeights& w);
LayerParams make_layer_params(MachineMemory& memory, const LayerWeights& w);

// What the stages of one pass share.
struct Pass {
  Ops& ops;
  Workspace& ws;
  const ModelShape& shape;
  SequenceState& state;
  const StageTap& tap;
  std::size_t position;  // of the first row
  std::size_t rows;
  PassMode mode;
  std::size_t pending;  // rows of the open window before this pass
  RopeView rope;
  int layer = -1;
  ExpertStore* experts = nullptr;  // null: the machine reads experts from the file
  // Where this part begins in the pass (position and rows are its own), and the rows of the whole pass.
  std::size_t first = 0, whole = 0;
  // A WRITE is due: ws.block, by the logits in ws.inject, to ws.x. The next READ does it; who else reads ws.x calls
  // write() first.
  mutable bool write_waits = false;
  void write() const;

  // The rows of this part in a buffer that has all rows of the pass.
  template <typename AnyBuffer>
  Rows of(const AnyBuffer& buffer) const {
    return buffer.rows(first + rows).slice(first, rows);
  }
  // body(part) for the parts of this pass, in order. The body decides for every part alike whether a WRITE waits.
  template <typename Body>
  void by_parts(Body&& body) const {
    bool waits = write_waits;
    for (std::size_t at = 0; at < rows; at += ws.part_rows) {
      const Pass part = slice(at, std::min(ws.part_rows, rows - at));
      ops.begin_part(part.first);
      body(part);
      waits = part.write_waits;
    }
    ops.begin_part(first);
    write_waits = waits;
  }
  Pass slice(std::size_t at, std::size_t count) const;
  bool in_parts() const { return rows > ws.part_rows; }

  // Whether the last row sees more blocks than it may attend to, so that the indexer has to choose.
  bool selects() const {
    return (position + rows) / static_cast<std::size_t>(shape.indexer_ratio) >
           static_cast<std::size_t>(shape.indexer_blocks());
  }
  void show(std::string_view stage, ConstRows x) const;
  // What names the value, for a user whose weights are damaged.
  [[noreturn]] static void fail_not_finite(const BadValue& value, std::size_t position);
  // x as the input of the given matrices: quantised when one of them is a block format. Uses the one quantised buffer,
  // so the previous activation ends here, or `q` where it is given. Throws InputError when x holds a non-finite value.
  Activation activation(std::string_view stage, ConstRows x, std::initializer_list<const WeightView*> matrices,
                        const QuantRows& q = {}) const;
};

// Cosines and sines of `rows` positions first, first + step, ... in double, rounded once; host memory.
void fill_rope(const ModelShape& shape, std::size_t first, std::size_t step, Rows cos, Rows sin);

// The WRITE that waits, and READ (spec 2.2): ws.x -> ws.mixed, and ws.inject where the module has inject weights.
// `q`: where ws.mixed is quantised next, if not to the one quantised buffer. Of a part, as everything below but moe
// and run_layer.
void hc_read(const Pass& pass, std::string_view stage, const HcParams& params, const QuantRows& q = {});
// The mixers: ws.mixed -> ws.block.
void gdn_mixer(const Pass& pass, const LayerParams& params, GdnLayerState& state);
void attention_mixer(const Pass& pass, const LayerParams& params, AttentionLayerState& state, bool sparse);
// Routed and shared experts (spec 6): ws.mixed -> ws.block. Of a whole pass; `prepare` makes ws.mixed of a part, and
// quantises it to the part of ws.block_quant.
void moe(const Pass& pass, const MoeWeights& weights, FunctionRef<void(const Pass&)> prepare);
// The n-gram embedding of the PLE layer (spec 3): adds to ws.x. ws.ngram holds the gathered rows.
void ple(const Pass& pass, const LayerParams& params, RowHistory& history);

// A whole layer: ws.x -> ws.x, but its last WRITE waits (Pass::write_waits). `attention` is the state of an attention
// layer, `gdn` that of a GDN layer.
void run_layer(const Pass& pass, const LayerParams& params, GdnLayerState* gdn, AttentionLayerState* attention,
               bool sparse);

}  // namespace tandem
