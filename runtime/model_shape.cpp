#include "runtime/model_shape.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "placement/check.h"

namespace tandem {
namespace {

// Upper limits are far above any real model; they keep every product of shape numbers inside 64 bits.
constexpr std::int64_t kMaxDim = std::int64_t{1} << 20;
constexpr std::int64_t kMaxVocab = std::int64_t{1} << 24;
constexpr std::int64_t kMaxHeads = 1 << 12;
constexpr std::int64_t kMaxLayers = 1 << 10;
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 31;
constexpr std::int64_t kMaxNgram = 8;
constexpr std::int64_t kMaxPleHeads = 64;
constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

constexpr std::string_view kFixFile =
    "Fix: the file is damaged or comes from an incompatible converter; download it again or use another conversion";

std::string full_key(std::string_view name) {
  return fmt::format("{}.{}", kArchitecture, name);
}

// Required and optional keys below "qwen4exp.", range checked, with file and key in every message.
class Keys {
 public:
  explicit Keys(const Gguf& gguf) : gguf_(gguf) {}

  std::int64_t number(std::string_view name, std::int64_t low, std::int64_t high) const {
    const std::string key = full_key(name);
    return in_range(key, gguf_.require_integer(key), low, high);
  }
  std::optional<std::int64_t> optional(std::string_view name, std::int64_t low, std::int64_t high) const {
    const std::string key = full_key(name);
    const std::optional<std::int64_t> value = gguf_.integer(key);
    if (value) in_range(key, *value, low, high);
    return value;
  }
  int small(std::string_view name, std::int64_t low, std::int64_t high) const {
    return static_cast<int>(number(name, low, high));
  }
  double positive_number(std::string_view name) const {
    const std::string key = full_key(name);
    const double value = gguf_.require_number(key);
    if (!(value > 0.0) || !std::isfinite(value)) fail(key, "a positive number", fmt::format("{}", value));
    return value;
  }
  // A per-layer array: exactly one entry per block. `shown` describes the entries in messages.
  std::vector<std::int64_t> per_block(std::string_view name, int blocks) const {
    const std::string key = full_key(name);
    std::optional<std::vector<std::int64_t>> values = gguf_.integers(key);
    if (!values) fail(key, "an array with one entry per block", "no such key");
    if (values->size() != static_cast<std::size_t>(blocks)) {
      fail(key, fmt::format("{} entries (block_count)", blocks), fmt::format("{}", values->size()));
    }
    return std::move(*values);
  }
  std::vector<std::uint64_t> at_least(std::string_view name, std::size_t entries) const {
    const std::string key = full_key(name);
    std::optional<std::vector<std::uint64_t>> values = gguf_.unsigned_integers(key);
    if (!values) fail(key, fmt::format("an array of {} integers", entries), "no such key");
    if (values->size() < entries) {
      fail(key, fmt::format("at least {} entries", entries), fmt::format("{}", values->size()));
    }
    values->resize(entries);
    return std::move(*values);
  }
  bool has(std::string_view name) const { return gguf_.find(full_key(name)) != nullptr; }

  [[noreturn]] void fail(std::string_view key, std::string_view expected, std::string_view found) const {
    fail_input("{}: {}: expected {}, found {}. {}.", gguf_.name(), key, expected, found, kFixFile);
  }
  [[noreturn]] void fail_name(std::string_view name, std::string_view expected, std::string_view found) const {
    fail(full_key(name), expected, found);
  }
  const Gguf& gguf() const { return gguf_; }

 private:
  std::int64_t in_range(const std::string& key, std::int64_t value, std::int64_t low, std::int64_t high) const {
    if (value < low || value > high) {
      fail(key, fmt::format("an integer from {} to {}", low, high), fmt::format("{}", value));
    }
    return value;
  }
  const Gguf& gguf_;
};

// Vocabulary: the token list decides; a file without one (some MTP files) may carry vocab_size or only the embedding.
std::int64_t read_vocab(const Keys& keys) {
  const Gguf& gguf = keys.gguf();
  const std::optional<std::int64_t> stated = keys.optional("vocab_size", 1, kMaxVocab);
  if (const GgufValue* tokens = gguf.find("tokenizer.ggml.tokens")) {
    const auto* array = std::get_if<GgufArray>(tokens);
    if (array == nullptr) keys.fail("tokenizer.ggml.tokens", "an array of strings", "a single value");
    const auto size = static_cast<std::int64_t>(array->size());
    if (size < 1 || size > kMaxVocab) {
      keys.fail("tokenizer.ggml.tokens", fmt::format("1 to {} tokens", kMaxVocab), fmt::format("{}", size));
    }
    if (stated && *stated != size) {
      keys.fail_name("vocab_size", fmt::format("{} (the length of tokenizer.ggml.tokens)", size),
                     fmt::format("{}", *stated));
    }
    return size;
  }
  if (stated) return *stated;
  if (const GgufTensor* embedding = gguf.find_tensor("token_embd.weight")) {
    if (embedding->ne[1] >= 1 && embedding->ne[1] <= kMaxVocab) return embedding->ne[1];
  }
  keys.fail("tokenizer.ggml.tokens", "the vocabulary as an array of strings", "no such key");
}

// Settings of related architectures that change the arithmetic. Absent means the one behaviour we implement; another
// value must not be ignored silently.
void check_fixed_settings(const Keys& keys, const ModelShape& shape) {
  const auto fixed = [&](std::string_view name, double expected, double also) {
    const std::optional<double> value = keys.gguf().number(full_key(name));
    if (value && std::abs(*value - expected) > 1e-6 * std::abs(expected) && *value != also) {
      keys.fail_name(name, fmt::format("{} or no such key", expected), fmt::format("{}", *value));
    }
  };
  fixed("attention.scale", 1.0 / std::sqrt(static_cast<double>(shape.head_dim)), 0.0);
  fixed("expert_shared_count", 1.0, 1.0);
  fixed("expert_gating_func", 1.0, 0.0);  // 1 is softmax, 0 is "not set"
  fixed("expert_weights_scale", 1.0, 0.0);
  const std::optional<bool> norm = keys.gguf().boolean(full_key("expert_weights_norm"));
  if (norm && !*norm) keys.fail_name("expert_weights_norm", "true or no such key", "false");
}

// Gated DeltaNet or attention, per trunk layer; attention.recurrent_layers overrides full_attention_interval.
std::vector<bool> read_layer_kinds(const Keys& keys, int blocks, int layers) {
  std::vector<bool> is_gdn(static_cast<std::size_t>(layers));
  const std::optional<std::int64_t> interval = keys.optional("full_attention_interval", 1, kMaxLayers);
  if (keys.has("attention.recurrent_layers")) {
    const std::vector<std::int64_t> recurrent = keys.per_block("attention.recurrent_layers", blocks);
    for (std::size_t i = 0; i < is_gdn.size(); ++i) is_gdn[i] = recurrent[i] != 0;
  } else {
    if (!interval) keys.number("full_attention_interval", 1, kMaxLayers);  // throws: the key is required
    for (std::size_t i = 0; i < is_gdn.size(); ++i) is_gdn[i] = (static_cast<std::int64_t>(i) + 1) % *interval != 0;
  }
  if (std::find(is_gdn.begin(), is_gdn.end(), false) == is_gdn.end()) {
    keys.fail_name("full_attention_interval", "at least one full-attention layer", "only linear-attention layers");
  }
  return is_gdn;
}

// One pooling ratio for all attention layers, 0 on the others; the entries of MTP blocks are free.
int read_indexer_ratio(const Keys& keys, int blocks, const std::vector<bool>& is_gdn) {
  constexpr std::string_view kName = "attention.compress_ratios";
  const std::vector<std::int64_t> ratios = keys.per_block(kName, blocks);
  std::int64_t ratio = 0;
  for (std::size_t i = 0; i < is_gdn.size(); ++i) {
    if (is_gdn[i]) {
      if (ratios[i] != 0) {
        keys.fail_name(kName, fmt::format("0 for the linear-attention layer {}", i), fmt::format("{}", ratios[i]));
      }
      continue;
    }
    if (ratios[i] < 1 || ratios[i] > kMaxHeads) {
      keys.fail_name(kName, fmt::format("a pooling ratio from 1 to {} for the attention layer {}", kMaxHeads, i),
                     fmt::format("{}", ratios[i]));
    }
    if (ratio != 0 && ratios[i] != ratio) {
      keys.fail_name(kName, fmt::format("{} for every attention layer", ratio),
                     fmt::format("{} for layer {}", ratios[i], i));
    }
    ratio = ratios[i];
  }
  return static_cast<int>(ratio);
}

void read_attention(const Keys& keys, int blocks, ModelShape& shape) {
  shape.heads = keys.small("attention.head_count", 1, kMaxHeads);
  shape.kv_heads = keys.small("attention.head_count_kv", 1, kMaxHeads);
  if (shape.heads % shape.kv_heads != 0) {
    keys.fail_name("attention.head_count", fmt::format("a multiple of head_count_kv = {}", shape.kv_heads),
                   fmt::format("{}", shape.heads));
  }
  shape.head_dim = keys.number("attention.key_length", 1, kMaxDim);
  const std::int64_t value_dim = keys.number("attention.value_length", 1, kMaxDim);
  if (value_dim != shape.head_dim) {
    keys.fail_name("attention.value_length", fmt::format("{} (key_length)", shape.head_dim),
                   fmt::format("{}", value_dim));
  }
  shape.indexer_heads = keys.small("attention.indexer.head_count", 1, kMaxHeads);
  shape.indexer_dim = keys.number("attention.indexer.key_length", 1, kMaxDim);
  shape.indexer_budget = keys.small("attention.indexer.top_k", 1, kMaxInt32);
  shape.indexer_ratio = read_indexer_ratio(keys, blocks, shape.is_gdn);
  if (shape.indexer_budget % shape.indexer_ratio != 0) {
    keys.fail_name("attention.indexer.top_k", fmt::format("a multiple of the pooling ratio {}", shape.indexer_ratio),
                   fmt::format("{}", shape.indexer_budget));
  }
}

void read_rope(const Keys& keys, ModelShape& shape, std::vector<std::string>& warnings) {
  shape.rope_theta = keys.positive_number("rope.freq_base");
  shape.rope_dims = keys.number("rope.dimension_count", 2, std::min(shape.head_dim, shape.indexer_dim));
  if (shape.rope_dims % 2 != 0) {
    keys.fail_name("rope.dimension_count", "an even number", fmt::format("{}", shape.rope_dims));
  }
  const std::string sections_key = full_key("rope.dimension_sections");
  if (const auto sections = keys.gguf().integers(sections_key)) {
    if (sections->size() != 3 && sections->size() != 4) {
      keys.fail(sections_key, "3 or 4 entries", fmt::format("{}", sections->size()));
    }
    std::int64_t sum = 0;
    for (const std::int64_t section : *sections) {
      if (section < 0 || section > kMaxDim) {
        keys.fail(sections_key, fmt::format("entries from 0 to {}", kMaxDim), fmt::format("{}", section));
      }
      sum += section;
    }
    if (sum != shape.rope_dims / 2) {
      warnings.push_back(
          fmt::format("{}: {}: the sections add up to {}, expected {} (half of rope.dimension_count). "
                      "Text is not affected: all its position axes are equal.",
                      keys.gguf().name(), sections_key, sum, shape.rope_dims / 2));
    }
  }
  // Context extension would change every rotation; saying so beats answering differently from what the file asks.
  std::string scaling;
  const std::string prefix = full_key("rope.scaling.");
  const std::optional<std::string_view> type =
      keys.gguf().find(prefix + "type") != nullptr ? keys.gguf().string(prefix + "type") : std::nullopt;
  for (const GgufKeyValue& entry : keys.gguf().metadata()) {
    if (entry.key.starts_with(prefix)) scaling += (scaling.empty() ? "" : ", ") + entry.key;
  }
  if (!scaling.empty() && type != "none") {
    warnings.push_back(
        fmt::format("{}: {} present, but context extension is not applied: positions beyond the trained "
                    "{} are not supported.",
                    keys.gguf().name(), scaling, shape.max_positions));
  }
}

void read_gdn(const Keys& keys, ModelShape& shape) {
  shape.gdn_conv = keys.small("ssm.conv_kernel", 1, 64);
  shape.gdn_dim = keys.number("ssm.state_size", 1, kMaxDim);
  shape.gdn_key_heads = keys.small("ssm.group_count", 1, kMaxHeads);
  shape.gdn_value_heads = keys.small("ssm.time_step_rank", 1, kMaxHeads);
  const std::int64_t inner = keys.number("ssm.inner_size", 1, kMaxDim * kMaxHeads);
  if (inner != shape.gdn_value_width()) {
    keys.fail_name("ssm.inner_size",
                   fmt::format("{} (time_step_rank {} x state_size {})", shape.gdn_value_width(), shape.gdn_value_heads,
                               shape.gdn_dim),
                   fmt::format("{}", inner));
  }
  if (shape.gdn_value_heads % shape.gdn_key_heads != 0) {
    keys.fail_name("ssm.time_step_rank", fmt::format("a multiple of group_count = {}", shape.gdn_key_heads),
                   fmt::format("{}", shape.gdn_value_heads));
  }
}

void read_experts(const Keys& keys, ModelShape& shape) {
  shape.experts = keys.small("expert_count", 1, 1 << 14);
  shape.experts_used = keys.small("expert_used_count", 1, shape.experts);
  shape.expert_ff = keys.number("expert_feed_forward_length", 1, kMaxDim);
  shape.shared_expert_ff = keys.number("expert_shared_feed_forward_length", 1, kMaxDim);
}

// Hash constants: every row that a head can produce must exist in the table.
void check_ple_rows(const Keys& keys, ModelShape& shape) {
  std::uint64_t needed = 0;
  for (std::size_t h = 0; h < shape.ple_vocab_sizes.size(); ++h) {
    const std::uint64_t size = shape.ple_vocab_sizes[h];
    const std::uint64_t offset = shape.ple_offsets[h];
    constexpr auto kLimit = static_cast<std::uint64_t>(kMaxInt32);
    if (size == 0 || size > kLimit) {
      keys.fail_name("ple.head_vocab_sizes", fmt::format("entries from 1 to {}", kLimit),
                     fmt::format("{} for head {}", size, h));
    }
    if (offset > kLimit || offset + size > kLimit) {
      keys.fail_name("ple.head_offsets", fmt::format("offset + vocabulary size of at most {}", kLimit),
                     fmt::format("{} + {} for head {}", offset, size, h));
    }
    needed = std::max(needed, offset + size);
  }
  const GgufTensor* table = keys.gguf().find_tensor("per_layer_token_embd.weight");
  if (table == nullptr) {
    shape.ple_rows = static_cast<std::int64_t>(needed);  // the binder names the missing tensor with this shape
    return;
  }
  shape.ple_rows = table->ne[1];
  if (static_cast<std::uint64_t>(table->ne[1]) < needed) {
    fail_input(
        "{}: per_layer_token_embd.weight: expected at least {} rows (the largest ple.head_offsets + "
        "ple.head_vocab_sizes), found {}. {}.",
        keys.gguf().name(), needed, table->ne[1], kFixFile);
  }
}

void read_ple(const Keys& keys, ModelShape& shape) {
  const auto ple_layers = keys.gguf().integers(full_key("ple.layers"));
  if (!ple_layers || ple_layers->empty()) return;
  if (ple_layers->size() > 1) {
    keys.fail_name("ple.layers", "at most one layer", fmt::format("{} layers", ple_layers->size()));
  }
  const std::int64_t layer = ple_layers->front();
  if (layer < 0 || layer >= shape.layers) {
    keys.fail_name("ple.layers", fmt::format("a trunk layer from 0 to {}", shape.layers - 1), fmt::format("{}", layer));
  }
  if (!shape.is_gdn[static_cast<std::size_t>(layer)]) {
    keys.fail_name("ple.layers", "a linear-attention layer", fmt::format("{}, a full-attention layer", layer));
  }
  shape.ple_layer = static_cast<int>(layer);
  shape.ngram_size = keys.small("ple.ngram_size", 2, kMaxNgram);
  shape.heads_per_ngram = keys.small("ple.heads_per_ngram", 1, kMaxPleHeads);
  if (shape.ple_heads() > kMaxPleHeads) {
    keys.fail_name("ple.heads_per_ngram", fmt::format("at most {} hash heads in all", kMaxPleHeads),
                   fmt::format("{}", shape.ple_heads()));
  }
  shape.ple_row_width = keys.number("embedding_length_per_layer_input", 1, kMaxDim);
  shape.ple_conv = keys.small("ple.conv_kernel", 1, 64);
  shape.ple_eos = keys.small("ple.eos_token_id", 0, shape.vocab - 1);
  // The oldest files have no image token; embedding-only positions then read as end of text.
  const auto image = keys.optional("ple.image_token_id", 0, shape.vocab - 1);
  shape.image_token = image ? static_cast<std::int32_t>(*image) : shape.ple_eos;
  shape.ple_multipliers = keys.at_least("ple.layer_multipliers", static_cast<std::size_t>(shape.ngram_size));
  shape.ple_vocab_sizes = keys.at_least("ple.head_vocab_sizes", static_cast<std::size_t>(shape.ple_heads()));
  shape.ple_offsets = keys.at_least("ple.head_offsets", static_cast<std::size_t>(shape.ple_heads()));
  check_ple_rows(keys, shape);
}

// block_count includes the MTP blocks, which come last.
void read_blocks(const Keys& keys, int& blocks, ModelShape& shape) {
  blocks = keys.small("block_count", 1, kMaxLayers);
  shape.mtp_layers = static_cast<int>(keys.optional("nextn_predict_layers", 0, kMaxLayers).value_or(0));
  if (blocks <= shape.mtp_layers) {
    keys.fail_name("block_count", fmt::format("more than nextn_predict_layers = {}", shape.mtp_layers),
                   fmt::format("{}", blocks));
  }
  if (shape.mtp_layers > 1) {
    keys.fail_name("nextn_predict_layers", "0 or 1", fmt::format("{}", shape.mtp_layers));
  }
  shape.layers = blocks - shape.mtp_layers;
}

}  // namespace

bool is_qwen4exp(const Gguf& gguf) {
  const GgufValue* value = gguf.find("general.architecture");
  if (value == nullptr) return false;
  const auto* text = std::get_if<std::string_view>(value);
  return text != nullptr && *text == kArchitecture;
}

ModelShape read_model_shape(const Gguf& gguf, std::vector<std::string>& warnings) {
  const std::string_view architecture = gguf.require_string("general.architecture");
  if (architecture != kArchitecture) {
    fail_input(
        "{}: general.architecture: expected \"{}\", found \"{}\". Fix: use a GGUF of Qwen3.8-Flash-Next; other "
        "architectures are not supported.",
        gguf.name(), kArchitecture, architecture);
  }
  const Keys keys(gguf);
  ModelShape shape;
  int blocks = 0;
  read_blocks(keys, blocks, shape);
  shape.hidden = keys.number("embedding_length", 1, kMaxDim);
  shape.vocab = read_vocab(keys);
  shape.max_positions = keys.number("context_length", 1, kMaxPositions);
  shape.norm_eps = static_cast<float>(keys.positive_number("attention.layer_norm_rms_epsilon"));
  shape.streams = keys.small("hyper_connection.count", 2, 64);
  shape.hc_rank = keys.number("hyper_connection.low_rank", 1, kMaxDim);
  shape.is_gdn = read_layer_kinds(keys, blocks, shape.layers);
  read_attention(keys, blocks, shape);
  read_rope(keys, shape, warnings);
  read_gdn(keys, shape);
  read_experts(keys, shape);
  check_fixed_settings(keys, shape);
  read_ple(keys, shape);
  return shape;
}

int block_of(std::string_view tensor_name) {
  constexpr std::string_view kPrefix = "blk.";
  if (!tensor_name.starts_with(kPrefix)) return -1;
  int block = 0;
  std::size_t i = kPrefix.size();
  for (; i < tensor_name.size() && tensor_name[i] >= '0' && tensor_name[i] <= '9'; ++i) {
    if (block > kMaxLayers) return -1;
    block = block * 10 + (tensor_name[i] - '0');
  }
  return i > kPrefix.size() && i < tensor_name.size() && tensor_name[i] == '.' ? block : -1;
}

int find_mtp_block(const Gguf& gguf) {
  for (const GgufTensor& tensor : gguf.tensors()) {
    if (tensor.name.find(".nextn.") != std::string::npos) {
      if (const int block = block_of(tensor.name); block >= 0) return block;
    }
  }
  return -1;
}

bool is_mtp_only(const Gguf& gguf) {
  const int mtp = find_mtp_block(gguf);
  return mtp >= 0 && std::none_of(gguf.tensors().begin(), gguf.tensors().end(), [mtp](const GgufTensor& tensor) {
           const int block = block_of(tensor.name);
           return block >= 0 && block != mtp;
         });
}

void check_mtp_metadata(const ModelShape& trunk, const Gguf& mtp) {
  const Keys keys(mtp);
  if (!is_qwen4exp(mtp)) {
    fail_input(
        "{}: general.architecture: expected \"{}\", as in the model file. Fix: pass an MTP file of the same "
        "model.",
        mtp.name(), kArchitecture);
  }
  const auto same = [&](std::string_view name, std::int64_t expected) {
    const std::optional<std::int64_t> value = mtp.integer(full_key(name));
    if (value && *value != expected) {
      fail_input(
          "{}: {}: expected {} as in the model file, found {}. Fix: pass the MTP file that belongs to this model.",
          mtp.name(), full_key(name), expected, *value);
    }
  };
  same("embedding_length", trunk.hidden);
  same("attention.head_count", trunk.heads);
  same("attention.head_count_kv", trunk.kv_heads);
  same("attention.key_length", trunk.head_dim);
  same("attention.value_length", trunk.head_dim);
  same("attention.indexer.head_count", trunk.indexer_heads);
  same("attention.indexer.key_length", trunk.indexer_dim);
  same("rope.dimension_count", trunk.rope_dims);
  same("hyper_connection.count", trunk.streams);
  same("hyper_connection.low_rank", trunk.hc_rank);
  same("expert_count", trunk.experts);
  same("expert_used_count", trunk.experts_used);
  same("expert_feed_forward_length", trunk.expert_ff);
  same("expert_shared_feed_forward_length", trunk.shared_expert_ff);
  const std::optional<double> theta = mtp.number(full_key("rope.freq_base"));
  if (theta && *theta != trunk.rope_theta) {
    fail_input("{}: {}: expected {} as in the model file, found {}. Fix: pass the MTP file that belongs to this model.",
               mtp.name(), full_key("rope.freq_base"), trunk.rope_theta, *theta);
  }
}

}  // namespace tandem
