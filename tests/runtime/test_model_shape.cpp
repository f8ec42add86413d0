// Metadata of qwen4exp: every number is read, every refusal names file and key.
#include <functional>

#include "runtime/model_shape.h"
#include "tests/runtime/model_cases.h"

namespace tandem::testing {
namespace {

std::string key(std::string_view name) {
  return "qwen4exp." + std::string(name);
}

using Mutation = std::function<void(GgufBuilder&)>;

void expect_refused(const Mutation& mutate, std::initializer_list<std::string_view> parts) {
  GgufBuilder builder = base_model();
  mutate(builder);
  const std::string message = refusal(builder);
  expect_parts(message, {"model.gguf: ", "expected", "Fix: "});
  expect_parts(message, parts);
}

template <typename T>
Mutation set(std::string_view name, T value) {
  return [name = key(name), value](GgufBuilder& builder) { builder.add(name, value); };
}

TEST(ModelShapeTest, ReadsEveryNumber) {
  const ModelShape expected = tiny_shape();
  const BoundModel bound = bind(base_model());
  const ModelShape& s = bound->shape;
  EXPECT_EQ(s.hidden, expected.hidden);
  EXPECT_EQ(s.vocab, expected.vocab);
  EXPECT_EQ(s.layers, expected.layers);
  EXPECT_EQ(s.mtp_layers, expected.mtp_layers);
  EXPECT_EQ(s.max_positions, expected.max_positions);
  EXPECT_EQ(s.norm_eps, expected.norm_eps);
  EXPECT_EQ(s.is_gdn, expected.is_gdn);
  EXPECT_EQ(s.streams, expected.streams);
  EXPECT_EQ(s.hc_rank, expected.hc_rank);
  EXPECT_EQ(s.heads, expected.heads);
  EXPECT_EQ(s.kv_heads, expected.kv_heads);
  EXPECT_EQ(s.head_dim, expected.head_dim);
  EXPECT_EQ(s.rope_dims, expected.rope_dims);
  EXPECT_EQ(s.rope_theta, expected.rope_theta);
  EXPECT_EQ(s.indexer_heads, expected.indexer_heads);
  EXPECT_EQ(s.indexer_dim, expected.indexer_dim);
  EXPECT_EQ(s.indexer_ratio, expected.indexer_ratio);
  EXPECT_EQ(s.indexer_budget, expected.indexer_budget);
  EXPECT_EQ(s.gdn_key_heads, expected.gdn_key_heads);
  EXPECT_EQ(s.gdn_value_heads, expected.gdn_value_heads);
  EXPECT_EQ(s.gdn_dim, expected.gdn_dim);
  EXPECT_EQ(s.gdn_conv, expected.gdn_conv);
  EXPECT_EQ(s.experts, expected.experts);
  EXPECT_EQ(s.experts_used, expected.experts_used);
  EXPECT_EQ(s.expert_ff, expected.expert_ff);
  EXPECT_EQ(s.shared_expert_ff, expected.shared_expert_ff);
  EXPECT_EQ(s.ple_layer, expected.ple_layer);
  EXPECT_EQ(s.ngram_size, expected.ngram_size);
  EXPECT_EQ(s.heads_per_ngram, expected.heads_per_ngram);
  EXPECT_EQ(s.ple_row_width, expected.ple_row_width);
  EXPECT_EQ(s.ple_conv, expected.ple_conv);
  EXPECT_EQ(s.ple_rows, expected.ple_rows);
  EXPECT_EQ(s.ple_eos, expected.ple_eos);
  EXPECT_EQ(s.image_token, expected.image_token);
  EXPECT_EQ(s.ple_multipliers, expected.ple_multipliers);
  EXPECT_EQ(s.ple_vocab_sizes, expected.ple_vocab_sizes);
  EXPECT_EQ(s.ple_offsets, expected.ple_offsets);
}

TEST(ModelShapeTest, AnyIntegerTypeIsRead) {
  GgufBuilder builder = base_model();
  builder.add(key("embedding_length"), std::int64_t{64}).add(key("block_count"), std::uint8_t{5});
  builder.add(key("expert_count"), std::int16_t{8}).add(key("attention.head_count"), std::uint64_t{4});
  builder.add(key("attention.compress_ratios"), std::vector<std::uint64_t>{0, 0, 0, 4, 0});
  builder.add(key("attention.recurrent_layers"), std::vector<std::int64_t>{1, 1, 1, 0, 0});
  builder.add(key("ple.head_offsets"), std::vector<std::int32_t>{0, 101, 204, 311});
  EXPECT_EQ(refusal(builder), "bound");
}

TEST(ModelShapeTest, MissingKeysAreNamed) {
  for (const char* name : {"context_length",
                           "embedding_length",
                           "block_count",
                           "attention.head_count",
                           "attention.head_count_kv",
                           "attention.key_length",
                           "attention.value_length",
                           "attention.layer_norm_rms_epsilon",
                           "attention.compress_ratios",
                           "attention.indexer.head_count",
                           "attention.indexer.key_length",
                           "attention.indexer.top_k",
                           "rope.dimension_count",
                           "rope.freq_base",
                           "ssm.conv_kernel",
                           "ssm.state_size",
                           "ssm.group_count",
                           "ssm.time_step_rank",
                           "ssm.inner_size",
                           "expert_count",
                           "expert_used_count",
                           "expert_feed_forward_length",
                           "expert_shared_feed_forward_length",
                           "hyper_connection.count",
                           "hyper_connection.low_rank",
                           "embedding_length_per_layer_input",
                           "ple.ngram_size",
                           "ple.heads_per_ngram",
                           "ple.conv_kernel",
                           "ple.eos_token_id",
                           "ple.layer_multipliers",
                           "ple.head_vocab_sizes",
                           "ple.head_offsets"}) {
    GgufBuilder builder = base_model();
    builder.remove(key(name));
    expect_parts(refusal(builder), {"model.gguf", key(name)});
  }
  GgufBuilder builder = base_model();
  builder.remove(key("attention.recurrent_layers"));  // then the interval is required
  expect_parts(refusal(builder), {"model.gguf", key("full_attention_interval")});
  builder = base_model();
  builder.remove("general.architecture");
  expect_parts(refusal(builder), {"model.gguf", "general.architecture"});
}

TEST(ModelShapeTest, ZeroIsRefused) {
  for (const char* name : {"context_length",
                           "embedding_length",
                           "attention.head_count",
                           "attention.head_count_kv",
                           "attention.key_length",
                           "attention.indexer.head_count",
                           "attention.indexer.key_length",
                           "attention.indexer.top_k",
                           "rope.dimension_count",
                           "ssm.conv_kernel",
                           "ssm.state_size",
                           "ssm.group_count",
                           "ssm.time_step_rank",
                           "ssm.inner_size",
                           "expert_count",
                           "expert_used_count",
                           "expert_feed_forward_length",
                           "expert_shared_feed_forward_length",
                           "hyper_connection.count",
                           "hyper_connection.low_rank",
                           "full_attention_interval",
                           "embedding_length_per_layer_input",
                           "ple.conv_kernel",
                           "ple.heads_per_ngram"}) {
    expect_refused(set(name, std::uint32_t{0}), {key(name) + ":", "found 0"});
  }
  expect_refused(set("rope.freq_base", 0.0F), {key("rope.freq_base"), "positive", "found 0"});
  expect_refused(set("attention.layer_norm_rms_epsilon", -1e-6F), {"layer_norm_rms_epsilon", "positive"});
}

TEST(ModelShapeTest, HugeNumbersAreRefusedBeforeTheyOverflow) {
  for (const char* name : {"embedding_length", "attention.head_count", "attention.key_length", "ssm.state_size",
                           "expert_count", "expert_feed_forward_length", "hyper_connection.low_rank", "block_count"}) {
    expect_refused(set(name, std::uint32_t{0xFFFFFFFF}), {key(name) + ":", "found 4294967295"});
  }
}

TEST(ModelShapeTest, OtherArchitecture) {
  expect_refused([](GgufBuilder& b) { b.add("general.architecture", "llama"); },
                 {"general.architecture", "expected \"qwen4exp\"", "found \"llama\""});
}

TEST(ModelShapeTest, BlockCounts) {
  expect_refused(set("block_count", std::uint32_t{1}),
                 {"block_count", "more than nextn_predict_layers = 1", "found 1"});
  expect_refused(set("nextn_predict_layers", std::uint32_t{2}), {"nextn_predict_layers", "0 or 1", "found 2"});
}

TEST(ModelShapeTest, HyperConnectionsNeedSeveralStreams) {
  expect_refused(set("hyper_connection.count", std::uint32_t{1}), {"hyper_connection.count", "from 2", "found 1"});
}

TEST(ModelShapeTest, LayerKinds) {
  using Bools = std::vector<std::uint8_t>;
  // The array overrides the interval, which alone would make layers 1 and 3 attention layers.
  GgufBuilder builder = base_model();
  builder.add(key("full_attention_interval"), std::uint32_t{2});
  EXPECT_EQ(bind(builder)->shape.is_gdn, (std::vector<bool>{true, true, true, false}));
  builder.remove(key("attention.recurrent_layers"));
  expect_parts(refusal(builder), {"attention.compress_ratios", "attention layer 1", "found 0"});
  builder.add(key("full_attention_interval"), std::uint32_t{4});
  EXPECT_EQ(bind(builder)->shape.is_gdn, (std::vector<bool>{true, true, true, false}));

  expect_refused(set("attention.recurrent_layers", Bools{1, 1, 1, 0}),
                 {"attention.recurrent_layers", "5 entries (block_count)", "found 4"});
  expect_refused(set("attention.recurrent_layers", Bools{1, 1, 1, 1, 0}), {"at least one full-attention layer"});
}

TEST(ModelShapeTest, CompressRatios) {
  using Ints = std::vector<std::int32_t>;
  expect_refused(set("attention.compress_ratios", Ints{0, 0, 0, 4}),
                 {"attention.compress_ratios", "5 entries (block_count)", "found 4"});
  expect_refused(set("attention.compress_ratios", Ints{0, 0, 0, 4, 0, 0}), {"compress_ratios", "found 6"});
  expect_refused(set("attention.compress_ratios", Ints{0, 4, 0, 4, 0}), {"linear-attention layer 1", "found 4"});
  expect_refused(set("attention.compress_ratios", Ints{0, 0, 0, 0, 0}), {"attention layer 3", "found 0"});
  expect_refused(set("attention.compress_ratios", Ints{0, 0, 0, -4, 0}), {"attention layer 3", "found -4"});
  expect_refused(set("attention.compress_ratios", Ints{0, 0, 0, 3, 0}),
                 {"indexer.top_k", "multiple of the pooling ratio 3"});
  GgufBuilder builder = base_model();  // the draft block may state its own ratio
  builder.add(key("attention.compress_ratios"), Ints{0, 0, 0, 4, 4});
  EXPECT_EQ(bind(builder)->shape.indexer_ratio, 4);

  SyntheticOptions two;
  two.shape.layers = 5;
  two.shape.is_gdn = {true, true, true, false, false};
  builder = synthetic_model(two);
  EXPECT_EQ(refusal(builder), "bound");
  builder.add(key("attention.compress_ratios"), Ints{0, 0, 0, 4, 8, 0});
  expect_parts(refusal(builder), {"compress_ratios", "expected 4 for every attention layer", "found 8 for layer 4"});
}

TEST(ModelShapeTest, AttentionRelations) {
  expect_refused(set("attention.head_count", std::uint32_t{3}),
                 {"head_count", "multiple of head_count_kv = 2", "found 3"});
  expect_refused(set("attention.value_length", std::uint32_t{64}), {"value_length", "32 (key_length)", "found 64"});
  expect_refused(set("attention.scale", 0.5F), {"attention.scale", "no such key", "found 0.5"});
  GgufBuilder builder = base_model();
  builder.add(key("attention.scale"), 0.17677669F);  // 1 / sqrt(32), what is used anyway
  EXPECT_EQ(refusal(builder), "bound");
}

TEST(ModelShapeTest, Rope) {
  using Ints = std::vector<std::int32_t>;
  expect_refused(set("rope.dimension_count", std::uint32_t{15}), {"rope.dimension_count", "even", "found 15"});
  expect_refused(set("rope.dimension_count", std::uint32_t{34}), {"rope.dimension_count", "from 2 to 32", "found 34"});
  expect_refused(set("rope.dimension_sections", Ints{4, 4}), {"rope.dimension_sections", "3 or 4 entries", "found 2"});
  expect_refused(set("rope.dimension_sections", Ints{4, 4, 0, 0, 0}), {"3 or 4 entries", "found 5"});
  expect_refused(set("rope.dimension_sections", Ints{9, -1, 0}), {"rope.dimension_sections", "found -1"});
  GgufBuilder builder = base_model();
  builder.add(key("rope.dimension_sections"), Ints{4, 2, 2});  // some writers leave out the fourth
  EXPECT_EQ(joined(bind(builder)->warnings), "");
  builder.add(key("rope.dimension_sections"), Ints{4, 2, 1, 0});
  expect_parts(joined(bind(builder)->warnings), {"rope.dimension_sections", "add up to 7", "expected 8"});
}

TEST(ModelShapeTest, RopeScalingIsWarnedAbout) {
  GgufBuilder builder = base_model();
  builder.add(key("rope.scaling.type"), "yarn").add(key("rope.scaling.factor"), 4.0F);
  expect_parts(joined(bind(builder)->warnings),
               {"qwen4exp.rope.scaling.type", "qwen4exp.rope.scaling.factor", "not applied", "512"});
  builder.add(key("rope.scaling.type"), "none");
  EXPECT_EQ(joined(bind(builder)->warnings), "");
}

TEST(ModelShapeTest, GdnRelations) {
  expect_refused(set("ssm.inner_size", std::uint32_t{256}), {"ssm.inner_size", "128", "found 256"});
  expect_refused(set("ssm.group_count", std::uint32_t{3}),
                 {"ssm.time_step_rank", "multiple of group_count = 3", "found 4"});
}

TEST(ModelShapeTest, Experts) {
  expect_refused(set("expert_used_count", std::uint32_t{9}), {"expert_used_count", "from 1 to 8", "found 9"});
  expect_refused(set("expert_shared_count", std::uint32_t{2}), {"expert_shared_count", "found 2"});
  expect_refused(set("expert_gating_func", std::uint32_t{2}), {"expert_gating_func", "found 2"});
  expect_refused(set("expert_weights_scale", 2.5F), {"expert_weights_scale", "found 2.5"});
  expect_refused(set("expert_weights_norm", false), {"expert_weights_norm", "found false"});
  for (const int experts : {256, 288, 320, 512}) {
    SyntheticOptions options;
    options.shape.experts = experts;
    options.zeros = true;
    const BoundModel bound = bind(synthetic_model(options));
    EXPECT_EQ(bound->shape.experts, experts);
    EXPECT_EQ(bound->layers[2].moe.routed.experts, experts);
    EXPECT_EQ(bound->layers[2].moe.router.rows, static_cast<std::size_t>(experts));
  }
}

TEST(ModelShapeTest, PleLayer) {
  using Ints = std::vector<std::int32_t>;
  expect_refused(set("ple.layers", Ints{1, 2}), {"ple.layers", "at most one", "found 2 layers"});
  expect_refused(set("ple.layers", Ints{4}), {"ple.layers", "0 to 3", "found 4"});
  expect_refused(set("ple.layers", Ints{-1}), {"ple.layers", "found -1"});
  expect_refused(set("ple.layers", Ints{3}),
                 {"ple.layers", "linear-attention layer", "found 3, a full-attention layer"});
}

TEST(ModelShapeTest, PleSizes) {
  expect_refused(set("ple.ngram_size", std::uint32_t{1}), {"ple.ngram_size", "from 2 to 8", "found 1"});
  expect_refused(set("ple.ngram_size", std::uint32_t{9}), {"ple.ngram_size", "from 2 to 8", "found 9"});
  expect_refused(set("ple.heads_per_ngram", std::uint32_t{33}), {"ple.heads_per_ngram", "at most 64", "found 66"});
  expect_refused(set("ple.eos_token_id", std::uint32_t{320}), {"ple.eos_token_id", "0 to 319", "found 320"});
  expect_refused(set("ple.image_token_id", std::uint32_t{320}), {"ple.image_token_id", "found 320"});
}

TEST(ModelShapeTest, PleConstants) {
  using Words = std::vector<std::uint64_t>;
  expect_refused(set("ple.layer_multipliers", Words{1, 3}), {"ple.layer_multipliers", "at least 3", "found 2"});
  expect_refused(set("ple.head_vocab_sizes", Words{101, 103, 107}), {"ple.head_vocab_sizes", "at least 4", "found 3"});
  expect_refused(set("ple.head_offsets", Words{0, 101, 204}), {"ple.head_offsets", "at least 4", "found 3"});
  expect_refused(set("ple.head_vocab_sizes", Words{101, 0, 107, 109}), {"head_vocab_sizes", "found 0 for head 1"});
  expect_refused(set("ple.head_vocab_sizes", Words{101, 103, 107, 1ULL << 31}), {"head_vocab_sizes", "for head 3"});
  expect_refused(set("ple.head_offsets", Words{0, 1ULL << 31, 204, 311}), {"head_offsets", "for head 1"});
  expect_refused(set("ple.head_offsets", Words{0, 101, 204, 0x7FFFFFFFULL}), {"head_offsets", "for head 3"});
  expect_refused(set("ple.head_offsets", Words{0, ~0ULL, 204, 311}), {"head_offsets", "for head 1"});
  expect_refused(set("ple.head_offsets", Words{0, 101, 204, 404}),
                 {"per_layer_token_embd.weight", "at least 513 rows", "found 512"});
  GgufBuilder builder = base_model();  // the last row is usable; longer arrays are cut
  builder.add(key("ple.head_offsets"), Words{0, 101, 204, 403, 9, 9});
  EXPECT_EQ(bind(builder)->shape.ple_offsets, (Words{0, 101, 204, 403}));
}

TEST(ModelShapeTest, ImageTokenFallsBackToEos) {
  GgufBuilder builder = base_model();
  builder.remove(key("ple.image_token_id"));
  EXPECT_EQ(bind(builder)->shape.image_token, kEndOfText);
}

TEST(ModelShapeTest, ModelWithoutPle) {
  SyntheticOptions options;
  options.shape.ple_layer = -1;
  const BoundModel bound = bind(synthetic_model(options));
  EXPECT_EQ(bound->shape.ple_layer, -1);
  EXPECT_FALSE(bound->ple_table);
  EXPECT_FALSE(bound->layers[1].ple.has_value());
}

TEST(ModelShapeTest, Vocabulary) {
  expect_refused(set("vocab_size", std::uint32_t{321}), {"vocab_size", "320 (the length of tokenizer.ggml.tokens)"});
  SyntheticOptions options;
  options.tokenizer = false;
  GgufBuilder builder = synthetic_model(options);
  EXPECT_EQ(bind(builder)->shape.vocab, 320);
  builder.remove(key("vocab_size"));  // then the embedding decides
  EXPECT_EQ(bind(builder)->shape.vocab, 320);
}

TEST(ModelShapeTest, BlockNumbers) {
  EXPECT_EQ(block_of("blk.0.attn_q.weight"), 0);
  EXPECT_EQ(block_of("blk.48.nextn.enorm.weight"), 48);
  for (const char* name :
       {"blk.", "blk.x.a", "blk.12", "blk..a", "token_embd.weight", "ablk.1.b", "blk.99999999999.a"}) {
    EXPECT_EQ(block_of(name), -1) << name;
  }
}

}  // namespace
}  // namespace tandem::testing
