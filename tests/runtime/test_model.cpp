// Binding of the trunk: every field, every refusal, the variants of the file format, fingerprint and sampling hints.
#include <algorithm>
#include <map>
#include <set>

#include "runtime/model_tensors.h"
#include "tests/real_shape.h"
#include "tests/runtime/model_cases.h"

namespace tandem::testing {
namespace {

void expect_view(const WeightView& view, std::string_view name, std::size_t rows, std::size_t cols) {
  EXPECT_TRUE(view) << name;
  EXPECT_EQ(view.name, name);
  EXPECT_EQ(view.rows, rows) << name;
  EXPECT_EQ(view.cols, cols) << name;
}

void expect_hc(const HcWeights& hc, const std::string& stem, bool inject) {
  expect_view(hc.norm, stem + "_norm.weight", 1, 256);
  expect_view(hc.down, stem + "_down.weight", 32, 256);
  expect_view(hc.up, stem + "_up.weight", 256, 32);
  EXPECT_EQ(static_cast<bool>(hc.inject), inject) << stem;
  if (inject) expect_view(hc.inject, stem + "_inject.weight", 4, 256);
}

void expect_moe(const MoeWeights& moe, const std::string& prefix) {
  expect_view(moe.router, prefix + "ffn_gate_inp.weight", 8, 64);
  expect_view(moe.routed.gate, prefix + "ffn_gate_exps.weight", 32, 64);
  expect_view(moe.routed.up, prefix + "ffn_up_exps.weight", 32, 64);
  expect_view(moe.routed.down, prefix + "ffn_down_exps.weight", 64, 32);
  EXPECT_EQ(moe.routed.experts, 8);
  expect_view(moe.shared_gate, prefix + "ffn_gate_inp_shexp.weight", 1, 64);
  expect_view(moe.shared.gate, prefix + "ffn_gate_shexp.weight", 64, 64);
  expect_view(moe.shared.up, prefix + "ffn_up_shexp.weight", 64, 64);
  expect_view(moe.shared.down, prefix + "ffn_down_shexp.weight", 64, 64);
}

void expect_gdn(const GdnWeights& w, const std::string& prefix) {
  expect_view(w.qkv, prefix + "attn_qkv.weight", 256, 64);
  expect_view(w.gate, prefix + "attn_gate.weight", 128, 64);
  expect_view(w.conv, prefix + "ssm_conv1d.weight", 256, 4);
  expect_view(w.dt_bias, prefix + "ssm_dt.bias", 1, 4);
  expect_view(w.a, prefix + "ssm_a", 1, 4);
  expect_view(w.alpha, prefix + "ssm_alpha.weight", 4, 64);
  expect_view(w.beta, prefix + "ssm_beta.weight", 4, 64);
  expect_view(w.norm, prefix + "ssm_norm.weight", 1, 32);
  expect_view(w.out, prefix + "ssm_out.weight", 64, 128);
}

void expect_attention(const AttentionWeights& w, const std::string& prefix) {
  expect_view(w.q, prefix + "attn_q.weight", 256, 64);
  expect_view(w.k, prefix + "attn_k.weight", 64, 64);
  expect_view(w.v, prefix + "attn_v.weight", 64, 64);
  expect_view(w.out, prefix + "attn_output.weight", 64, 128);
  expect_view(w.q_norm, prefix + "attn_q_norm.weight", 1, 32);
  expect_view(w.k_norm, prefix + "attn_k_norm.weight", 1, 32);
  expect_view(w.indexer_q, prefix + "indexer.q_proj.weight", 64, 64);
  expect_view(w.indexer_k, prefix + "indexer.k_proj.weight", 32, 64);
  expect_view(w.indexer_q_norm, prefix + "indexer.q_norm.weight", 1, 32);
  expect_view(w.indexer_k_norm, prefix + "indexer.k_norm.weight", 1, 32);
}

TEST(ModelTest, BindsEveryFieldByNameAndShape) {
  const BoundModel bound = bind(base_model());
  expect_view(bound->token_embd, "token_embd.weight", 320, 64);
  expect_view(bound->output, "output.weight", 320, 64);
  expect_hc(bound->output_hc, "output_hc", false);
  expect_view(bound->ple_table, "per_layer_token_embd.weight", 512, 32);
  ASSERT_EQ(bound->layers.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    const LayerWeights& layer = bound->layers[i];
    const std::string prefix = fmt::format("blk.{}.", i);
    expect_hc(layer.hc_attn, prefix + "hc_attn", true);
    expect_hc(layer.hc_ffn, prefix + "hc_ffn", true);
    expect_moe(layer.moe, prefix);
    ASSERT_EQ(layer.gdn.has_value(), i != 3) << i;
    ASSERT_EQ(layer.attention.has_value(), i == 3) << i;
    ASSERT_EQ(layer.ple.has_value(), i == 1) << i;
    if (layer.gdn) expect_gdn(*layer.gdn, prefix);
    if (layer.attention) expect_attention(*layer.attention, prefix);
  }
  const PleWeights& ple = *bound->layers[1].ple;
  expect_view(ple.key, "blk.1.ple_key.weight", 256, 128);
  expect_view(ple.value, "blk.1.ple_value.weight", 64, 128);
  expect_view(ple.norm_key, "blk.1.ple_norm_key.weight", 1, 256);
  expect_view(ple.norm_query, "blk.1.ple_norm_query.weight", 1, 256);
  expect_view(ple.norm_conv, "blk.1.ple_norm_conv.weight", 1, 256);
  expect_view(ple.conv, "blk.1.ple_conv1d.weight", 256, 4);

  ASSERT_TRUE(bound->mtp.has_value());
  const MtpWeights& mtp = *bound->mtp;
  expect_view(mtp.enorm, "blk.4.nextn.enorm.weight", 1, 64);
  expect_view(mtp.hnorm, "blk.4.nextn.hnorm.weight", 1, 256);
  expect_view(mtp.eh_proj, "blk.4.nextn.eh_proj.weight", 64, 128);
  EXPECT_FALSE(mtp.e_proj || mtp.h_proj);
  expect_hc(mtp.head, "blk.4.nextn.hc_head", false);
  ASSERT_TRUE(mtp.layer.attention && !mtp.layer.gdn && !mtp.layer.ple);
  expect_attention(*mtp.layer.attention, "blk.4.");
  expect_moe(mtp.layer.moe, "blk.4.");
  expect_hc(mtp.layer.hc_attn, "blk.4.hc_attn", true);
  expect_hc(mtp.layer.hc_ffn, "blk.4.hc_ffn", true);
  expect_view(mtp.token_embd, "token_embd.weight", 320, 64);
  expect_view(mtp.output, "output.weight", 320, 64);
  EXPECT_EQ(joined(bound->warnings), "");
}

TEST(ModelTest, ViewsPointAtTheData) {
  GgufBuilder builder = base_model();
  const TensorSpec down = builder.find("blk.2.ffn_down_exps.weight");
  const TensorSpec norm = builder.find("output_hc_norm.weight");
  const BoundModel bound = bind(builder);
  const WeightView& view = bound->output_hc.norm;
  EXPECT_TRUE(std::equal(norm.data.begin(), norm.data.end(), view.data, view.data + view.bytes()));
  for (int e = 0; e < 8; ++e) {
    const WeightView expert = bound->layers[2].moe.routed.expert(e).down;
    const std::size_t size = down.data.size() / 8;
    EXPECT_EQ(expert.bytes(), size);
    EXPECT_TRUE(std::equal(expert.data, expert.data + size, down.data.data() + static_cast<std::size_t>(e) * size))
        << e;
  }
}

TEST(ModelTest, SurvivesAMove) {
  BoundModel bound = bind(base_model());
  const Model moved = std::move(*bound.model);
  EXPECT_EQ(moved.layers[1].ple->key.name, "blk.1.ple_key.weight");
  EXPECT_EQ(moved.gguf().find_tensor("blk.1.ple_key.weight")->data, moved.layers[1].ple->key.data);
}

// The published totals, from the same table that binds.
TEST(ModelTest, CensusOfTheRealModel) {
  const TensorList list = expected_tensors(real_shape());
  EXPECT_EQ(list.trunk.size(), 6U + 12U * 26U + 36U * 25U + 6U);
  EXPECT_EQ(list.mtp.size(), 32U);
  std::int64_t trunk = 0, mtp = 0;
  std::set<std::string> names;
  for (const auto& spec : list.trunk) {
    trunk += spec.elements();
    names.insert(spec.name);
  }
  for (const auto& spec : list.mtp) {
    mtp += spec.elements();
    names.insert(spec.name);
  }
  EXPECT_EQ(trunk, 176943899520);
  EXPECT_EQ(mtp, 2607150848);
  EXPECT_EQ(names.size(), 1256U);  // each once
}

TEST(ModelTest, CensusByComponent) {
  std::map<TensorRole, std::int64_t> sums;
  for (const auto& spec : expected_tensors(real_shape()).trunk) sums[spec.role] += spec.elements();
  EXPECT_EQ(sums[TensorRole::kExpertGate] + sums[TensorRole::kExpertUp] + sums[TensorRole::kExpertDown], 120795955200);
  EXPECT_EQ(sums[TensorRole::kGdn], 2086510464);
  EXPECT_EQ(sums[TensorRole::kAttention], 597694464);
  EXPECT_EQ(sums[TensorRole::kIndexer], 19663872);
  EXPECT_EQ(sums[TensorRole::kHyperConnection], 634060800 + 6563840);
  EXPECT_EQ(sums[TensorRole::kSharedExpert], 236052480);
  EXPECT_EQ(sums[TensorRole::kRouter], 62914560);
  EXPECT_EQ(sums[TensorRole::kPleDense], 32839680);
  EXPECT_EQ(sums[TensorRole::kEmbedding], 635699200);
  EXPECT_EQ(sums[TensorRole::kHead], 635699200);
  EXPECT_EQ(sums[TensorRole::kNgramTable], 51200245760);
}

TEST(ModelTest, EveryMissingTensorIsNamed) {
  const GgufBuilder full = base_model();
  for (tandem::TensorSpec& spec : expected_tensors(tiny_shape()).trunk) {
    GgufBuilder builder = full;
    builder.remove_tensor(spec.name);
    if (spec.role == TensorRole::kNgramTable) spec.ne[1] = 420;  // what the hash constants need
    expect_parts(refusal(builder), {"model.gguf: " + spec.name + ": expected a tensor of shape",
                                    shape_text(spec.ne, spec.n_dims), "found no tensor", "Fix: "});
  }
}

TEST(ModelTest, EveryWrongShapeIsNamed) {
  const GgufBuilder full = base_model();
  for (const tandem::TensorSpec& spec : expected_tensors(tiny_shape()).trunk) {
    if (spec.role == TensorRole::kNgramTable) continue;  // its row count is the file's
    GgufBuilder builder = full;
    TensorSpec& tensor = builder.find(spec.name);
    tensor.ne.back() += 32;
    tensor.data.clear();
    expect_parts(refusal(builder), {"model.gguf: " + spec.name + ": expected shape " + shape_text(spec.ne, spec.n_dims),
                                    "found " + shape_text(tensor.ne, spec.n_dims), "Fix: "});
  }
  GgufBuilder builder = full;
  builder.find("per_layer_token_embd.weight").ne[0] = 64;
  expect_parts(refusal(builder), {"per_layer_token_embd.weight: expected shape [32, 512], found [64, 512]"});
}

TEST(ModelTest, SwappedDimensionsAreRefused) {
  GgufBuilder builder = base_model();
  std::swap(builder.find("blk.0.attn_gate.weight").ne[0], builder.find("blk.0.attn_gate.weight").ne[1]);
  expect_parts(refusal(builder), {"blk.0.attn_gate.weight: expected shape [64, 128], found [128, 64]"});
}

TEST(ModelTest, VectorsAreFloat) {
  const TensorList list = expected_tensors(tiny_shape());
  int tried = 0;
  for (const tandem::TensorSpec& spec : list.trunk) {
    if (spec.form == TensorForm::kMatrix || spec.form == TensorForm::kBank || spec.ne[0] % 32 != 0) continue;
    GgufBuilder builder = base_model();
    TensorSpec& tensor = builder.find(spec.name);
    tensor.type_id = static_cast<std::uint32_t>(DType::Q8_0);
    tensor.data.clear();
    expect_parts(refusal(builder), {spec.name + ": expected a float type", "found type Q8_0"});
    ++tried;
  }
  EXPECT_EQ(tried, 19);
  for (const DType type : {DType::F16, DType::BF16}) {
    SyntheticOptions options;
    options.type = [type](const tandem::TensorSpec&) { return type; };
    const BoundModel bound = bind(synthetic_model(options));
    EXPECT_EQ(bound->layers[1].ple->conv.type, type);
    EXPECT_EQ(bound->layers[0].gdn->a.type, type);
  }
}

TEST(ModelTest, StorageTypesAreNoWeights) {
  for (const char* name : {"token_embd.weight", "blk.0.ffn_gate_inp.weight", "blk.0.ffn_up_exps.weight", "blk.0.ssm_a",
                           "blk.1.ple_conv1d.weight"}) {
    for (const DType type : {DType::I8, DType::I32, DType::F64}) {
      GgufBuilder builder = base_model();
      TensorSpec& tensor = builder.find(name);
      tensor.type_id = static_cast<std::uint32_t>(type);
      tensor.data.clear();
      expect_parts(refusal(builder),
                   {fmt::format("{}: expected a", name), fmt::format("found type {}", dtype_name(type))});
    }
  }
}

TEST(ModelTest, MatricesMayHaveAnyWeightType) {
  SyntheticOptions options;
  options.zeros = true;
  options.shape.hidden = 256;  // whole blocks of 256 in most rows
  options.shape.expert_ff = 256;
  options.shape.hc_rank = 256;
  int tried = 0;
  for (std::uint32_t id = 0; id < 64; ++id) {
    const DTypeInfo* info = find_dtype(id);
    if (info == nullptr || info->kind == DTypeKind::kStorage) continue;
    options.type = [&](const tandem::TensorSpec& spec) {
      return spec.form == TensorForm::kMatrix || spec.form == TensorForm::kBank ? info->type : DType::F32;
    };
    const BoundModel bound = bind(synthetic_model(options));
    const LayerWeights& layer = bound->layers[0];
    for (const WeightView* view : {&layer.moe.router, &layer.hc_attn.down, &layer.hc_attn.up, &layer.hc_attn.inject,
                                   &layer.gdn->alpha, &layer.gdn->beta, &layer.moe.shared_gate, &layer.moe.routed.gate,
                                   &layer.moe.routed.down, &bound->token_embd}) {
      EXPECT_EQ(view->type, info->type) << view->name << " " << info->name;
    }
    ++tried;
  }
  EXPECT_EQ(tried, 28);  // 3 float and 25 block types
}

TEST(ModelTest, SharedGateMayBeTwoDimensional) {
  GgufBuilder builder = base_model();
  builder.find("blk.2.ffn_gate_inp_shexp.weight").ne = {64, 1};
  expect_view(bind(builder)->layers[2].moe.shared_gate, "blk.2.ffn_gate_inp_shexp.weight", 1, 64);
  TensorSpec& tensor = builder.find("blk.2.ffn_gate_inp_shexp.weight");
  tensor.ne = {1, 64};
  tensor.type_id = static_cast<std::uint32_t>(DType::F32);
  tensor.data.clear();
  expect_parts(refusal(builder), {"ffn_gate_inp_shexp.weight: expected shape [64], found [1, 64]"});
}

TEST(ModelTest, FusedGateUpGivesTheSameExperts) {
  GgufBuilder builder = base_model();
  const BoundModel plain = bind(builder);
  fuse_gate_up(builder, 2);
  fuse_gate_up(builder, 4);
  const BoundModel fused = bind(builder);
  EXPECT_EQ(joined(fused->warnings), "");
  const auto same = [](const WeightView& a, const WeightView& b) {
    return a.bytes() == b.bytes() && std::equal(a.data, a.data + a.bytes(), b.data);
  };
  for (int e = 0; e < 8; ++e) {
    for (const auto& [a, b] : {std::pair(&plain->layers[2].moe.routed, &fused->layers[2].moe.routed),
                               std::pair(&plain->mtp->layer.moe.routed, &fused->mtp->layer.moe.routed)}) {
      EXPECT_TRUE(same(a->expert(e).gate, b->expert(e).gate)) << e;
      EXPECT_TRUE(same(a->expert(e).up, b->expert(e).up)) << e;
      EXPECT_TRUE(same(a->expert(e).down, b->expert(e).down)) << e;
    }
  }
  builder.find("blk.2.ffn_gate_up_exps.weight").ne = {64, 32, 8};
  builder.find("blk.2.ffn_gate_up_exps.weight").data.clear();
  expect_parts(refusal(builder), {"blk.2.ffn_gate_up_exps.weight: expected shape [64, 64, 8], found [64, 32, 8]"});
}

TEST(ModelTest, GateAndUpMayHaveDifferentTypes) {
  SyntheticOptions options;
  options.type = [](const tandem::TensorSpec& spec) {
    if (spec.role == TensorRole::kExpertUp) return DType::Q4_0;
    return spec.form == TensorForm::kMatrix || spec.form == TensorForm::kBank ? DType::Q8_0 : DType::F32;
  };
  GgufBuilder builder = synthetic_model(options);
  const TensorSpec up = builder.find("blk.0.ffn_up_exps.weight");
  const BoundModel bound = bind(builder);
  const WeightView last = bound->layers[0].moe.routed.expert(7).up;
  EXPECT_EQ(last.type, DType::Q4_0);
  EXPECT_TRUE(std::equal(last.data, last.data + last.bytes(), up.data.data() + up.data.size() / 8 * 7));
}

TEST(ModelTest, ScalesOfQuantisedTensors) {
  GgufBuilder builder = base_model();
  builder.tensor("blk.0.attn_qkv.scale", std::vector<float>{0.25F});
  builder.tensor("blk.0.attn_gate.weight.scale", std::vector<float>{0.5F});
  builder.tensor("blk.0.attn_qkv.input_scale", std::vector<float>{3.0F});
  builder.tensor("blk.0.ffn_gate_exps.scale", std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8});
  builder.tensor("blk.0.ffn_down_exps.scale", std::vector<float>{2.5F});
  const BoundModel bound = bind(builder);
  EXPECT_EQ(joined(bound->warnings), "");
  const LayerWeights& layer = bound->layers[0];
  EXPECT_EQ(layer.gdn->qkv.scale, 0.25F);
  EXPECT_EQ(layer.gdn->gate.scale, 0.5F);
  EXPECT_EQ(layer.gdn->out.scale, 1.0F);
  EXPECT_EQ(bound->layers[1].gdn->qkv.scale, 1.0F);
  const ExpertWeights expert = layer.moe.routed.expert(2);
  EXPECT_EQ(expert.gate.scale, 3.0F);
  EXPECT_EQ(expert.up.scale, 1.0F);
  EXPECT_EQ(expert.down.scale, 2.5F);

  builder.find("blk.0.ffn_gate_exps.scale").ne = {7};
  builder.find("blk.0.ffn_gate_exps.scale").data.resize(28);
  expect_parts(refusal(builder), {"blk.0.ffn_gate_exps.scale: expected 1 float or 8 F32 values", "found shape [7]"});
  builder.remove_tensor("blk.0.ffn_gate_exps.scale");
  builder.find("blk.0.attn_qkv.scale").ne = {2};
  builder.find("blk.0.attn_qkv.scale").data.resize(8);
  expect_parts(refusal(builder), {"blk.0.attn_qkv.scale: expected 1 float, found shape [2]"});
}

TEST(ModelTest, FusedScalesApplyToBothHalves) {
  GgufBuilder builder = base_model();
  fuse_gate_up(builder, 0);
  builder.tensor("blk.0.ffn_gate_up_exps.scale", std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8});
  const BoundModel bound = bind(builder);
  EXPECT_EQ(bound->layers[0].moe.routed.expert(4).gate.scale, 5.0F);
  EXPECT_EQ(bound->layers[0].moe.routed.expert(4).up.scale, 5.0F);
}

TEST(ModelTest, UnusedTensorsAreListedOnce) {
  GgufBuilder builder = base_model();
  builder.tensor("blk.1.attn_norm.weight", std::vector<float>{1.0F});
  const BoundModel one = bind(builder);
  ASSERT_EQ(one->warnings.size(), 1U);
  expect_parts(one->warnings[0], {"model.gguf: 1 tensor of the file is not used: blk.1.attn_norm.weight"});
  for (int i = 0; i < 11; ++i) builder.tensor(fmt::format("extra.{}", i), std::vector<float>{1.0F});
  const BoundModel many = bind(builder);
  ASSERT_EQ(many->warnings.size(), 1U);
  expect_parts(many->warnings[0], {"12 tensors of the file are not used: blk.1.attn_norm.weight, extra.0", ", ..."});
  EXPECT_EQ(many->warnings[0].find("extra.9"), std::string::npos);
}

TEST(ModelTest, MissingTrunkBlocks) {
  GgufBuilder builder = base_model();
  std::erase_if(builder.tensors(), [](const TensorSpec& t) { return t.name.starts_with("blk.2."); });
  expect_parts(refusal(builder), {"model.gguf: blk.2: expected tensors for each of the blocks 0 to 3", "found none"});
  std::erase_if(builder.tensors(), [](const TensorSpec& t) { return t.name.starts_with("blk.1."); });
  expect_parts(refusal(builder), {"blk.1: expected"});
  // Any trunk block, the first one too, makes it a model with holes and no separate MTP file.
  std::erase_if(builder.tensors(), [](const TensorSpec& t) { return t.name.starts_with("blk.3."); });
  expect_parts(refusal(builder), {"blk.1: expected tensors for each of the blocks 0 to 3"});
}

TEST(ModelTest, PaddedDownRowsAreAForeignLayout) {
  GgufBuilder builder = base_model();
  TensorSpec& down = builder.find("blk.0.ffn_down_exps.weight");
  down.ne[0] = 256;
  down.data.clear();
  expect_parts(refusal(builder), {"blk.0.ffn_down_exps.weight", "[32, 64, 8]", "[256, 64, 8]", "ds4 layout", "Fix: "});

  SyntheticOptions real;  // the real width: 640 padded to 768
  real.zeros = true;
  real.shape.expert_ff = 640;
  builder = synthetic_model(real);
  builder.find("blk.0.ffn_down_exps.weight").ne[0] = 768;
  expect_parts(refusal(builder), {"padded from 640 to 768", "ds4 layout"});
}

TEST(ModelTest, MisalignedFloatsAreRefused) {
  GgufBuilder builder = base_model();
  builder.alignment(1);
  builder.tensor("odd", DType::I8, {3});
  std::rotate(builder.tensors().begin(), builder.tensors().end() - 1, builder.tensors().end());
  expect_parts(refusal(builder), {"aligned to 4 bytes", "general.alignment"});
}

TEST(ModelTest, FingerprintFollowsWeightsAndShape) {
  const GgufBuilder base = base_model();
  const std::uint64_t print = bind(base)->fingerprint();
  EXPECT_EQ(bind(base)->fingerprint(), print);

  GgufBuilder builder = base;  // another order of tensors, another name of the model: the same weights
  std::reverse(builder.tensors().begin(), builder.tensors().end());
  builder.add("general.name", "something else");
  EXPECT_EQ(bind(builder)->fingerprint(), print);

  for (const char* name : {"blk.0.ssm_a", "output.weight", "blk.3.ffn_down_exps.weight", "blk.4.nextn.enorm.weight"}) {
    for (const double place : {0.0, 0.5, 1.0}) {
      builder = base;
      std::vector<std::uint8_t>& data = builder.find(name).data;
      data[static_cast<std::size_t>(place * static_cast<double>(data.size() - 1))] ^= 1;
      EXPECT_NE(bind(builder)->fingerprint(), print) << name << " " << place;
    }
  }
  builder = base;
  builder.add("qwen4exp.rope.freq_base", 10001.0F);
  EXPECT_NE(bind(builder)->fingerprint(), print);
  builder = base;
  builder.add("qwen4exp.expert_used_count", std::uint32_t{3});
  EXPECT_NE(bind(builder)->fingerprint(), print);
  builder = base;
  builder.add("qwen4exp.ple.layer_multipliers", std::vector<std::uint64_t>{1, 3, 5});
  EXPECT_NE(bind(builder)->fingerprint(), print);
  builder = base;
  builder.find("blk.0.ffn_gate_inp.weight").type_id = static_cast<std::uint32_t>(DType::Q5_0);
  builder.find("blk.0.ffn_gate_inp.weight").data.resize(8 * 2 * 22);
  EXPECT_NE(bind(builder)->fingerprint(), print);
}

TEST(ModelTest, SamplingHints) {
  GgufBuilder builder = base_model();
  const BoundModel plain = bind(builder);
  EXPECT_EQ(plain->sampling_thinking.temperature, 1.0F);
  EXPECT_EQ(plain->sampling_thinking.top_p, 0.95F);
  EXPECT_EQ(plain->sampling_thinking.top_k, 20);
  EXPECT_EQ(plain->sampling_thinking.min_p, 0.0F);
  EXPECT_EQ(plain->sampling_thinking.presence_penalty, 0.0F);
  EXPECT_EQ(plain->sampling_plain.temperature, 0.7F);
  EXPECT_EQ(plain->sampling_plain.top_p, 0.8F);
  EXPECT_EQ(plain->sampling_plain.top_k, 20);
  EXPECT_EQ(plain->sampling_plain.presence_penalty, 1.5F);
  EXPECT_EQ(plain->sampling_thinking.source, "published defaults");

  builder.add("general.sampling.temp", 0.6F).add("general.sampling.top_k", std::int32_t{40});
  builder.add("general.sampling.top_p", 0.95F);  // the published figure for thinking: no news for the other mode
  const BoundModel hinted = bind(builder);
  EXPECT_EQ(hinted->sampling_thinking.temperature, 0.6F);
  EXPECT_EQ(hinted->sampling_plain.temperature, 0.6F);
  EXPECT_EQ(hinted->sampling_plain.top_k, 40);
  EXPECT_EQ(hinted->sampling_plain.top_p, 0.8F);
  EXPECT_EQ(hinted->sampling_plain.presence_penalty, 1.5F);
  EXPECT_EQ(hinted->sampling_thinking.source, "file");

  builder.add("general.sampling.top_p", 1.5F);
  expect_parts(refusal(builder), {"model.gguf: general.sampling.top_p: expected a number from 0 to 1, found 1.5"});
}

TEST(ModelTest, NanoFileOfTheRepository) {
  const Model model = Model::open(TANDEM_SOURCE_DIR "/models/flash-next-nano-q4.gguf");
  EXPECT_EQ(joined(model.warnings), "");
  EXPECT_EQ(model.shape.hidden, 256);
  EXPECT_EQ(model.shape.layers, 8);
  EXPECT_EQ(model.shape.indexer_budget, 256);
  EXPECT_EQ(model.shape.ple_rows, 33152);
  EXPECT_EQ(model.shape.ple_eos, 4070);
  EXPECT_EQ(model.shape.image_token, 4082);
  EXPECT_EQ(model.layers[2].moe.routed.gate.type, DType::Q5_K);
  EXPECT_EQ(model.layers[4].moe.routed.down.type, DType::Q5_0);
  ASSERT_TRUE(model.mtp.has_value());
  EXPECT_EQ(model.mtp->layer.attention->k.type, DType::Q6_K);
  const TensorList list = expected_tensors(model.shape);
  EXPECT_EQ(list.trunk.size() + list.mtp.size(), 246U);
}

// A sparse file with every tensor of the real size: offsets and sizes beyond 32 bits, more than 2^31 elements.
TEST(ModelTest, RealSizeBindsWithoutReadingIt) {
  SyntheticOptions options;
  options.shape = real_shape();
  options.shape.ple_eos = 248044;
  options.shape.image_token = 248056;
  options.shape.ple_multipliers = {23703573157769, 20109073645365, 8052911324071};
  options.shape.ple_vocab_sizes.assign(16, 20000003);
  for (std::uint64_t h = 0; h < 16; ++h) options.shape.ple_offsets.push_back(h * 20000003);
  options.tokenizer = false;
  options.zeros = true;
  TempDir dir;
  const auto path = synthetic_model(options).write(dir / "real.gguf");
  const Model model = Model::open(path);
  EXPECT_GT(std::filesystem::file_size(path), 188000000000U);
  EXPECT_EQ(model.ple_table.rows, 320001536U);
  const ExpertWeights last = model.layers[47].moe.routed.expert(511);
  EXPECT_EQ(last.down.data + last.down.bytes() - model.layers[47].moe.routed.down.data, std::ptrdiff_t{512} * 1740800);
  EXPECT_NE(model.fingerprint(), 0U);
}

}  // namespace
}  // namespace tandem::testing
