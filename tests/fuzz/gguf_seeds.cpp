#include "tests/fuzz/gguf_seeds.h"

#include <string_view>

#include "runtime/quant.h"
#include "tests/gguf_builder.h"

namespace tandem::testing {
namespace {

GgufBuilder every_value_type() {
  GgufBuilder builder;
  builder.add("u8", std::uint8_t{1})
      .add("i8", std::int8_t{-1})
      .add("u16", std::uint16_t{1})
      .add("i16", std::int16_t{-1});
  builder.add("u32", std::uint32_t{1}).add("i32", std::int32_t{-1}).add("u64", ~std::uint64_t{0});
  builder.add("i64", std::int64_t{-1}).add("f32", 0.5F).add("f64", -2.0).add("flag", true).add("text", "abc");
  builder.add("u8s", std::vector<std::uint8_t>{1, 2}).add("i8s", std::vector<std::int8_t>{-1});
  builder.add("u16s", std::vector<std::uint16_t>{1}).add("i16s", std::vector<std::int16_t>{-1});
  builder.add("u32s", std::vector<std::uint32_t>{1}).add("i32s", std::vector<std::int32_t>{-1, 0, 4});
  builder.add("u64s", std::vector<std::uint64_t>{~std::uint64_t{0}}).add("i64s", std::vector<std::int64_t>{-1});
  builder.add("f32s", std::vector<float>{1}).add("f64s", std::vector<double>{1}).add("flags", std::vector<bool>{true});
  builder.add("texts", std::vector<std::string>{"", "a", "bcd"});
  return builder;
}

GgufBuilder every_tensor_type() {
  GgufBuilder builder;
  for (std::uint32_t id = 0; id < 43; ++id) {
    const DTypeInfo* info = find_dtype(id);
    if (info == nullptr) continue;
    const bool weight = info->kind != DTypeKind::kStorage;
    const std::int64_t row = info->block_elems;
    builder.tensor(
        std::string(info->name) + ".weight", info->type, {row, 2},
        weight ? random_weights(info->type, 2 * static_cast<std::size_t>(row), id) : std::vector<std::uint8_t>{});
  }
  return builder;
}

GgufBuilder three_tensors() {
  GgufBuilder builder;
  builder.add("general.architecture", "qwen4exp").add("general.alignment", std::uint32_t{32});
  builder.tensor("a.weight", std::vector<float>{1, 2, 3, 4}, {2, 2});
  builder.tensor("b.weight", DType::Q8_0, {32}, random_weights(DType::Q8_0, 32, 2));
  builder.tensor("c.weight", DType::BF16, {4, 1, 1, 2}, random_weights(DType::BF16, 8, 3));
  return builder;
}

std::vector<std::uint8_t> shard_input(const std::vector<GgufBuilder>& shards) {
  std::vector<std::uint8_t> input = {'S', 'H', 'R', 'D', static_cast<std::uint8_t>(shards.size())};
  std::vector<std::uint8_t> images;
  for (const GgufBuilder& shard : shards) {
    const std::vector<std::uint8_t> image = shard.build();
    append(input, static_cast<std::uint32_t>(image.size()));
    images.insert(images.end(), image.begin(), image.end());
  }
  input.insert(input.end(), images.begin(), images.end());
  return input;
}

std::vector<std::uint8_t> name_input(std::string_view name) {
  const std::string text = "NAME" + std::string(name);
  return {text.begin(), text.end()};
}

void add_bad_files(std::vector<GgufSeed>& seeds) {
  GgufBuilder builder = three_tensors();
  builder.version = 0x03000000;
  seeds.push_back({"bad_byte_swapped.gguf", builder.build()});
  builder = three_tensors();
  builder.find("b.weight").offset = 64;
  seeds.push_back({"bad_offset.gguf", builder.build()});
  builder = three_tensors();
  builder.find("c.weight").type_id = 43;
  builder.find("c.weight").bytes = 16;
  seeds.push_back({"bad_type.gguf", builder.build()});
  builder = three_tensors();
  builder.find("b.weight") = {"b.weight", 42, {128, 16}, {}, {}, {}, 16 * 34};
  seeds.push_back({"bad_prism_q2_0.gguf", builder.build()});
  builder = three_tensors();
  builder.add_duplicate("general.architecture", 1);
  seeds.push_back({"bad_duplicate_key.gguf", builder.build()});
  std::vector<GgufBuilder> shards = three_tensors().split({1, 2});
  shards[1].find("c.weight").name = "a.weight";
  seeds.push_back({"bad_duplicate_over_shards.bin", shard_input(shards)});
  shards = three_tensors().split({1, 2});
  shards[1].add("split.no", std::uint16_t{0});
  seeds.push_back({"bad_shard_number.bin", shard_input(shards)});
  seeds.push_back({"bad_name.txt", name_input("model-00000-of-00003.gguf")});
}

}  // namespace

std::vector<GgufSeed> gguf_seeds() {
  std::vector<GgufSeed> seeds;
  seeds.push_back({"good_empty.gguf", GgufBuilder().build()});
  seeds.push_back({"good_values.gguf", every_value_type().build()});
  seeds.push_back({"good_tensors.gguf", every_tensor_type().build()});
  seeds.push_back({"good_three.gguf", three_tensors().build()});
  seeds.push_back({"good_shards.bin", shard_input(three_tensors().split({0, 2, 1}))});
  seeds.push_back({"good_name.txt", name_input("model-00002-of-00003.gguf")});
  add_bad_files(seeds);
  return seeds;
}

}  // namespace tandem::testing
