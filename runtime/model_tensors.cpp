#include "runtime/model_tensors.h"

#include <algorithm>
#include <unordered_map>

#include "placement/check.h"
#include "runtime/model_shape.h"

namespace tandem {
namespace {

using Role = TensorRole;
using Form = TensorForm;

// One block's (or the global) name prefix and role flags, so that the table below reads as name, shape, role, field.
class Table {
 public:
  Table(TensorVisitor& visitor, int block, bool mtp, std::string prefix)
      : visitor_(visitor), prefix_(std::move(prefix)), block_(block), mtp_(mtp) {}

  void norm(std::string_view name, std::int64_t n, Role role, WeightView& field) {
    visitor_.tensor(spec(name, Form::kNorm, role, {n, 1, 1}, 1), field);
  }
  void vector(std::string_view name, std::int64_t n, Role role, WeightView& field) {
    visitor_.tensor(spec(name, Form::kVector, role, {n, 1, 1}, 1), field);
  }
  void conv(std::string_view name, std::int64_t taps, std::int64_t channels, Role role, WeightView& field) {
    visitor_.tensor(spec(name, Form::kConv, role, {taps, channels, 1}, 2), field);
  }
  // y = W x with in -> out; a single output row is kept as a vector in the files.
  void matrix(std::string_view name, std::int64_t in, std::int64_t out, Role role, WeightView& field) {
    visitor_.tensor(spec(name, Form::kMatrix, role, {in, out, 1}, out == 1 ? 1 : 2), field);
  }
  void bank(std::string_view name, std::array<std::int64_t, 3> ne, Role role, WeightView& expert0, std::size_t& stride,
            const float*& scales) {
    visitor_.bank(spec(name, Form::kBank, role, ne, 3), expert0, stride, scales);
  }
  std::string full(std::string_view name) const { return prefix_ + std::string(name); }
  bool has(std::string_view name) const { return visitor_.has(full(name)); }

 private:
  TensorSpec spec(std::string_view name, Form form, Role role, std::array<std::int64_t, 3> ne, int n_dims) const {
    return {full(name), {ne[0], ne[1], ne[2], 1}, n_dims, role, form, block_, mtp_};
  }
  TensorVisitor& visitor_;
  std::string prefix_;
  int block_;
  bool mtp_;
};

void visit_hc(Table& table, const ModelShape& s, std::string_view stem, HcWeights& hc) {
  const auto name = [&](std::string_view part) { return fmt::format("{}_{}.weight", stem, part); };
  table.norm(name("norm"), s.wide(), Role::kHyperConnection, hc.norm);
  table.matrix(name("down"), s.wide(), s.hc_rank, Role::kHyperConnection, hc.down);
  table.matrix(name("up"), s.hc_rank, s.wide(), Role::kHyperConnection, hc.up);
}

void visit_block_hc(Table& table, const ModelShape& s, std::string_view stem, HcWeights& hc) {
  visit_hc(table, s, stem, hc);
  table.matrix(fmt::format("{}_inject.weight", stem), s.wide(), s.streams, Role::kHyperConnection, hc.inject);
}

void visit_gdn(Table& table, const ModelShape& s, GdnWeights& w) {
  table.matrix("attn_qkv.weight", s.hidden, s.gdn_conv_width(), Role::kGdn, w.qkv);
  table.matrix("attn_gate.weight", s.hidden, s.gdn_value_width(), Role::kGdn, w.gate);
  table.conv("ssm_conv1d.weight", s.gdn_conv, s.gdn_conv_width(), Role::kGdn, w.conv);
  table.vector("ssm_dt.bias", s.gdn_value_heads, Role::kGdn, w.dt_bias);
  table.vector("ssm_a", s.gdn_value_heads, Role::kGdn, w.a);
  table.matrix("ssm_beta.weight", s.hidden, s.gdn_value_heads, Role::kGdn, w.beta);
  table.matrix("ssm_alpha.weight", s.hidden, s.gdn_value_heads, Role::kGdn, w.alpha);
  table.norm("ssm_norm.weight", s.gdn_dim, Role::kGdn, w.norm);
  table.matrix("ssm_out.weight", s.gdn_value_width(), s.hidden, Role::kGdn, w.out);
}

void visit_attention(Table& table, const ModelShape& s, AttentionWeights& w) {
  const std::int64_t kv_width = s.kv_heads * s.head_dim;
  table.matrix("attn_q.weight", s.hidden, s.heads * 2 * s.head_dim, Role::kAttention, w.q);
  table.matrix("attn_k.weight", s.hidden, kv_width, Role::kAttention, w.k);
  table.matrix("attn_v.weight", s.hidden, kv_width, Role::kAttention, w.v);
  table.matrix("attn_output.weight", s.heads * s.head_dim, s.hidden, Role::kAttention, w.out);
  table.norm("attn_q_norm.weight", s.head_dim, Role::kAttention, w.q_norm);
  table.norm("attn_k_norm.weight", s.head_dim, Role::kAttention, w.k_norm);
  table.matrix("indexer.q_proj.weight", s.hidden, s.indexer_heads * s.indexer_dim, Role::kIndexer, w.indexer_q);
  table.matrix("indexer.k_proj.weight", s.hidden, s.indexer_dim, Role::kIndexer, w.indexer_k);
  table.norm("indexer.q_norm.weight", s.indexer_dim, Role::kIndexer, w.indexer_q_norm);
  table.norm("indexer.k_norm.weight", s.indexer_dim, Role::kIndexer, w.indexer_k_norm);
}

void visit_ple(Table& table, const ModelShape& s, PleWeights& w) {
  table.matrix("ple_key.weight", s.ple_width(), s.wide(), Role::kPleDense, w.key);
  table.matrix("ple_value.weight", s.ple_width(), s.hidden, Role::kPleDense, w.value);
  table.norm("ple_norm_key.weight", s.wide(), Role::kPleDense, w.norm_key);
  table.norm("ple_norm_query.weight", s.wide(), Role::kPleDense, w.norm_query);
  table.norm("ple_norm_conv.weight", s.wide(), Role::kPleDense, w.norm_conv);
  table.conv("ple_conv1d.weight", s.ple_conv, s.wide(), Role::kPleDense, w.conv);
}

void visit_experts(Table& table, const ModelShape& s, ExpertBank& bank) {
  bank.experts = s.experts;
  constexpr std::string_view kFused = "ffn_gate_up_exps.weight";
  if (!table.has("ffn_gate_exps.weight") && table.has(kFused)) {
    WeightView both;
    table.bank(kFused, {s.hidden, 2 * s.expert_ff, s.experts}, Role::kExpertGate, both, bank.gate_up_stride,
               bank.gate_scale);
    bank.up_stride = bank.gate_up_stride;
    bank.up_scale = bank.gate_scale;
    if (both) {  // gate rows first
      bank.gate = both.slice(0, static_cast<std::size_t>(s.expert_ff));
      bank.up = both.slice(static_cast<std::size_t>(s.expert_ff), static_cast<std::size_t>(s.expert_ff));
    }
  } else {
    const std::array<std::int64_t, 3> ne{s.hidden, s.expert_ff, s.experts};
    table.bank("ffn_gate_exps.weight", ne, Role::kExpertGate, bank.gate, bank.gate_up_stride, bank.gate_scale);
    table.bank("ffn_up_exps.weight", ne, Role::kExpertUp, bank.up, bank.up_stride, bank.up_scale);
  }
  table.bank("ffn_down_exps.weight", {s.expert_ff, s.hidden, s.experts}, Role::kExpertDown, bank.down, bank.down_stride,
             bank.down_scale);
}

void visit_moe(Table& table, const ModelShape& s, MoeWeights& w) {
  table.matrix("ffn_gate_inp.weight", s.hidden, s.experts, Role::kRouter, w.router);
  visit_experts(table, s, w.routed);
  table.matrix("ffn_gate_inp_shexp.weight", s.hidden, 1, Role::kSharedExpert, w.shared_gate);
  table.matrix("ffn_gate_shexp.weight", s.hidden, s.shared_expert_ff, Role::kSharedExpert, w.shared.gate);
  table.matrix("ffn_up_shexp.weight", s.hidden, s.shared_expert_ff, Role::kSharedExpert, w.shared.up);
  table.matrix("ffn_down_shexp.weight", s.shared_expert_ff, s.hidden, Role::kSharedExpert, w.shared.down);
}

void visit_layer(Table& table, const ModelShape& s, bool gdn, bool ple, LayerWeights& layer) {
  visit_block_hc(table, s, "hc_attn", layer.hc_attn);
  visit_block_hc(table, s, "hc_ffn", layer.hc_ffn);
  if (gdn) {
    visit_gdn(table, s, layer.gdn.emplace());
  } else {
    visit_attention(table, s, layer.attention.emplace());
  }
  if (ple) visit_ple(table, s, layer.ple.emplace());
  visit_moe(table, s, layer.moe);
}

// The first of the names that the file has; the first of all when it has none, so that messages use the usual name.
std::string pick(const Table& table, std::span<const std::string> names) {
  const auto it = std::find_if(names.begin(), names.end(), [&](const std::string& name) { return table.has(name); });
  return it == names.end() ? names.front() : *it;
}

// The draft mixer is called after the block, after the trunk's mixer, or after another architecture's final norm.
std::string mixer_name(const Table& block, const Table& global, std::string_view part, bool mtp_only) {
  const std::string usual = fmt::format("nextn.hc_head_{}.weight", part);
  if (!mtp_only || block.has(usual)) return block.full(usual);
  const std::string trunk_style = fmt::format("output_hc_{}.weight", part);
  if (global.has(trunk_style)) return trunk_style;
  std::vector<std::string> names{usual, fmt::format("nextn.shared_head_norm.{}.weight", part)};
  if (part == "norm") names.emplace_back("nextn.shared_head_norm.weight");
  return block.full(pick(block, names));
}

class Collector final : public TensorVisitor {
 public:
  explicit Collector(std::vector<TensorSpec>& list, const Gguf* gguf = nullptr) : list_(list), gguf_(gguf) {}
  bool has(std::string_view name) const override { return gguf_ != nullptr && gguf_->find_tensor(name) != nullptr; }
  void tensor(const TensorSpec& spec, WeightView&) override { list_.push_back(spec); }
  void bank(const TensorSpec& spec, WeightView&, std::size_t&, const float*&) override { list_.push_back(spec); }

 private:
  std::vector<TensorSpec>& list_;
  const Gguf* gguf_;
};

void collect_trunk(const ModelShape& shape, TensorVisitor& visitor) {
  WeightView token_embd, output, ple_table;
  HcWeights output_hc;
  std::vector<LayerWeights> layers;
  visit_trunk(shape, {token_embd, output, output_hc, ple_table, layers}, visitor);
}

}  // namespace

std::string_view role_name(TensorRole role) {
  constexpr std::array<std::string_view, kTensorRoles> kNames{
      "token embedding", "output head", "hyper-connections",   "Gated DeltaNet",    "attention",
      "indexer",         "router",      "routed experts gate", "routed experts up", "routed experts down",
      "shared expert",   "PLE dense",   "n-gram table",        "MTP fusion"};
  return kNames[static_cast<std::size_t>(role)];
}

void visit_trunk(const ModelShape& shape, TrunkFields fields, TensorVisitor& visitor) {
  Table global(visitor, -1, false, "");
  global.matrix("token_embd.weight", shape.hidden, shape.vocab, Role::kEmbedding, fields.token_embd);
  global.matrix("output.weight", shape.hidden, shape.vocab, Role::kHead, fields.output);
  visit_hc(global, shape, "output_hc", fields.output_hc);
  if (shape.ple_layer >= 0) {
    global.matrix("per_layer_token_embd.weight", shape.ple_row_width, shape.ple_rows, Role::kNgramTable,
                  fields.ple_table);
  }
  fields.layers.resize(static_cast<std::size_t>(shape.layers));
  for (int i = 0; i < shape.layers; ++i) {
    const auto index = static_cast<std::size_t>(i);
    Table table(visitor, i, false, fmt::format("blk.{}.", i));
    visit_layer(table, shape, shape.is_gdn[index], i == shape.ple_layer, fields.layers[index]);
  }
}

void visit_mtp(const ModelShape& shape, int block, bool mtp_only, MtpWeights& fields, TensorVisitor& visitor) {
  Table table(visitor, block, true, fmt::format("blk.{}.", block));
  Table global(visitor, block, true, "");  // names without the block prefix
  const std::int64_t d = shape.hidden;
  table.norm("nextn.enorm.weight", d, Role::kMtpFusion, fields.enorm);
  table.norm("nextn.hnorm.weight", shape.wide(), Role::kMtpFusion, fields.hnorm);
  constexpr std::string_view kEmbeddingHalf = "nextn.fc_embd.weight";
  if (mtp_only && !table.has("nextn.eh_proj.weight") && table.has(kEmbeddingHalf)) {
    table.matrix(kEmbeddingHalf, d, d, Role::kMtpFusion, fields.e_proj);
    table.matrix("nextn.fc_hidden.weight", d, d, Role::kMtpFusion, fields.h_proj);
  } else {
    table.matrix("nextn.eh_proj.weight", 2 * d, d, Role::kMtpFusion, fields.eh_proj);
  }
  const auto mixer = [&](std::string_view part) { return mixer_name(table, global, part, mtp_only); };
  global.norm(mixer("norm"), shape.wide(), Role::kMtpFusion, fields.head.norm);
  global.matrix(mixer("down"), shape.wide(), shape.hc_rank, Role::kMtpFusion, fields.head.down);
  global.matrix(mixer("up"), shape.hc_rank, shape.wide(), Role::kMtpFusion, fields.head.up);
  // Own copies are optional; without them the trunk's are used.
  if (table.has("nextn.embed_tokens.weight")) {
    table.matrix("nextn.embed_tokens.weight", d, shape.vocab, Role::kEmbedding, fields.token_embd);
  } else if (mtp_only && global.has("token_embd.weight")) {
    global.matrix("token_embd.weight", d, shape.vocab, Role::kEmbedding, fields.token_embd);
  }
  if (table.has("nextn.shared_head_head.weight")) {
    table.matrix("nextn.shared_head_head.weight", d, shape.vocab, Role::kHead, fields.output);
  } else if (mtp_only && global.has("output.weight")) {
    global.matrix("output.weight", d, shape.vocab, Role::kHead, fields.output);
  }
  visit_layer(table, shape, false, false, fields.layer);
}

TensorList expected_tensors(const ModelShape& shape) {
  TensorList list;
  Collector trunk(list.trunk);
  collect_trunk(shape, trunk);
  MtpWeights fields;
  Collector mtp(list.mtp);
  visit_mtp(shape, shape.layers, false, fields, mtp);
  return list;
}

std::array<std::string, 2> scale_names(std::string_view tensor_name) {
  constexpr std::string_view kWeight = ".weight";
  std::string_view stem = tensor_name;
  if (stem.ends_with(kWeight)) stem.remove_suffix(kWeight.size());
  return {fmt::format("{}.scale", stem), fmt::format("{}.scale", tensor_name)};
}

std::vector<SortedTensor> sort_tensors(const Gguf& gguf, const ModelShape& shape) {
  std::vector<TensorSpec> specs;
  Collector collector(specs, &gguf);
  const bool mtp_only = is_mtp_only(gguf);
  if (!mtp_only) collect_trunk(shape, collector);
  if (const int block = find_mtp_block(gguf); block >= 0) {
    MtpWeights fields;
    visit_mtp(shape, block, mtp_only, fields, collector);
  }
  std::unordered_map<std::string_view, const TensorSpec*> by_name;
  std::vector<std::string> scales;  // stable storage for the keys below
  scales.reserve(2 * specs.size());
  for (const TensorSpec& spec : specs) {
    by_name.emplace(spec.name, &spec);
    for (std::string& name : scale_names(spec.name)) by_name.emplace(scales.emplace_back(std::move(name)), &spec);
  }
  std::vector<SortedTensor> sorted;
  sorted.reserve(gguf.tensors().size());
  for (const GgufTensor& tensor : gguf.tensors()) {
    const auto it = by_name.find(tensor.name);
    sorted.push_back({&tensor, it == by_name.end() ? std::nullopt : std::optional<TensorSpec>(*it->second)});
  }
  return sorted;
}

WeightBytes weight_bytes(std::span<const SortedTensor> tensors) {
  WeightBytes bytes;
  for (const SortedTensor& entry : tensors) {
    const auto n = static_cast<std::int64_t>(entry.tensor->bytes);
    if (!entry.spec) {
      bytes.unused += n;
      continue;
    }
    const bool mtp = entry.spec->mtp;
    switch (entry.spec->role) {
      case Role::kEmbedding:
        bytes.embedding += n;
        break;
      case Role::kHead:
        bytes.head += n;
        break;
      case Role::kNgramTable:
        bytes.ngram_table += n;
        break;
      case Role::kExpertGate:
      case Role::kExpertUp:
      case Role::kExpertDown:
        (mtp ? bytes.mtp_experts : bytes.experts) += n;
        break;
      default:
        (mtp ? bytes.mtp_dense : bytes.dense) += n;
    }
  }
  return bytes;
}

std::string shape_text(std::span<const std::int64_t> ne, int n_dims) {
  std::string text = "[";
  for (int i = 0; i < std::max(n_dims, 1); ++i) {
    text += fmt::format("{}{}", i > 0 ? ", " : "", ne[static_cast<std::size_t>(i)]);
  }
  return text + "]";
}

}  // namespace tandem
