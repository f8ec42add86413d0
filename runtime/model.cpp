#include "runtime/model.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <set>

#include "placement/check.h"
#include "runtime/model_binder.h"
#include "runtime/model_shape.h"
#include "runtime/model_tensors.h"

namespace tandem {
namespace {

constexpr std::string_view kTrunkAdvice =
    "the download or the conversion is incomplete; fetch all parts of the model again";

std::string mtp_advice(std::string_view what) {
  return fmt::format("{}, or run without drafts (--no-mtp)", what);
}

// Before the metadata is read: what a separate MTP file says about the trunk may be incomplete.
void refuse_mtp_only(const Gguf& gguf) {
  if (!is_qwen4exp(gguf) || !is_mtp_only(gguf)) return;
  fail_input(
      "{}: expected a complete model, found only the MTP draft block. Fix: give the model file, and this one as its "
      "MTP file (--mtp FILE).",
      gguf.name());
}

// A model with holes is refused by the first hole.
void check_blocks(const Gguf& gguf, const ModelShape& shape) {
  std::set<int> present;
  for (const GgufTensor& tensor : gguf.tensors()) present.insert(block_of(tensor.name));
  for (int block = 0; block < shape.layers; ++block) {
    if (present.count(block) != 0) continue;
    fail_input("{}: blk.{}: expected tensors for each of the blocks 0 to {}, found none for this one. Fix: {}.",
               gguf.name(), block, shape.layers - 1, kTrunkAdvice);
  }
}

std::string list_unused(std::string_view file, const std::vector<std::string_view>& names) {
  constexpr std::size_t kShown = 8;
  std::string text = fmt::format("{}: {} tensor{} of the file {} not used: ", file, names.size(),
                                 names.size() == 1 ? "" : "s", names.size() == 1 ? "is" : "are");
  for (std::size_t i = 0; i < std::min(kShown, names.size()); ++i) {
    text += fmt::format("{}{}", i > 0 ? ", " : "", names[i]);
  }
  return names.size() > kShown ? text + ", ..." : text;
}

// ---- sampling hints ----------------------------------------------------------------------------------------------

SamplingHints published(bool thinking) {
  return thinking ? SamplingHints{1.0F, 0.95F, 0.0F, 0.0F, 20, "published defaults"}
                  : SamplingHints{0.7F, 0.8F, 0.0F, 1.5F, 20, "published defaults"};
}

// Ranges beyond which a value cannot be meant; such a file is refused rather than sampled from wrongly.
float checked_hint(const Gguf& gguf, std::string_view key, double value, double low, double high) {
  if (!(value >= low && value <= high)) {
    fail_input("{}: {}: expected a number from {} to {}, found {}. Fix: correct the key in the file's metadata.",
               gguf.name(), key, low, high, value);
  }
  return static_cast<float>(value);
}

void apply_file_hints(const Gguf& gguf, SamplingHints& thinking, SamplingHints& plain) {
  const SamplingHints reference = published(true);
  const auto apply = [&](std::string_view name, double low, double high, auto SamplingHints::*field) {
    const std::string key = fmt::format("general.sampling.{}", name);
    const std::optional<double> value = gguf.number(key);
    if (!value) return;
    using Field = std::remove_reference_t<decltype(thinking.*field)>;
    const auto number = static_cast<Field>(checked_hint(gguf, key, *value, low, high));
    thinking.*field = number;
    thinking.source = "file";
    if (number == reference.*field) return;
    plain.*field = number;
    plain.source = "file";
  };
  apply("temp", 0.0, 100.0, &SamplingHints::temperature);
  apply("top_p", 0.0, 1.0, &SamplingHints::top_p);
  apply("min_p", 0.0, 1.0, &SamplingHints::min_p);
  apply("top_k", 0.0, 1e6, &SamplingHints::top_k);
}

// ---- fingerprint -------------------------------------------------------------------------------------------------

class Fingerprint {
 public:
  Fingerprint() { XXH3_64bits_reset(state_.get()); }
  void bytes(const void* data, std::size_t n) { XXH3_64bits_update(state_.get(), data, n); }
  void number(std::int64_t value) { bytes(&value, sizeof value); }
  void text(std::string_view value) {
    number(static_cast<std::int64_t>(value.size()));
    bytes(value.data(), value.size());
  }
  std::uint64_t digest() const { return XXH3_64bits_digest(state_.get()); }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_{XXH3_createState()};
};

void add_shape(Fingerprint& print, const ModelShape& s) {
  for (const std::int64_t value : {s.hidden,
                                   s.vocab,
                                   std::int64_t{s.layers},
                                   std::int64_t{s.mtp_layers},
                                   s.max_positions,
                                   std::int64_t{s.streams},
                                   s.hc_rank,
                                   std::int64_t{s.heads},
                                   std::int64_t{s.kv_heads},
                                   s.head_dim,
                                   s.rope_dims,
                                   std::bit_cast<std::int64_t>(s.rope_theta),
                                   std::int64_t{std::bit_cast<std::int32_t>(s.norm_eps)},
                                   std::int64_t{s.indexer_heads},
                                   s.indexer_dim,
                                   std::int64_t{s.indexer_ratio},
                                   std::int64_t{s.indexer_budget},
                                   std::int64_t{s.gdn_key_heads},
                                   std::int64_t{s.gdn_value_heads},
                                   s.gdn_dim,
                                   std::int64_t{s.gdn_conv},
                                   std::int64_t{s.experts},
                                   std::int64_t{s.experts_used},
                                   s.expert_ff,
                                   s.shared_expert_ff,
                                   std::int64_t{s.ple_layer},
                                   std::int64_t{s.ngram_size},
                                   std::int64_t{s.heads_per_ngram},
                                   s.ple_row_width,
                                   std::int64_t{s.ple_conv},
                                   s.ple_rows,
                                   std::int64_t{s.ple_eos},
                                   std::int64_t{s.image_token}}) {
    print.number(value);
  }
  for (const bool gdn : s.is_gdn) print.number(gdn ? 1 : 0);
  for (const auto* list : {&s.ple_multipliers, &s.ple_vocab_sizes, &s.ple_offsets}) {
    print.number(static_cast<std::int64_t>(list->size()));
    print.bytes(list->data(), list->size() * sizeof(std::uint64_t));
  }
}

// Small models are sampled at start, middle and end of every tensor. A model with many tensors gets one sample per
// tensor, at one of the three places in turn, so that a cold 100 GB file costs about 2000 page reads at most.
void add_tensors(Fingerprint& print, const std::vector<ModelBinder::Bound>& bound) {
  constexpr std::size_t kPageReads = 2000;
  constexpr std::size_t kFull = 4096, kShort = 1024;
  const bool sample_all = bound.size() * 3 * 2 <= kPageReads;  // 4 KiB touch at most two pages
  for (std::size_t i = 0; i < bound.size(); ++i) {
    const GgufTensor& tensor = *bound[i].tensor;
    print.text(tensor.name);
    print.number(static_cast<std::int64_t>(tensor.type));
    for (const std::int64_t ne : bound[i].spec.ne) print.number(ne);
    const std::size_t n = std::min<std::size_t>(tensor.bytes, sample_all ? kFull : kShort);
    const std::size_t spare = tensor.bytes - n;
    for (std::size_t place = 0; place < 3; ++place) {
      if (sample_all || place == i % 3) print.bytes(tensor.data + spare / 2 * place, n);
    }
  }
}

}  // namespace

ExpertWeights ExpertBank::expert(int index) const {
  DCHECK(index >= 0 && index < experts);
  const auto i = static_cast<std::size_t>(index);
  const auto pick = [&](const WeightView& expert0, std::size_t stride, const float* scale) {
    WeightView view = expert0;
    view.data += i * stride;
    if (scale != nullptr) view.scale *= scale[i];
    return view;
  };
  return {pick(gate, gate_up_stride, gate_scale), pick(up, up_stride, up_scale), pick(down, down_stride, down_scale)};
}

void MtpWeights::reduce_output(std::vector<std::int32_t> ids) {
  CHECK(!ids.empty() && output_ids.empty(), "{} tokens of {}", ids.size(), output_ids.size());
  CHECK(ids.front() >= 0 && static_cast<std::size_t>(ids.back()) < output.rows, "tokens {} to {} of {}", ids.front(),
        ids.back(), output.rows);
  const std::size_t bytes = output.row_size();
  output_rows_.resize(ids.size() * bytes);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    CHECK(i == 0 || ids[i - 1] < ids[i], "token {} after {}", ids[i], ids[i - 1]);
    std::copy_n(output.row(static_cast<std::size_t>(ids[i])), bytes, output_rows_.data() + i * bytes);
  }
  output.data = output_rows_.data();
  output.rows = ids.size();
  output_ids = std::move(ids);
}

Model Model::open(const std::filesystem::path& path, const std::filesystem::path& mtp_path, MtpPolicy policy) {
  std::optional<Gguf> mtp;
  Gguf gguf = Gguf::open(path);
  if (!mtp_path.empty() && policy == MtpPolicy::kAuto) mtp = Gguf::open(mtp_path);
  return bind(std::move(gguf), std::move(mtp), policy);
}

void Model::bind_mtp(MtpPolicy policy, ModelBinder& binder, std::optional<ModelBinder>& mtp_binder) {
  const int announced = shape.mtp_layers;
  const int bundled = find_mtp_block(*gguf_);
  shape.mtp_layers = 0;
  if (policy == MtpPolicy::kOff) {
    mtp_note = "MTP is switched off (--no-mtp)";
  } else if (mtp_gguf_) {
    const int block = find_mtp_block(*mtp_gguf_);
    if (block < 0) {
      fail_input("{}: expected an MTP draft block (tensors blk.N.nextn.*), found none. Fix: {}.", mtp_gguf_->name(),
                 mtp_advice("pass an MTP file that belongs to the model"));
    }
    check_mtp_metadata(shape, *mtp_gguf_);
    mtp_binder.emplace(*mtp_gguf_, mtp_advice("pass an MTP file that belongs to the model"));
    visit_mtp(shape, block, is_mtp_only(*mtp_gguf_), mtp.emplace(), *mtp_binder);
    mtp_note = fmt::format(
        "MTP block blk.{} of {}, {}", block, mtp_gguf_->name(),
        mtp->token_embd && mtp->output ? "with its own embedding and head" : "sharing the model's embedding or head");
  } else if (announced == 0) {
    mtp_note = bundled < 0 ? "the file has no MTP block; a separate MTP file can be given (--mtp FILE)"
                           : fmt::format("the file has tensors of an MTP block (blk.{}), but nextn_predict_layers is 0",
                                         bundled);
  } else if (bundled < 0) {
    mtp_note = fmt::format("the metadata announces an MTP block (blk.{}), but the file has none of its nextn tensors",
                           shape.layers);
    warnings.push_back(fmt::format("{}: {}. Drafts need a separate MTP file (--mtp FILE).", gguf_->name(), mtp_note));
  } else {
    binder.set_advice(mtp_advice("use a complete file"));
    visit_mtp(shape, shape.layers, false, mtp.emplace(), binder);
    mtp_note = fmt::format("MTP block blk.{} of the model file", shape.layers);
  }
  if (!mtp) return;
  shape.mtp_layers = 1;
  if (!mtp->token_embd) mtp->token_embd = token_embd;
  if (!mtp->output) mtp->output = output;
}

Model Model::bind(Gguf gguf, std::optional<Gguf> mtp_gguf, MtpPolicy policy) {
  Model model;
  model.gguf_ = std::make_unique<Gguf>(std::move(gguf));
  if (mtp_gguf) model.mtp_gguf_ = std::make_unique<Gguf>(std::move(*mtp_gguf));
  refuse_mtp_only(*model.gguf_);
  model.shape = read_model_shape(*model.gguf_, model.warnings);
  check_blocks(*model.gguf_, model.shape);
  const int bundled_block = model.shape.mtp_layers > 0 ? model.shape.layers : -1;

  ModelBinder binder(*model.gguf_, std::string(kTrunkAdvice));
  visit_trunk(model.shape, {model.token_embd, model.output, model.output_hc, model.ple_table, model.layers}, binder);
  std::optional<ModelBinder> mtp_binder;
  model.bind_mtp(policy, binder, mtp_binder);

  // The draft block of a model file is no surprise when it was switched off or replaced by another file.
  const bool bundled_bound = model.mtp && !mtp_binder;
  if (const auto names = binder.unused(bundled_bound ? -1 : bundled_block); !names.empty()) {
    model.warnings.push_back(list_unused(model.gguf_->name(), names));
  }
  if (mtp_binder && is_mtp_only(*model.mtp_gguf_)) {
    if (const auto names = mtp_binder->unused(-1); !names.empty()) {
      model.warnings.push_back(list_unused(model.mtp_gguf_->name(), names));
    }
  }
  model.sampling_thinking = published(true);
  model.sampling_plain = published(false);
  apply_file_hints(*model.gguf_, model.sampling_thinking, model.sampling_plain);

  Fingerprint print;
  add_shape(print, model.shape);
  std::vector<ModelBinder::Bound> bound = binder.bound();
  if (mtp_binder) bound.insert(bound.end(), mtp_binder->bound().begin(), mtp_binder->bound().end());
  add_tensors(print, bound);
  model.fingerprint_ = print.digest();
  return model;
}

}  // namespace tandem
