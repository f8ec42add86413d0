// The draft block: bundled, separate, shared or own embedding, other names, and what is said when there is none.
#include <algorithm>

#include "tests/runtime/model_cases.h"

namespace tandem::testing {
namespace {

const ModelShape& shape() {
  static const ModelShape value = tiny_shape();
  return value;
}

GgufBuilder trunk_model() {
  SyntheticOptions options;
  options.shape.mtp_layers = 0;
  static const GgufBuilder model = synthetic_model(options);
  return model;
}

bool inside(const WeightView& view, const std::vector<std::uint8_t>& image) {
  return view.data >= image.data() && view.data < image.data() + image.size();
}

TEST(ModelMtp, BundledSharesTheEmbedding) {
  const BoundModel bound = bind(base_model());
  ASSERT_TRUE(bound->mtp.has_value());
  EXPECT_EQ(bound->shape.mtp_layers, 1);
  EXPECT_EQ(bound->mtp->token_embd.data, bound->token_embd.data);
  EXPECT_EQ(bound->mtp->output.data, bound->output.data);
  expect_parts(bound->mtp_note, {"blk.4", "model file"});
}

TEST(ModelMtp, BundledMayBringItsOwnEmbedding) {
  GgufBuilder builder = base_model();
  builder.tensor("blk.4.nextn.embed_tokens.weight", DType::F16, {64, 320});
  builder.tensor("blk.4.nextn.shared_head_head.weight", DType::F16, {64, 320});
  const BoundModel bound = bind(builder);
  EXPECT_EQ(bound->mtp->token_embd.name, "blk.4.nextn.embed_tokens.weight");
  EXPECT_EQ(bound->mtp->output.name, "blk.4.nextn.shared_head_head.weight");
  EXPECT_EQ(joined(bound->warnings), "");
  builder.find("blk.4.nextn.embed_tokens.weight").ne = {64, 319};
  expect_parts(refusal(builder), {"blk.4.nextn.embed_tokens.weight: expected shape [64, 320], found [64, 319]"});
}

TEST(ModelMtp, SwitchedOff) {
  const BoundModel bound = bind(base_model(), MtpPolicy::kOff);
  EXPECT_FALSE(bound->mtp.has_value());
  EXPECT_EQ(bound->shape.mtp_layers, 0);
  expect_parts(bound->mtp_note, {"--no-mtp"});
  EXPECT_EQ(joined(bound->warnings), "");  // the unused block is no surprise
  GgufBuilder builder = base_model();      // not even looked at
  builder.remove_tensor("blk.4.nextn.enorm.weight");
  EXPECT_EQ(refusal(builder, MtpPolicy::kOff), "bound");
}

TEST(ModelMtp, NoneInTheFile) {
  const BoundModel bound = bind(trunk_model());
  EXPECT_FALSE(bound->mtp.has_value());
  EXPECT_EQ(bound->shape.mtp_layers, 0);
  expect_parts(bound->mtp_note, {"no MTP block", "--mtp FILE"});
  EXPECT_EQ(joined(bound->warnings), "");
}

TEST(ModelMtp, AnnouncedButAbsent) {
  GgufBuilder builder = base_model();
  std::erase_if(builder.tensors(), [](const TensorSpec& t) { return t.name.starts_with("blk.4."); });
  const BoundModel bound = bind(builder);
  EXPECT_FALSE(bound->mtp.has_value());
  expect_parts(bound->mtp_note, {"announces", "blk.4"});
  expect_parts(joined(bound->warnings), {"announces", "--mtp FILE"});
}

TEST(ModelMtp, PresentButNotAnnounced) {
  GgufBuilder builder = base_model();
  builder.add("qwen4exp.nextn_predict_layers", std::uint32_t{0}).add("qwen4exp.block_count", std::uint32_t{4});
  builder.add("qwen4exp.attention.compress_ratios", std::vector<std::int32_t>{0, 0, 0, 4});
  builder.add("qwen4exp.attention.recurrent_layers", std::vector<std::int32_t>{1, 1, 1, 0});
  const BoundModel bound = bind(builder);
  EXPECT_FALSE(bound->mtp.has_value());
  expect_parts(bound->mtp_note, {"blk.4", "nextn_predict_layers is 0"});
  expect_parts(joined(bound->warnings), {"32 tensors of the file are not used"});
}

TEST(ModelMtp, EveryMissingTensorIsNamedWithTheWayOut) {
  const GgufBuilder full = base_model();
  for (const tandem::TensorSpec& spec : expected_tensors(shape()).mtp) {
    GgufBuilder builder = full;
    builder.remove_tensor(spec.name);
    expect_parts(refusal(builder), {"model.gguf: " + spec.name + ": expected a tensor", "found no tensor", "--no-mtp"});
  }
}

TEST(ModelMtp, EveryWrongShapeIsNamed) {
  const GgufBuilder full = base_model();
  for (const tandem::TensorSpec& spec : expected_tensors(shape()).mtp) {
    GgufBuilder builder = full;
    TensorSpec& tensor = builder.find(spec.name);
    tensor.ne.back() += 32;
    tensor.data.clear();
    expect_parts(refusal(builder), {spec.name + ": expected shape " + shape_text(spec.ne, spec.n_dims), "--no-mtp"});
  }
}

TEST(ModelMtp, SeparateFileWithItsOwnEmbedding) {
  const BoundModel bound = bind(trunk_model(), synthetic_mtp({}, true));
  ASSERT_TRUE(bound->mtp.has_value());
  EXPECT_EQ(bound->shape.mtp_layers, 1);
  EXPECT_TRUE(inside(bound->mtp->token_embd, bound.mtp_image));
  EXPECT_TRUE(inside(bound->mtp->output, bound.mtp_image));
  EXPECT_TRUE(inside(bound->mtp->layer.moe.routed.down, bound.mtp_image));
  EXPECT_TRUE(inside(bound->token_embd, bound.image));
  expect_parts(bound->mtp_note, {"blk.4", "mtp.gguf", "its own embedding and head"});
  EXPECT_EQ(joined(bound->warnings), "");
  ASSERT_NE(bound->mtp_gguf(), nullptr);
}

TEST(ModelMtp, SeparateFileThatBorrows) {
  const BoundModel bound = bind(trunk_model(), synthetic_mtp({}, false));
  ASSERT_TRUE(bound->mtp.has_value());
  EXPECT_EQ(bound->mtp->token_embd.data, bound->token_embd.data);
  EXPECT_EQ(bound->mtp->output.data, bound->output.data);
  EXPECT_TRUE(inside(bound->mtp->eh_proj, bound.mtp_image));
  expect_parts(bound->mtp_note, {"sharing"});
}

TEST(ModelMtp, SeparateFileReplacesTheBundledBlock) {
  const BoundModel bound = bind(base_model(), synthetic_mtp({}, false));
  EXPECT_TRUE(inside(bound->mtp->eh_proj, bound.mtp_image));
  EXPECT_EQ(joined(bound->warnings), "");
  const BoundModel off = bind(base_model(), synthetic_mtp({}, false), MtpPolicy::kOff);
  EXPECT_FALSE(off->mtp.has_value());
}

TEST(ModelMtp, BlockNumberIsTheFilesOwn) {
  GgufBuilder mtp = synthetic_mtp({}, false);
  for (TensorSpec& tensor : mtp.tensors()) {
    if (tensor.name.starts_with("blk.4.")) tensor.name.replace(0, 6, "blk.0.");
  }
  mtp.add("qwen4exp.block_count", std::uint32_t{1});
  const BoundModel bound = bind(trunk_model(), mtp);
  EXPECT_EQ(bound->mtp->enorm.name, "blk.0.nextn.enorm.weight");
  expect_parts(refusal(mtp), {"model.gguf: expected a complete model", "--mtp FILE"});
  mtp.remove("qwen4exp.nextn_predict_layers");  // nor do the names depend on what the metadata says
  rename_tensor(mtp, "blk.0.nextn.hc_head_up.weight", "output_hc_up.weight");
  EXPECT_EQ(bind(trunk_model(), mtp)->mtp->head.up.name, "output_hc_up.weight");
}

TEST(ModelMtp, OtherNamesOfTheMixer) {
  for (const bool trunk_style : {true, false}) {
    GgufBuilder mtp = synthetic_mtp({}, false);
    for (const char* part : {"norm", "down", "up"}) {
      rename_tensor(mtp, fmt::format("blk.4.nextn.hc_head_{}.weight", part),
                    trunk_style ? fmt::format("output_hc_{}.weight", part)
                                : fmt::format("blk.4.nextn.shared_head_norm.{}.weight", part));
    }
    const BoundModel bound = bind(trunk_model(), mtp);
    for (const WeightView* view : {&bound->mtp->head.norm, &bound->mtp->head.down, &bound->mtp->head.up}) {
      EXPECT_TRUE(inside(*view, bound.mtp_image)) << view->name;
    }
    EXPECT_EQ(bound->output_hc.norm.name, "output_hc_norm.weight");
    EXPECT_TRUE(inside(bound->output_hc.norm, bound.image));
    EXPECT_EQ(joined(bound->warnings), "");
  }
  GgufBuilder mtp = synthetic_mtp({}, false);
  rename_tensor(mtp, "blk.4.nextn.hc_head_norm.weight", "blk.4.nextn.shared_head_norm.weight");
  EXPECT_EQ(bind(trunk_model(), mtp)->mtp->head.norm.name, "blk.4.nextn.shared_head_norm.weight");
}

void split_projection(GgufBuilder& builder) {
  builder.remove_tensor("blk.4.nextn.eh_proj.weight");
  builder.tensor("blk.4.nextn.fc_embd.weight", DType::BF16, {64, 64});
  builder.tensor("blk.4.nextn.fc_hidden.weight", DType::BF16, {64, 64});
}

TEST(ModelMtp, SplitProjections) {
  GgufBuilder mtp = synthetic_mtp({}, false);
  split_projection(mtp);
  const BoundModel bound = bind(trunk_model(), mtp);
  EXPECT_FALSE(bound->mtp->eh_proj);
  EXPECT_EQ(bound->mtp->e_proj.name, "blk.4.nextn.fc_embd.weight");
  EXPECT_EQ(bound->mtp->h_proj.name, "blk.4.nextn.fc_hidden.weight");
  EXPECT_EQ(bound->mtp->e_proj.cols, 64U);
  mtp.remove_tensor("blk.4.nextn.fc_hidden.weight");
  expect_parts(refusal(trunk_model(), mtp), {"mtp.gguf: blk.4.nextn.fc_hidden.weight", "--no-mtp"});
}

TEST(ModelMtp, OtherNamesOnlyInASeparateFile) {
  GgufBuilder builder = base_model();
  split_projection(builder);
  expect_parts(refusal(builder), {"blk.4.nextn.eh_proj.weight: expected a tensor of shape [128, 64]"});
  builder = base_model();
  rename_tensor(builder, "blk.4.nextn.hc_head_up.weight", "blk.4.nextn.shared_head_norm.up.weight");
  expect_parts(refusal(builder), {"blk.4.nextn.hc_head_up.weight: expected a tensor"});
  // The trunk's mixer never stands in for a missing draft mixer of the same file.
  builder = base_model();
  builder.remove_tensor("blk.4.nextn.hc_head_down.weight");
  expect_parts(refusal(builder), {"blk.4.nextn.hc_head_down.weight: expected a tensor"});
}

TEST(ModelMtp, SeparateFileAsTheModel) {
  for (const bool own : {true, false}) {
    expect_parts(refusal(synthetic_mtp({}, own)),
                 {"model.gguf: expected a complete model", "only the MTP draft block", "--mtp FILE"});
  }
}

TEST(ModelMtp, FileWithoutADraftBlock) {
  expect_parts(refusal(trunk_model(), trunk_model()),
               {"mtp.gguf: expected an MTP draft block", "found none", "--no-mtp"});
}

TEST(ModelMtp, UnknownNamesAreMentioned) {
  GgufBuilder mtp = synthetic_mtp({}, false);
  rename_tensor(mtp, "blk.4.nextn.eh_proj.weight", "mtp.fc_embd.weight");
  expect_parts(refusal(trunk_model(), mtp), {"blk.4.nextn.eh_proj.weight", "named mtp.*", "not supported"});
}

TEST(ModelMtp, FilesOfDifferentModels) {
  const GgufBuilder model = trunk_model();
  const auto refused_for = [&](const char* key, auto value) {
    GgufBuilder mtp = synthetic_mtp({}, false);
    mtp.add(fmt::format("qwen4exp.{}", key), value);
    expect_parts(refusal(model, mtp),
                 {fmt::format("mtp.gguf: qwen4exp.{}: expected ", key), "as in the model file", "found", "Fix: "});
  };
  for (const char* key : {"embedding_length", "attention.head_count", "attention.head_count_kv", "attention.key_length",
                          "attention.value_length", "attention.indexer.head_count", "attention.indexer.key_length",
                          "rope.dimension_count", "hyper_connection.count", "hyper_connection.low_rank", "expert_count",
                          "expert_used_count", "expert_feed_forward_length", "expert_shared_feed_forward_length"}) {
    refused_for(key, std::uint32_t{7});
  }
  refused_for("rope.freq_base", 5.0F);
  GgufBuilder mtp = synthetic_mtp({}, false);
  mtp.add("general.architecture", "llama");
  expect_parts(refusal(model, mtp), {"mtp.gguf: general.architecture"});

  SyntheticOptions other;  // the keys are absent, the shapes tell
  other.shape.expert_ff = 64;
  mtp = synthetic_mtp(other, false);
  mtp.remove("qwen4exp.expert_feed_forward_length");
  expect_parts(refusal(model, mtp), {"mtp.gguf: blk.4.ffn_gate_exps.weight: expected shape [64, 32, 8]", "--no-mtp"});
}

TEST(ModelMtp, UnusedTensorsOfTheSeparateFile) {
  GgufBuilder mtp = synthetic_mtp({}, false);
  mtp.tensor("strange.weight", std::vector<float>{1.0F});
  expect_parts(joined(bind(trunk_model(), mtp)->warnings), {"mtp.gguf: 1 tensor", "strange.weight"});
}

TEST(ModelMtp, FullModelAsTheMtpFile) {
  const BoundModel bound = bind(trunk_model(), base_model());
  ASSERT_TRUE(bound->mtp.has_value());
  EXPECT_EQ(bound->mtp->token_embd.data, bound->token_embd.data);  // its trunk is not touched
  EXPECT_EQ(joined(bound->warnings), "");
}

TEST(ModelMtp, FingerprintCoversTheDraftBlock) {
  GgufBuilder mtp = synthetic_mtp({}, false);
  const std::uint64_t print = bind(trunk_model(), mtp)->fingerprint();
  EXPECT_NE(bind(trunk_model())->fingerprint(), print);
  mtp.find("blk.4.nextn.hnorm.weight").data[0] ^= 1;
  EXPECT_NE(bind(trunk_model(), mtp)->fingerprint(), print);
}

TEST(ModelMtp, OpensFromFiles) {
  TempDir dir;
  trunk_model().write_split(dir / "m", 3);
  const auto mtp = synthetic_mtp({}, true).write(dir / "draft.gguf");
  const Model model = Model::open(dir / shard_file_name("m", 1, 3), mtp);
  EXPECT_TRUE(model.mtp.has_value());
  EXPECT_EQ(model.gguf().shards().size(), 3U);
  EXPECT_FALSE(Model::open(dir / shard_file_name("m", 0, 3), mtp, MtpPolicy::kOff).mtp.has_value());
}

}  // namespace
}  // namespace tandem::testing
