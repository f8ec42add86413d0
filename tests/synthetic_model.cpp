#include "tests/synthetic_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>

#include "placement/check.h"
#include "runtime/model_shape.h"

namespace tandem::testing {
namespace {

// Deterministic on every platform, unlike the standard distributions.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t bits() {  // splitmix64
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  double uniform() { return (static_cast<double>(bits() >> 11) + 0.5) * 0x1p-53; }
  float normal() {
    return static_cast<float>(std::sqrt(-2.0 * std::log(uniform())) * std::cos(2.0 * std::numbers::pi * uniform()));
  }

 private:
  std::uint64_t state_;
};

std::uint64_t name_seed(std::uint32_t seed, std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325ULL ^ seed;  // FNV-1a: a tensor's values do not depend on the others
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  return hash;
}

bool is_float(DType type) {
  return dtype_info(type).kind == DTypeKind::kFloat;
}

DType usable_type(const SyntheticOptions& options, const tandem::TensorSpec& spec) {
  const bool vector = spec.form != TensorForm::kMatrix && spec.form != TensorForm::kBank;
  const DType type = options.type ? options.type(spec) : vector ? DType::F32 : DType::Q8_0;
  const auto fits = [&](DType candidate) { return spec.ne[0] % dtype_info(candidate).block_elems == 0; };
  if (fits(type)) return type;
  return fits(DType::Q8_0) ? DType::Q8_0 : DType::F32;
}

float sane_value(const tandem::TensorSpec& spec, Random& random) {
  if (spec.form == TensorForm::kNorm) return 1.0F + 0.1F * random.normal();
  if (spec.form == TensorForm::kConv) return 0.5F * random.normal();
  if (spec.name.ends_with("ssm_a")) return -static_cast<float>(std::exp(random.uniform() * 2.0 - 2.0));
  if (spec.form == TensorForm::kVector) return random.normal();
  if (spec.role == TensorRole::kEmbedding || spec.role == TensorRole::kNgramTable) return random.normal();
  return random.normal() / std::sqrt(static_cast<float>(spec.ne[0]));
}

// Divides every scale in blocks made by random_weights (values up to about 4) by 2^shift.
void shrink_blocks(DType type, int shift, std::vector<std::uint8_t>& bytes) {
  const float factor = std::ldexp(1.0F, -shift);
  const std::size_t step = dtype_info(type).block_bytes;
  for (std::size_t at = 0; at < bytes.size(); at += step) {
    std::uint8_t* block = bytes.data() + at;
    const BlockHalves halves = block_halves(type);
    for (const int position : {halves.d, halves.second}) {
      if (position < 0) continue;
      std::uint16_t half = 0;
      std::memcpy(&half, block + position, sizeof half);
      half = float_to_half(half_to_float(half) * factor);
      std::memcpy(block + position, &half, sizeof half);
    }
    if (type == DType::MXFP4) block[0] = static_cast<std::uint8_t>(block[0] - shift);
    if (type == DType::NVFP4) {  // a 4-bit exponent above a 3-bit mantissa
      for (int j = 0; j < 4; ++j) block[j] = static_cast<std::uint8_t>(block[j] - 8 * std::min(shift, 3));
    }
    if (type == DType::IQ1_M) {  // the half is spread over the top nibbles of four words
      std::uint16_t half = 0;
      for (int i = 0; i < 4; ++i) half = static_cast<std::uint16_t>(half | (block[49 + 2 * i] >> 4) << (4 * i));
      half = float_to_half(half_to_float(half) * factor);
      for (int i = 0; i < 4; ++i) {
        block[49 + 2 * i] = static_cast<std::uint8_t>((block[49 + 2 * i] & 15) | ((half >> (4 * i)) & 15) << 4);
      }
    }
  }
}

std::vector<std::uint8_t> weights(const SyntheticOptions& options, const tandem::TensorSpec& spec, DType type) {
  if (options.zeros) return {};
  const std::uint64_t seed = name_seed(options.seed, spec.name);
  const auto n = static_cast<std::size_t>(spec.elements());
  if (is_float(type) || type == DType::Q8_0 || type == DType::Q4_0) {
    Random random(seed);
    std::vector<float> values(n);
    for (float& value : values) value = sane_value(spec, random);
    return quantise(type, values);
  }
  std::vector<std::uint8_t> bytes = random_weights(type, n, static_cast<std::uint32_t>(seed));
  const bool lookup = spec.role == TensorRole::kEmbedding || spec.role == TensorRole::kNgramTable;
  const double shift = lookup ? 0.0 : std::round(0.5 * std::log2(static_cast<double>(spec.ne[0])));
  shrink_blocks(type, static_cast<int>(shift), bytes);
  return bytes;
}

void add_tensors(GgufBuilder& builder, const SyntheticOptions& options, const std::vector<tandem::TensorSpec>& specs) {
  for (const tandem::TensorSpec& spec : specs) {
    const DType type = usable_type(options, spec);
    builder.tensor(spec.name, type, {spec.ne.begin(), spec.ne.begin() + spec.n_dims}, weights(options, spec, type));
  }
}

std::string utf8(std::uint32_t code) {  // below 0x800: all that the byte alphabet needs
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

// Printable bytes stand for themselves, the others for code points from 256 up, in order.
std::vector<std::string> byte_alphabet() {
  std::vector<std::string> alphabet;
  std::uint32_t next = 256;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    alphabet.push_back(utf8(printable ? byte : next++));
  }
  return alphabet;
}

void add_tokenizer(GgufBuilder& builder, const ModelShape& shape) {
  CHECK(shape.vocab >= kMinVocab, "{}", shape.vocab);
  constexpr std::int32_t kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5;
  std::vector<std::string> tokens = byte_alphabet();
  std::vector<std::int32_t> types(tokens.size(), kNormal);
  const auto add = [&](std::string_view text, std::int32_t type) {
    tokens.emplace_back(text);
    types.push_back(type);
  };
  for (const char* text : {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|image_pad|>"}) add(text, kControl);
  for (const char* text :
       {"<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"}) {
    add(text, kUserDefined);
  }
  const std::string space = utf8(0x120);  // how the byte alphabet writes a blank
  std::vector<std::string> merges;
  const std::vector<std::pair<std::string, std::string>> pairs{
      {space, "t"}, {"h", "e"}, {"i", "n"}, {space + "t", "he"}, {"e", "r"}, {"o", "n"}, {space, space}, {"in", "g"}};
  for (const auto& [left, right] : pairs) {
    merges.push_back(left + " " + right);
    add(left + right, kNormal);
  }
  for (auto i = static_cast<std::int64_t>(tokens.size()); i < shape.vocab; ++i) add(fmt::format("[PAD{}]", i), kUnused);
  builder.add("tokenizer.ggml.model", "gpt2").add("tokenizer.ggml.pre", "qwen35");
  builder.add("tokenizer.ggml.tokens", tokens).add("tokenizer.ggml.token_type", types);
  builder.add("tokenizer.ggml.merges", merges);
  builder.add("tokenizer.ggml.bos_token_id", static_cast<std::uint32_t>(kEndOfText));
  builder.add("tokenizer.ggml.eos_token_id", static_cast<std::uint32_t>(kImEnd));
  builder.add("tokenizer.ggml.padding_token_id", static_cast<std::uint32_t>(kEndOfText));
  builder.add("tokenizer.ggml.add_bos_token", false);
}

std::uint32_t u32(std::int64_t value) {
  return static_cast<std::uint32_t>(value);
}

void add_ple_keys(GgufBuilder& builder, const ModelShape& s) {
  builder.add("qwen4exp.embedding_length_per_layer_input", u32(s.ple_row_width));
  builder.add("qwen4exp.ple.layers", std::vector<std::int32_t>{s.ple_layer});
  builder.add("qwen4exp.ple.ngram_size", u32(s.ngram_size));
  builder.add("qwen4exp.ple.heads_per_ngram", u32(s.heads_per_ngram));
  builder.add("qwen4exp.ple.conv_kernel", u32(s.ple_conv));
  builder.add("qwen4exp.ple.eos_token_id", u32(s.ple_eos));
  builder.add("qwen4exp.ple.image_token_id", u32(s.image_token));
  builder.add("qwen4exp.ple.layer_multipliers", s.ple_multipliers);
  builder.add("qwen4exp.ple.head_vocab_sizes", s.ple_vocab_sizes);
  builder.add("qwen4exp.ple.head_offsets", s.ple_offsets);
}

void add_vocabulary(GgufBuilder& builder, const SyntheticOptions& options) {
  if (options.tokenizer) {
    add_tokenizer(builder, options.shape);
  } else {
    builder.add("qwen4exp.vocab_size", u32(options.shape.vocab));
  }
}

}  // namespace

ModelShape tiny_shape() {
  ModelShape s;
  s.hidden = 64;
  s.vocab = 320;
  s.layers = 4;
  s.mtp_layers = 1;
  s.max_positions = 512;
  s.is_gdn = {true, true, true, false};
  s.streams = 4;
  s.hc_rank = 32;
  s.heads = 4;
  s.kv_heads = 2;
  s.head_dim = 32;
  s.rope_dims = 16;
  s.rope_theta = 10000.0;
  s.indexer_heads = 2;
  s.indexer_dim = 32;
  s.indexer_ratio = 4;
  s.indexer_budget = 16;
  s.gdn_key_heads = 2;
  s.gdn_value_heads = 4;
  s.gdn_dim = 32;
  s.gdn_conv = 4;
  s.experts = 8;
  s.experts_used = 2;
  s.expert_ff = 32;
  s.shared_expert_ff = 64;
  s.ple_layer = 1;
  s.ngram_size = 3;
  s.heads_per_ngram = 2;
  s.ple_row_width = 32;
  s.ple_conv = 4;
  s.ple_rows = 512;
  s.ple_eos = kEndOfText;
  s.image_token = kImagePad;
  s.ple_multipliers = {23703573157769, 20109073645365, 8052911324071};
  s.ple_vocab_sizes = {101, 103, 107, 109};
  s.ple_offsets = {0, 101, 204, 311};
  return s;
}

void add_shape_keys(GgufBuilder& builder, const ModelShape& s) {
  const auto key = [](std::string_view name) { return fmt::format("{}.{}", kArchitecture, name); };
  const auto number = [&](std::string_view name, std::int64_t value) { builder.add(key(name), u32(value)); };
  builder.add("general.architecture", kArchitecture).add("general.name", "synthetic");
  number("context_length", s.max_positions);
  number("embedding_length", s.hidden);
  number("block_count", s.layers + s.mtp_layers);
  if (s.mtp_layers > 0) number("nextn_predict_layers", s.mtp_layers);
  number("attention.head_count", s.heads);
  number("attention.head_count_kv", s.kv_heads);
  number("attention.key_length", s.head_dim);
  number("attention.value_length", s.head_dim);
  builder.add(key("attention.layer_norm_rms_epsilon"), s.norm_eps);
  std::vector<std::int32_t> ratios(static_cast<std::size_t>(s.layers + s.mtp_layers), 0);
  std::vector<std::int32_t> recurrent(ratios.size(), 0);
  for (std::size_t i = 0; i < s.is_gdn.size(); ++i) {
    ratios[i] = s.is_gdn[i] ? 0 : s.indexer_ratio;
    recurrent[i] = s.is_gdn[i] ? 1 : 0;
  }
  builder.add(key("attention.compress_ratios"), ratios);
  builder.add(key("attention.recurrent_layers"), recurrent);
  number("attention.indexer.head_count", s.indexer_heads);
  number("attention.indexer.key_length", s.indexer_dim);
  number("attention.indexer.top_k", s.indexer_budget);
  number("rope.dimension_count", s.rope_dims);
  const auto half = static_cast<std::int32_t>(s.rope_dims / 2);
  builder.add(key("rope.dimension_sections"), std::vector<std::int32_t>{half - 2 * (half / 3), half / 3, half / 3, 0});
  builder.add(key("rope.freq_base"), static_cast<float>(s.rope_theta));
  number("ssm.conv_kernel", s.gdn_conv);
  number("ssm.state_size", s.gdn_dim);
  number("ssm.group_count", s.gdn_key_heads);
  number("ssm.time_step_rank", s.gdn_value_heads);
  number("ssm.inner_size", s.gdn_value_width());
  number("expert_count", s.experts);
  number("expert_used_count", s.experts_used);
  number("expert_feed_forward_length", s.expert_ff);
  number("expert_shared_feed_forward_length", s.shared_expert_ff);
  number("hyper_connection.count", s.streams);
  number("hyper_connection.low_rank", s.hc_rank);
  if (s.ple_layer >= 0) add_ple_keys(builder, s);
}

GgufBuilder synthetic_model(const SyntheticOptions& options) {
  GgufBuilder builder;
  add_shape_keys(builder, options.shape);
  add_vocabulary(builder, options);
  const TensorList list = expected_tensors(options.shape);
  add_tensors(builder, options, list.trunk);
  if (options.shape.mtp_layers > 0) add_tensors(builder, options, list.mtp);
  return builder;
}

GgufBuilder synthetic_mtp(const SyntheticOptions& options, bool own_embedding) {
  ModelShape shape = options.shape;
  shape.mtp_layers = 1;
  shape.ple_layer = -1;  // such files carry no ple keys
  GgufBuilder builder;
  add_shape_keys(builder, shape);
  const TensorList list = expected_tensors(options.shape);
  if (own_embedding) {
    add_vocabulary(builder, options);
    SyntheticOptions own = options;
    ++own.seed;  // other values than the trunk's, so that a mix-up shows
    add_tensors(builder, own, {list.trunk.begin(), list.trunk.begin() + 2});
  } else {
    builder.add("qwen4exp.vocab_size", u32(options.shape.vocab));
  }
  add_tensors(builder, options, list.mtp);
  return builder;
}

void fuse_gate_up(GgufBuilder& builder, int block) {
  const std::string prefix = fmt::format("blk.{}.ffn_", block);
  const TensorSpec gate = builder.find(prefix + "gate_exps.weight");
  const TensorSpec up = builder.find(prefix + "up_exps.weight");
  CHECK(gate.type_id == up.type_id && gate.data.size() == up.data.size());
  const std::size_t expert = gate.data.size() / static_cast<std::size_t>(gate.ne[2]);
  std::vector<std::uint8_t> data;
  for (std::size_t at = 0; at < gate.data.size(); at += expert) {
    for (const TensorSpec* half : {&gate, &up}) {
      data.insert(data.end(), half->data.begin() + static_cast<std::ptrdiff_t>(at),
                  half->data.begin() + static_cast<std::ptrdiff_t>(at + expert));
    }
  }
  builder.remove_tensor(gate.name).remove_tensor(up.name);
  builder.tensor(prefix + "gate_up_exps.weight", static_cast<DType>(gate.type_id),
                 {gate.ne[0], 2 * gate.ne[1], gate.ne[2]}, std::move(data));
}

void rename_tensor(GgufBuilder& builder, std::string_view from, std::string_view to) {
  builder.find(from).name = to;
}

std::vector<std::uint8_t> quantise(DType type, const std::vector<float>& values) {
  std::vector<std::uint8_t> bytes;
  if (is_float(type)) {
    for (const float value : values) {
      if (type == DType::F32) append(bytes, value);
      if (type == DType::F16) append(bytes, float_to_half(value));
      if (type == DType::BF16) {
        std::uint32_t bits = 0;
        std::memcpy(&bits, &value, sizeof bits);
        append(bytes, static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16));
      }
    }
    return bytes;
  }
  CHECK((type == DType::Q8_0 || type == DType::Q4_0) && values.size() % 32 == 0, "{}", dtype_name(type));
  const int largest = type == DType::Q8_0 ? 127 : 7;
  for (std::size_t at = 0; at < values.size(); at += 32) {
    float amax = 0.0F;
    for (std::size_t i = 0; i < 32; ++i) amax = std::max(amax, std::abs(values[at + i]));
    const std::uint16_t half = float_to_half(amax / static_cast<float>(largest));
    append(bytes, half);
    const float d = half_to_float(half);
    std::array<int, 32> code{};
    for (std::size_t i = 0; i < 32; ++i) {
      if (d > 0.0F) code[i] = std::clamp(static_cast<int>(std::lround(values[at + i] / d)), -largest, largest);
    }
    if (type == DType::Q8_0) {
      for (const int c : code) append(bytes, static_cast<std::int8_t>(c));
    } else {  // element j in the low nibble of byte j, element j + 16 in the high one, each + 8
      for (std::size_t j = 0; j < 16; ++j) {
        append(bytes, static_cast<std::uint8_t>((code[j] + 8) | (code[j + 16] + 8) << 4));
      }
    }
  }
  return bytes;
}

}  // namespace tandem::testing
