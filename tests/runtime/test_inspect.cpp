// `tandem inspect`: text and JSON over whole, split, separate-MTP, foreign and broken files.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "placement/check.h"
#include "placement/units.h"
#include "runtime/cmd_inspect.h"
#include "tests/runtime/model_cases.h"

namespace tandem::testing {
namespace {

using Json = nlohmann::json;

struct Result {
  int code = -1;
  std::string text;
};

Result inspect(const InspectOptions& options) {
  std::FILE* file = std::tmpfile();
  CHECK(file != nullptr);
  Result result;
  result.code = run_inspect(options, file);
  result.text.resize(static_cast<std::size_t>(std::ftell(file)));
  std::rewind(file);
  CHECK(std::fread(result.text.data(), 1, result.text.size(), file) == result.text.size());
  std::fclose(file);
  return result;
}

InspectOptions file_options(const std::filesystem::path& path) {
  InspectOptions options;
  options.file = path;
  return options;
}

Json inspect_json_of(const std::filesystem::path& path, int expected_code = 0) {
  InspectOptions options = file_options(path);
  options.json = true;
  const Result result = inspect(options);
  EXPECT_EQ(result.code, expected_code);
  return Json::parse(result.text);
}

const std::filesystem::path kNano = TANDEM_SOURCE_DIR "/models/flash-next-nano-q4.gguf";

TEST(Inspect, NanoForPeople) {
  const Result result = inspect(file_options(kNano));
  EXPECT_EQ(result.code, 0);
  expect_parts(result.text,
               {"GGUF version 3, 1 file, 22.4 MB, 246 tensors", "architecture      qwen4exp",
                "8: 6 Gated DeltaNet, 2 attention (3, 7)", "256 x 4 streams", "32 of width 96, 6 used",
                "layer 1, 33,152 rows of 32, 8 heads", "MTP block blk.8 of the model file",
                "gpt2, pre-tokenizer qwen35", "4,096 tokens (26 special), 3,814 merges", "eos 4072 <|im_end|>",
                "known (flash-next-nano)", "layer   2: ffn_gate_exps, ffn_up_exps Q5_K instead of Q4_K",
                "one conversation of 4,096 tokens", "n-gram table"});
  EXPECT_EQ(result.text.find("cannot be run"), std::string::npos);
  EXPECT_EQ(result.text.find("not used"), std::string::npos);
  EXPECT_EQ(result.text.find("\nTensors\n"), std::string::npos);
  std::istringstream lines(result.text);
  std::string path;  // the first line, of any length
  std::getline(lines, path);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100U) << line;
}

TEST(Inspect, RolesAddUpToTheFile) {
  const Json json = inspect_json_of(kNano);
  std::int64_t count = 0, bytes = 0, weights = 0, tensor_bytes = 0;
  for (const Json& role : json["roles"]) {
    std::int64_t by_type = 0;
    for (const Json& type : role["types"]) by_type += type["bytes"].get<std::int64_t>();
    EXPECT_EQ(by_type, role["bytes"]) << role["role"];
    count += role["count"].get<std::int64_t>();
    bytes += role["bytes"].get<std::int64_t>();
    weights += role["weights"].get<std::int64_t>();
  }
  for (const Json& tensor : json["tensors"]) tensor_bytes += tensor["bytes"].get<std::int64_t>();
  EXPECT_EQ(count, 246);
  EXPECT_EQ(json["total"]["count"], 246);
  EXPECT_EQ(json["total"]["bytes"], bytes);
  EXPECT_EQ(json["total"]["weights"], weights);
  EXPECT_EQ(tensor_bytes, bytes);
  const Json& memory = json["memory"];
  std::int64_t by_use = 0;
  for (const Json& part : memory["weights"]) by_use += part.get<std::int64_t>();
  EXPECT_EQ(by_use, bytes);
  EXPECT_EQ(memory["expert_count"], 9 * 32);
}

// One role per kind of tensor, counted by hand for the tiny shape.
TEST(Inspect, RolesOfTheTinyModel) {
  TempDir dir;
  const Json json = inspect_json_of(base_model().write(dir / "m.gguf"));
  std::map<std::string, int> counts;
  for (const Json& role : json["roles"]) counts[role["role"]] = role["count"];
  const std::map<std::string, int> expected{{"token embedding", 1},
                                            {"output head", 1},
                                            {"hyper-connections", 2 + 4 * 6},
                                            {"Gated DeltaNet", 3 * 8},
                                            {"attention", 4},
                                            {"indexer", 2},
                                            {"router", 4},
                                            {"routed experts gate", 4},
                                            {"routed experts up", 4},
                                            {"routed experts down", 4},
                                            {"shared expert", 16},
                                            {"PLE dense", 3},
                                            {"n-gram table", 1},
                                            {"norms", 1 + 4 * 2 + 3 + 4 + 3},
                                            {"MTP routed experts", 3},
                                            {"MTP other", 29}};
  EXPECT_EQ(counts, expected);
}

TEST(Inspect, TypeExceptions) {
  SyntheticOptions options;
  options.shape.layers = 7;
  options.shape.is_gdn = {true, true, true, false, true, true, true};
  options.type = [](const tandem::TensorSpec& spec) {
    const bool expert = spec.role == TensorRole::kExpertGate || spec.role == TensorRole::kExpertUp;
    if (expert && (spec.block == 2 || spec.mtp)) return DType::Q4_0;
    if (spec.form != TensorForm::kMatrix && spec.form != TensorForm::kBank) return DType::F32;
    return spec.role == TensorRole::kIndexer ? DType::BF16 : DType::Q8_0;
  };
  TempDir dir;
  const Json json = inspect_json_of(synthetic_model(options).write(dir / "m.gguf"));
  ASSERT_EQ(json["exceptions"].size(), 1U);
  EXPECT_EQ(json["exceptions"][0],
            (Json{{"layer", 2}, {"tensors", {"ffn_gate_exps", "ffn_up_exps"}}, {"type", "Q4_0"}, {"usual", "Q8_0"}}));
}

TEST(Inspect, SplitSetFromAnyShard) {
  TempDir dir;
  base_model().write_split(dir / "m", 3);
  const Json json = inspect_json_of(dir / shard_file_name("m", 2, 3));
  ASSERT_EQ(json["shards"].size(), 3U);
  EXPECT_EQ(json["runnable"], true);
  std::set<int> shards;
  for (const Json& tensor : json["tensors"]) shards.insert(tensor["shard"].get<int>());
  EXPECT_EQ(shards, (std::set<int>{0, 1, 2}));
  const Result text = inspect(file_options(dir / shard_file_name("m", 0, 3)));
  expect_parts(text.text, {"3 files", "m-00001-of-00003.gguf", "m-00003-of-00003.gguf"});
}

TEST(Inspect, TensorList) {
  InspectOptions options = file_options(kNano);
  options.tensors = true;
  const Result result = inspect(options);
  expect_parts(result.text, {"blk.8.nextn.eh_proj.weight", "[512, 256]", "IQ4_NL"});
  const Gguf gguf = Gguf::open(kNano);
  const GgufTensor& tensor = *gguf.find_tensor("blk.0.ffn_gate_exps.weight");
  std::istringstream lines(result.text);
  int found = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("blk.0.ffn_gate_exps.weight") == std::string::npos) continue;
    expect_parts(line, {"Q4_K", "[256, 96, 32]", " 442368 ", "    1 ", fmt::format(" {}", tensor.offset)});
    ++found;
  }
  EXPECT_EQ(found, 1);
}

TEST(Inspect, SeparateMtpFile) {
  TempDir dir;
  const auto path = synthetic_mtp({}, true).write(dir / "draft.gguf");
  const Json json = inspect_json_of(path);
  EXPECT_EQ(json["mtp"]["only"], true);
  EXPECT_EQ(json["mtp"]["present"], true);
  EXPECT_EQ(json["runnable"], false);
  EXPECT_EQ(json["problem"], "");
  EXPECT_TRUE(json["memory"].is_null());
  const Result text = inspect(file_options(path));
  expect_parts(text.text, {"holds only the MTP block blk.4", "--mtp", "MTP routed experts"});
  EXPECT_EQ(text.text.find("not used"), std::string::npos);
  EXPECT_EQ(text.text.find("Where it would live"), std::string::npos);
}

TEST(Inspect, SeparateMtpFileWithPoorMetadata) {
  GgufBuilder builder = synthetic_mtp({}, false);
  builder.remove("qwen4exp.ssm.state_size");
  TempDir dir;
  const Json json = inspect_json_of(builder.write(dir / "draft.gguf"));
  EXPECT_EQ(json["mtp"]["present"], true);
  EXPECT_EQ(json["problem"], "");
  ASSERT_EQ(json["warnings"].size(), 1U);
  expect_parts(json["warnings"][0].get<std::string>(), {"ssm.state_size"});
  EXPECT_EQ(json["total"]["count"], 32);
}

TEST(Inspect, ModelWithoutMtp) {
  SyntheticOptions options;
  options.shape.mtp_layers = 0;
  TempDir dir;
  const Json json = inspect_json_of(synthetic_model(options).write(dir / "m.gguf"));
  EXPECT_EQ(json["mtp"]["present"], false);
  expect_parts(json["mtp"]["note"].get<std::string>(), {"no MTP block"});
}

TEST(Inspect, OtherArchitecture) {
  GgufBuilder builder;
  builder.add("general.architecture", "llama").add("llama.block_count", std::uint32_t{2});
  builder.tensor("blk.0.attn_q.weight", DType::Q4_K, {256, 4});
  builder.tensor("blk.0.attn_norm.weight", DType::F32, {256});
  TempDir dir;
  const auto path = builder.write(dir / "llama.gguf");
  const Json json = inspect_json_of(path);
  EXPECT_EQ(json["supported"], false);
  EXPECT_EQ(json["architecture"], "llama");
  EXPECT_EQ(json["metadata"]["llama.block_count"], 2);
  EXPECT_TRUE(json["shape"].is_null());
  InspectOptions options = file_options(path);
  options.tensors = true;
  const Result text = inspect(options);
  EXPECT_EQ(text.code, 0);
  expect_parts(text.text, {"llama: not supported, only the directory", "blk.0.attn_q.weight", "Q4_K"});

  GgufBuilder nameless;
  nameless.tensor("x", DType::F32, {1});
  expect_parts(inspect(file_options(nameless.write(dir / "none.gguf"))).text, {"(not stated): not supported"});
}

TEST(Inspect, FileThatCannotBeRun) {
  GgufBuilder builder = base_model();
  builder.remove_tensor("blk.2.ssm_a");
  TempDir dir;
  const auto path = builder.write(dir / "hole.gguf");
  const Result text = inspect(file_options(path));
  EXPECT_EQ(text.code, 1);
  expect_parts(text.text, {"This file cannot be run", "blk.2.ssm_a", "Gated DeltaNet"});
  const Json json = inspect_json_of(path, 1);
  EXPECT_EQ(json["runnable"], false);
  expect_parts(json["problem"].get<std::string>(), {"blk.2.ssm_a"});

  builder.remove("qwen4exp.ssm.inner_size");  // not even a shape: the directory is still shown
  const Json shapeless = inspect_json_of(builder.write(dir / "shapeless.gguf"), 1);
  EXPECT_TRUE(shapeless["shape"].is_null());
  EXPECT_EQ(shapeless["total"]["count"], static_cast<int>(builder.tensors().size()));
  expect_parts(shapeless["problem"].get<std::string>(), {"ssm.inner_size"});
}

TEST(Inspect, UnusedTensorsAndWarnings) {
  GgufBuilder builder = base_model();
  builder.tensor("strange.weight", DType::F16, {10});
  TempDir dir;
  const Result text = inspect(file_options(builder.write(dir / "m.gguf")));
  EXPECT_EQ(text.code, 0);
  expect_parts(text.text, {"not used", "Warnings", "strange.weight"});
}

TEST(Inspect, Context) {
  InspectOptions options = file_options(kNano);
  options.json = true;
  options.context = 1024;
  const Json memory = Json::parse(inspect(options).text)["memory"];
  EXPECT_EQ(memory["context"], 1024);
  EXPECT_EQ(memory["state"]["kv"], 2 * 1024 * 2 * 2 * 64 * 2);  // layers, positions, k and v, heads, width, bytes
  for (const std::int64_t bad : {std::int64_t{0}, std::int64_t{-5}, std::int64_t{4097}}) {
    options.context = bad;
    try {
      inspect(options);
      ADD_FAILURE() << bad;
    } catch (const InputError& error) {
      expect_parts(error.what(), {"--context: expected 1 to 4096", fmt::format("found {}", bad), "Fix: "});
    }
  }
}

TEST(Inspect, CheckFindsBadValues) {
  GgufBuilder builder = base_model();
  TempDir dir;
  InspectOptions options = file_options(builder.write(dir / "good.gguf"));
  options.check = true;
  Result result = inspect(options);
  EXPECT_EQ(result.code, 0);
  expect_parts(result.text, {"Check of all values", "no bad values"});

  poke(builder.find("blk.3.attn_q_norm.weight").data, 8, std::numeric_limits<float>::quiet_NaN());
  poke(builder.find("blk.0.attn_qkv.weight").data, 34, std::uint16_t{0x7C00});  // an infinite block scale
  options = file_options(builder.write(dir / "bad.gguf"));
  EXPECT_EQ(inspect(options).code, 0);  // only when asked for
  options.check = true;
  result = inspect(options);
  EXPECT_EQ(result.code, 1);
  expect_parts(result.text, {"blk.3.attn_q_norm.weight", "blk.0.attn_qkv.weight"});
  options.json = true;
  result = inspect(options);
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(Json::parse(result.text)["check"].size(), 2U);
}

TEST(Inspect, AnyBytesInStrings) {
  GgufBuilder builder = base_model();
  builder.add("general.name", "caf\xE9 \xFF");
  TempDir dir;
  const Json json = inspect_json_of(builder.write(dir / "m.gguf"));
  expect_parts(json["metadata"]["general.name"].get<std::string>(), {"caf"});
  EXPECT_EQ(json["metadata"]["tokenizer.ggml.tokens"]["length"], 320);
  EXPECT_EQ(json["metadata"]["qwen4exp.ple.head_offsets"], (Json{0, 101, 204, 311}));
}

TEST(Inspect, NoSuchFile) {
  EXPECT_THROW(inspect(file_options("/nonexistent/model.gguf")), InputError);
}

TEST(Inspect, CommandLine) {
  CLI::App app;
  InspectOptions options;
  add_inspect_command(app, options);
  app.parse("inspect model.gguf --tensors --json --check --context 1000");
  EXPECT_EQ(options.file, "model.gguf");
  EXPECT_TRUE(options.tensors && options.json && options.check);
  EXPECT_EQ(options.context, 1000);
  CLI::App other;
  InspectOptions defaults;
  add_inspect_command(other, defaults);
  other.parse("inspect x");
  EXPECT_FALSE(defaults.tensors || defaults.json || defaults.check || defaults.context);
  CLI::App missing;
  add_inspect_command(missing, defaults);
  EXPECT_THROW(missing.parse("inspect"), CLI::RequiredError);
}

TEST(Inspect, Numbers) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1000), "1.00 kB");
  EXPECT_EQ(human_bytes(12345), "12.3 kB");
  EXPECT_EQ(human_bytes(999999), "1.00 MB");
  EXPECT_EQ(human_bytes(1271398400), "1.27 GB");
  EXPECT_EQ(human_bytes(354030000000), "354 GB");
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(176943899520), "176,943,899,520");
  EXPECT_EQ(grouped(-1234), "-1,234");
  EXPECT_EQ(grouped(-123), "-123");
}

}  // namespace
}  // namespace tandem::testing
