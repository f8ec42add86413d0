// Synthetic models: sane values of every type, the shape and the types that were asked for, the same bytes for a seed,
// and a file that the runtime opens and runs.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <set>

#include "bench/block_pool.h"
#include "bench/pass_bytes.h"
#include "bench/synth.h"
#include "cpu/cpu_ops.h"
#include "placement/check.h"
#include "runtime/model.h"
#include "runtime/pipeline.h"
#include "runtime/tokenizer.h"
#include "tests/gguf_builder.h"
#include "tests/synthetic_model.h"

namespace tandem::bench {
namespace {

using testing::TempDir;

std::vector<DType> weight_types() {
  std::vector<DType> types;
  for (std::uint32_t id = 0; id < 64; ++id) {
    const DTypeInfo* info = find_dtype(id);
    if (info != nullptr && info->kind != DTypeKind::kStorage) types.push_back(info->type);
  }
  return types;
}

std::vector<float> pool_values(DType type, double rms, std::uint64_t seed, std::size_t elements) {
  std::vector<std::uint8_t> bytes(row_bytes(type, elements));
  BlockPool(type, rms, 1).fill(seed, bytes.data(), bytes.size());
  std::vector<float> values(elements);
  dequantize_row(type, bytes.data(), elements, values.data());
  return values;
}

// The size asked for, no bias, nothing that is not a number: for weights of 10240, 2560 and 640 columns and for rows.
TEST(BlockPool, ValuesHaveTheRightSizeAndNoBias) {
  constexpr std::size_t kElements = 256 * 600;
  ASSERT_EQ(weight_types().size(), 28U);
  for (const DType type : weight_types())
    for (const double rms : {1 / std::sqrt(10240.0), 1 / std::sqrt(2560.0), 1 / std::sqrt(640.0), 1.0}) {
      double sum = 0, squares = 0;
      for (const float v : pool_values(type, rms, 9, kElements)) {
        ASSERT_TRUE(std::isfinite(v)) << dtype_name(type);
        sum += static_cast<double>(v);
        squares += static_cast<double>(v) * static_cast<double>(v);
      }
      const double found = std::sqrt(squares / kElements), mean = sum / kElements;
      // Scales of MXFP4 and NVFP4 are powers of two, or saturate.
      const bool coarse = type == DType::MXFP4 || type == DType::NVFP4;
      EXPECT_GT(found, rms * (coarse ? 0.6 : 0.9)) << dtype_name(type) << " " << rms;
      EXPECT_LT(found, rms * (coarse ? 1.6 : 1.1)) << dtype_name(type) << " " << rms;
      EXPECT_LT(std::abs(mean), 0.08 * rms) << dtype_name(type) << " " << rms;
    }
}

TEST(BlockPool, SeedsScrambleEveryCodeByte) {
  for (const DType type : weight_types()) {
    const BlockPool pool(type, 0.02, 1);
    const std::size_t block = dtype_info(type).block_bytes, count = 64 * block;
    EXPECT_EQ(pool.bytes() % 64, 0U);
    EXPECT_EQ(pool.bytes() % block, 0U);
    std::vector<std::uint8_t> a(count), b(count), again(count);
    pool.fill(1, a.data(), count);
    pool.fill(1, again.data(), count);
    pool.fill(2, b.data(), count);
    EXPECT_EQ(a, again) << dtype_name(type);
    std::size_t same = 0;
    for (std::size_t at = 0; at < block; ++at) {
      bool differs = false;
      for (std::size_t k = 0; k < 64; ++k) differs = differs || a[k * block + at] != b[k * block + at];
      same += differs ? 0U : 1U;
    }
    EXPECT_LE(same, 4U) << dtype_name(type);  // at most two half-precision scales, or four bytes of NVFP4
  }
}

// A pool comes round many times in a tensor: the codes must not.
TEST(BlockPool, CodesDoNotRepeatWithThePool) {
  const BlockPool pool(DType::Q8_0, 0.02, 1);
  std::vector<std::uint8_t> bytes(3 * pool.bytes() + 34);
  pool.fill(5, bytes.data(), bytes.size());
  const auto at = [&](std::size_t round) { return bytes.data() + round * pool.bytes(); };
  EXPECT_EQ(std::memcmp(at(0), at(1), 2), 0);  // the scale
  EXPECT_NE(std::memcmp(at(0) + 2, at(1) + 2, 32), 0);
  EXPECT_NE(std::memcmp(at(1) + 2, at(2) + 2, 32), 0);
  EXPECT_EQ(std::memcmp(at(3), at(0), 2), 0);
}

TEST(Synth, ShapeIsThePublishedOne) {
  SynthOptions options;
  options.layers = 48;
  options.vocab = 248320;
  options.ngram_rows = 320001536;
  const ModelShape shape = synth_shape(options);
  EXPECT_EQ(shape.hidden, 2560);
  EXPECT_EQ(shape.experts, 512);
  EXPECT_EQ(std::count(shape.is_gdn.begin(), shape.is_gdn.end(), false), 12);
  ASSERT_EQ(shape.ple_vocab_sizes.size(), 16U);
  std::uint64_t offset = 0;
  std::set<std::uint64_t> sizes;
  for (std::size_t h = 0; h < 16; ++h) {
    EXPECT_EQ(shape.ple_offsets[h], offset);
    offset += shape.ple_vocab_sizes[h];
    sizes.insert(shape.ple_vocab_sizes[h]);
    for (std::uint64_t k = 2; k < 100; ++k) EXPECT_NE(shape.ple_vocab_sizes[h] % k, 0U);
  }
  EXPECT_EQ(sizes.size(), 16U);
  EXPECT_LE(offset, 320001536U);
  EXPECT_GT(offset, 320001536U * 99 / 100);
}

TEST(Synth, RefusesCountsThatMakeNoModel) {
  const auto broken = [](auto change) {
    SynthOptions options;
    change(options);
    return options;
  };
  EXPECT_THROW(synth_shape(broken([](SynthOptions& o) { o.layers = 3; })), InputError);
  EXPECT_THROW(synth_shape(broken([](SynthOptions& o) { o.experts = 9; })), InputError);
  EXPECT_THROW(synth_shape(broken([](SynthOptions& o) { o.vocab = 299; })), InputError);
  EXPECT_THROW(synth_shape(broken([](SynthOptions& o) { o.ngram_rows = 100; })), InputError);
}

TEST(Synth, TypesAndRecipes) {
  SynthOptions options;
  apply_recipe("ud-q4_k_xl", options);
  options.layers = 6;
  const TensorList list = expected_tensors(synth_shape(options));
  const auto type_of = [&](std::string_view name) {
    const auto found =
        std::find_if(list.trunk.begin(), list.trunk.end(), [&](const TensorSpec& s) { return s.name == name; });
    EXPECT_NE(found, list.trunk.end()) << name;
    return synth_type(options, *found);
  };
  EXPECT_EQ(type_of("blk.0.ffn_gate_exps.weight"), DType::Q4_K);
  EXPECT_EQ(type_of("blk.2.ffn_up_exps.weight"), DType::Q5_K);
  EXPECT_EQ(type_of("blk.0.ffn_down_exps.weight"), DType::Q5_1);
  EXPECT_EQ(type_of("blk.4.ffn_down_exps.weight"), DType::Q8_0);
  EXPECT_EQ(type_of("blk.0.ffn_gate_inp.weight"), DType::F32);
  EXPECT_EQ(type_of("blk.0.ssm_alpha.weight"), DType::F32);
  EXPECT_EQ(type_of("blk.0.hc_attn_inject.weight"), DType::F32);
  EXPECT_EQ(type_of("blk.3.indexer.q_proj.weight"), DType::BF16);
  EXPECT_EQ(type_of("blk.3.attn_q_norm.weight"), DType::F32);
  EXPECT_EQ(type_of("per_layer_token_embd.weight"), DType::IQ4_NL);
  options.dense = DType::Q6_K;  // does not divide rows of 640
  EXPECT_EQ(type_of("blk.0.attn_qkv.weight"), DType::Q6_K);
  EXPECT_EQ(type_of("blk.0.ffn_down_shexp.weight"), DType::Q8_0);
  options.down = DType::Q4_K;
  EXPECT_THROW(type_of("blk.0.ffn_down_exps.weight"), InputError);
  for (const std::string_view name : recipe_names()) {  // every recipe makes a whole model
    apply_recipe(name, options);
    for (const TensorSpec& spec : list.trunk) EXPECT_NO_THROW(synth_type(options, spec)) << name << " " << spec.name;
  }
  EXPECT_THROW(apply_recipe("ud-q4", options), InputError);
}

SynthOptions tiny_options() {
  SynthOptions options;
  options.gate_up = DType::Q4_0;
  options.down = DType::IQ4_NL;
  options.dense = DType::Q8_0;
  options.head = DType::Q5_0;
  return options;
}

std::string slurp(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string write_tiny(const TempDir& dir, std::string_view name, std::uint64_t seed, std::size_t threads) {
  SynthOptions options = tiny_options();
  options.seed = seed;
  const SynthReport report =
      write_synth(options, testing::tiny_shape(), dir / name, 1, threads, false, [](auto, auto) {});
  EXPECT_EQ(report.bytes, std::filesystem::file_size(dir / name));
  return slurp(dir / name);
}

TEST(Synth, SameBytesWhateverTheThreads) {
  const TempDir dir;
  const std::string one = write_tiny(dir, "a.gguf", 1, 1);
  EXPECT_EQ(one, write_tiny(dir, "b.gguf", 1, 3));
  EXPECT_NE(one, write_tiny(dir, "c.gguf", 2, 3));
}

// No tensor is left as zeros, no two matrices are alike, and nothing is damaged. The n-gram table is longer than what
// is written at once.
TEST(Synth, EveryTensorIsWritten) {
  const TempDir dir;
  ModelShape shape = testing::tiny_shape();
  shape.ple_rows = 400000;
  write_synth(tiny_options(), shape, dir / "a.gguf", 1, 2, false, [](auto, auto) {});
  const Gguf gguf = Gguf::open(dir / "a.gguf");
  std::set<std::string> heads;
  for (const GgufTensor& tensor : gguf.tensors()) {
    EXPECT_EQ(find_bad_values(tensor), std::nullopt);
    const std::size_t end = std::min<std::size_t>(tensor.bytes, 64);
    const std::string tail(reinterpret_cast<const char*>(tensor.data + tensor.bytes - end), end);
    EXPECT_NE(tail, std::string(tail.size(), '\0')) << tensor.name;
    if (tensor.bytes >= 64) heads.emplace(reinterpret_cast<const char*>(tensor.data), 64);
  }
  const auto large =
      std::count_if(gguf.tensors().begin(), gguf.tensors().end(), [](const GgufTensor& t) { return t.bytes >= 64; });
  EXPECT_EQ(heads.size(), static_cast<std::size_t>(large));
}

TEST(Synth, RunsWithSaneLogits) {
  const TempDir dir;
  SynthOptions options = tiny_options();
  const SynthReport report =
      write_synth(options, testing::tiny_shape(), dir / "m.gguf", 2, 2, false, [](auto, auto) {});
  ASSERT_EQ(report.files.size(), 2U);
  EXPECT_EQ(report.files[0].filename(), "m-00001-of-00002.gguf");
  const Model model = Model::open(report.files[1]);  // any shard opens the set
  EXPECT_TRUE(model.mtp.has_value());
  EXPECT_EQ(model.layers[0].moe.routed.gate.type, DType::Q4_0);
  EXPECT_EQ(model.layers[3].moe.routed.down.type, DType::IQ4_NL);
  EXPECT_EQ(Tokenizer::from_gguf(model.gguf()).size(), 320U);

  CpuOps ops(1);
  Pipeline pipeline(model, ops, 32);
  SequenceState state(model.shape, StateOptions{64, KvType::kF32});
  std::vector<TokenId> tokens;
  for (int i = 0; i < 32; ++i) tokens.push_back(i * 7 % 300);
  const PassOutput out = pipeline.forward(state, tokens, PassMode::kCommit, LogitRows::kAll);
  double squares = 0;
  for (std::size_t r = 0; r < out.logits.rows; ++r)
    for (const float v : out.logits.span(r)) squares += static_cast<double>(v) * static_cast<double>(v);
  const double rms = std::sqrt(squares / static_cast<double>(out.logits.rows * out.logits.cols));
  EXPECT_GT(rms, 0.3);
  EXPECT_LT(rms, 3.0);
}

// A planted share of the experts gets the planted share of the routes, in every layer others; the census says which.
TEST(Synth, PlantedRoutesAreMet) {
  const TempDir dir;
  SynthOptions options = tiny_options();
  ModelShape shape = testing::tiny_shape();
  options.experts = shape.experts = 64;
  shape.experts_used = 4;
  options.hot_experts = 0.25;
  options.hot_routes = 0.85;
  write_synth(options, shape, dir / "m.gguf", 1, 2, false, [](auto, auto) {});
  const Model model = Model::open(dir / "m.gguf");
  const Census census = planted_census(options, shape);
  save_census(census, dir / "m.census.csv");
  EXPECT_EQ(load_census(dir / "m.census.csv").rows(), census.rows());
  for (int layer = 0; layer < shape.layers; ++layer) {
    std::uint64_t hot = 0, all = 0;
    int count = 0;
    for (int e = 0; e < options.experts; ++e) {
      const std::uint64_t routes =
          census.domains.at("planted").decode.routes[static_cast<std::size_t>(layer * options.experts + e)];
      all += routes;
      if (!is_hot_expert(options, layer, e)) continue;
      hot += routes;
      ++count;
    }
    EXPECT_EQ(count, 16);
    EXPECT_EQ(all, census.rows() * 4);
    EXPECT_NEAR(static_cast<double>(hot) / static_cast<double>(all), 0.85, 0.001);
  }
  const auto hot_ones = [&](int layer) {
    std::vector<bool> list;
    for (int e = 0; e < options.experts; ++e) list.push_back(is_hot_expert(options, layer, e));
    return list;
  };
  EXPECT_NE(hot_ones(0), hot_ones(1));

  CpuOps ops(1);
  Pipeline pipeline(model, ops, 256);
  SequenceState state(model.shape, StateOptions{256, KvType::kF32});
  std::vector<TokenId> tokens;
  for (int i = 0; i < 256; ++i) tokens.push_back(i * 7 % 300);
  std::uint64_t hot = 0, all = 0;
  struct Observer : RouteObserver {
    std::function<void(int, const Routes&)> hear;
    void on_routes(PassMode, int bank, std::size_t, const Routes& routes) override { hear(bank, routes); }
  } observer;
  observer.hear = [&](int bank, const Routes& routes) {
    for (std::size_t i = 0; i < routes.rows * routes.used; ++i, ++all)
      if (is_hot_expert(options, bank, routes.expert[i])) ++hot;
  };
  pipeline.set_route_observer(&observer);
  pipeline.forward(state, tokens, PassMode::kCommit, LogitRows::kNone);
  EXPECT_EQ(all, 256U * 4 * static_cast<std::uint64_t>(shape.layers));
  EXPECT_NEAR(static_cast<double>(hot) / static_cast<double>(all), 0.85, 0.08);
}

TEST(Synth, SkewsThatMakeNoSense) {
  for (const auto& [experts, routes] : {std::pair{0.5, 0.4}, {0.01, 0.5}, {0.5, 1.0}, {0.0, 0.5}}) {
    SynthOptions options;
    options.hot_experts = experts;
    options.hot_routes = routes;
    EXPECT_THROW(synth_shape(options), InputError) << experts << ", " << routes;
  }
}

TEST(Synth, PassBytesOfAModel) {
  const TempDir dir;
  write_tiny(dir, "a.gguf", 1, 1);
  const Model model = Model::open(dir / "a.gguf");
  const PassBytes bytes = pass_bytes(model);
  const ModelShape& s = model.shape;
  ASSERT_EQ(bytes.expert.size(), 4U);
  const auto ff = static_cast<std::size_t>(s.expert_ff), d = static_cast<std::size_t>(s.hidden);
  EXPECT_EQ(bytes.expert[0], 2 * ff * row_bytes(DType::Q4_0, d) + d * row_bytes(DType::IQ4_NL, ff));
  EXPECT_EQ(bytes.head, static_cast<std::size_t>(s.vocab) * row_bytes(DType::Q5_0, d));
  EXPECT_EQ(bytes.rows, row_bytes(DType::Q8_0, d) + 4 * row_bytes(DType::IQ4_NL, 32));
  // Everything in the file is one of: dense, head, experts, the looked-up tables, the draft block.
  std::uint64_t all =
      bytes.dense + bytes.head + 8 * (bytes.expert[0] + bytes.expert[1] + bytes.expert[2] + bytes.expert[3]);
  for (const GgufTensor& tensor : model.gguf().tensors()) {
    const bool lookup = tensor.name == "token_embd.weight" || tensor.name == "per_layer_token_embd.weight";
    if (lookup || tensor.name.starts_with("blk.4.")) all += tensor.bytes;
  }
  std::uint64_t file = 0;
  for (const GgufTensor& tensor : model.gguf().tensors()) file += tensor.bytes;
  EXPECT_EQ(all, file);
}

TEST(Synth, CannotWriteIsOneMessageAndLeavesNothing) {
  const TempDir dir;
  const auto write = [&](const std::filesystem::path& path, const SynthOptions& options) {
    write_synth(options, testing::tiny_shape(), path, 1, 1, false, [](auto, auto) {});
  };
  EXPECT_THROW(write(dir / "no/such/a.gguf", tiny_options()), InputError);
  SynthOptions options = tiny_options();
  options.down = DType::Q4_K;
  EXPECT_THROW(write(dir / "a.gguf", options), InputError);
  EXPECT_FALSE(std::filesystem::exists(dir / "a.gguf"));
}

// Terabytes of n-gram rows: the layout can be written (as a hole), the data cannot.
TEST(Synth, TooLittleRoomIsSaidBeforeWriting) {
  const TempDir dir;
  constexpr std::uint64_t kBytes = 3'600'000'000'000;
  if (std::filesystem::space(dir.path()).available > kBytes) GTEST_SKIP() << "there is room for everything";
  ModelShape shape = testing::tiny_shape();
  shape.ple_rows = kBytes / 18;  // rows of 32 values, IQ4_NL
  try {
    write_synth(tiny_options(), shape, dir / "a.gguf", 1, 1, false, [](auto, auto) {});
    FAIL() << "expected an error";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("expected room for 360"), std::string::npos) << error.what();
  }
  EXPECT_FALSE(std::filesystem::exists(dir / "a.gguf"));
}

// Holes instead of weights: the file reads like a model and takes next to no room.
TEST(Synth, EmptyFilesTakeNoRoom) {
  const testing::TempDir dir;
  const SynthOptions options = tiny_options();
  const ModelShape shape = testing::tiny_shape();
  const std::filesystem::path full = dir / "full.gguf", empty = dir / "empty.gguf";
  write_synth(options, shape, full, 1, 1, false, [](auto, auto) {});
  write_synth(options, shape, empty, 1, 1, true, [](auto, auto) {});
  EXPECT_EQ(std::filesystem::file_size(empty), std::filesystem::file_size(full));
  const Model model = Model::open(empty);
  EXPECT_EQ(model.layers.size(), static_cast<std::size_t>(shape.layers));
  struct stat info {};
  ASSERT_EQ(stat(empty.c_str(), &info), 0);
  struct stat whole {};
  ASSERT_EQ(stat(full.c_str(), &whole), 0);
  EXPECT_LT(info.st_blocks, whole.st_blocks);
}

}  // namespace
}  // namespace tandem::bench
