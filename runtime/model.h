// A qwen4exp model: every tensor of the file set bound once, by name, type and shape, into named fields. After
// Model::open no string is looked up again. Nothing is copied: the views point into the mapped files.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "placement/model_shape.h"
#include "runtime/gguf.h"
#include "runtime/tensor.h"

namespace tandem {

// READ/WRITE weights of one hyper-connection module (spec section 2.2).
struct HcWeights {
  WeightView norm;    // [1, D] gamma
  WeightView down;    // [rank, D]
  WeightView up;      // [D, rank]
  WeightView inject;  // [streams, D]; empty in output mixers
};

struct GdnWeights {
  WeightView qkv;      // [2*key_width + value_width, d]: q | k | v (value heads tiled)
  WeightView gate;     // [value_width, d]  z
  WeightView conv;     // [conv_width, taps] oldest tap first, float
  WeightView dt_bias;  // [1, value_heads]
  WeightView a;        // [1, value_heads]  already -exp(A_log)
  WeightView alpha;    // [value_heads, d]
  WeightView beta;     // [value_heads, d]
  WeightView norm;     // [1, gdn_dim] plain weight
  WeightView out;      // [d, value_width]
};

struct AttentionWeights {
  WeightView q;                               // [heads * 2 * head_dim, d]: per head query rows, then gate rows
  WeightView k, v;                            // [kv_heads * head_dim, d]
  WeightView out;                             // [d, heads * head_dim]
  WeightView q_norm, k_norm;                  // [1, head_dim]
  WeightView indexer_q;                       // [indexer_heads * indexer_dim, d]
  WeightView indexer_k;                       // [indexer_dim, d]
  WeightView indexer_q_norm, indexer_k_norm;  // [1, indexer_dim]
};

// One expert's three matrices.
struct ExpertWeights {
  WeightView gate, up;  // [ff, d]
  WeightView down;      // [d, ff]
};

// The routed experts of one layer. gate and up are banks [experts * ff, d]; down is [experts * d, ff]. A fused
// gate_up bank (per expert: gate rows, then up rows) is bound as two views with a stride.
struct ExpertBank {
  WeightView gate, up, down;       // rows of expert 0 only: [ff, d], [ff, d], [d, ff]
  std::size_t gate_up_stride = 0;  // bytes from one expert's gate to the next one's
  std::size_t up_stride = 0;       // the same for up: another number when gate and up have different types
  std::size_t down_stride = 0;
  int experts = 0;
  // Per-expert output scales of NVFP4 files (empty: 1 for all), float [experts].
  const float* gate_scale = nullptr;
  const float* up_scale = nullptr;
  const float* down_scale = nullptr;
  ExpertWeights expert(int index) const;
};

struct MoeWeights {
  WeightView router;  // [experts, d]
  ExpertBank routed;
  WeightView shared_gate;  // [1, d], sigmoid gate of the shared expert
  ExpertWeights shared;
};

struct PleWeights {
  WeightView key;                              // [D, ple_width]
  WeightView value;                            // [d, ple_width]
  WeightView norm_key, norm_query, norm_conv;  // [1, D]
  WeightView conv;                             // [D, taps] oldest tap first, float
};

struct LayerWeights {
  HcWeights hc_attn, hc_ffn;
  std::optional<GdnWeights> gdn;  // exactly one of gdn and attention
  std::optional<AttentionWeights> attention;
  std::optional<PleWeights> ple;  // only on the PLE layer
  MoeWeights moe;
};

struct MtpWeights {
  WeightView enorm;               // [1, d]
  WeightView hnorm;               // [1, D]
  WeightView eh_proj;             // [d, 2d]: embedding columns first; empty when the file has split projections
  WeightView e_proj;              // [d, d] split form, else empty
  WeightView h_proj;              // [d, d]
  HcWeights head;                 // draft mixer, no inject
  LayerWeights layer;             // a full attention layer
  WeightView token_embd, output;  // own copies, or the trunk's
  // The tokens that the rows of `output` stand for, ascending; empty: row i is token i.
  std::vector<std::int32_t> output_ids;

  // From now on `output` has the rows of these tokens only: a copy, which this holds. To be called before a machine
  // loads the model, once. REQUIRES at least one id, ascending, each once, below the rows of `output`.
  void reduce_output(std::vector<std::int32_t> ids);

 private:
  std::vector<std::uint8_t> output_rows_;
};

// What a model recommends for sampling: the published defaults of this architecture, replaced by general.sampling.*
// where the file has them. A file states one set, for the default (thinking) mode: a value in it that equals the
// published thinking figure therefore leaves the plain figure alone; any other value is used in both modes.
struct SamplingHints {
  float temperature, top_p, min_p, presence_penalty;
  int top_k;
  std::string source;  // "file" or "published defaults"
};

class ModelBinder;

// Whether to bind the draft block: kAuto takes a separate MTP file, else the block in the model file, else none.
enum class MtpPolicy { kAuto, kOff };

class Model {
 public:
  // Opens the set that `path` belongs to, and optionally a separate MTP file. Throws InputError naming the tensor or
  // key with expected and found shape or type; foreign layouts are refused by name.
  static Model open(const std::filesystem::path& path, const std::filesystem::path& mtp_path = {},
                    MtpPolicy policy = MtpPolicy::kAuto);
  // The same from opened directories.
  static Model bind(Gguf gguf, std::optional<Gguf> mtp_gguf = std::nullopt, MtpPolicy policy = MtpPolicy::kAuto);

  ModelShape shape;
  WeightView token_embd;  // [vocab, d]
  WeightView output;      // [vocab, d]
  HcWeights output_hc;    // no inject
  WeightView ple_table;   // [ple_rows, ple_row_width]
  std::vector<LayerWeights> layers;
  std::optional<MtpWeights> mtp;
  std::string mtp_note;               // why there is no MTP, or where it came from
  std::vector<std::string> warnings;  // things a user should see once (unknown keys are not among them)
  SamplingHints sampling_thinking, sampling_plain;

  // The matrix is not going to be read again soon: its pages may leave the process's memory.
  void release(const std::uint8_t* data, std::size_t bytes) const {
    gguf_->release(data, bytes);
    if (mtp_gguf_) mtp_gguf_->release(data, bytes);
  }
  const Gguf& gguf() const { return *gguf_; }
  const Gguf* mtp_gguf() const { return mtp_gguf_.get(); }
  // Identity of the weights for saved states: a hash of shape, tensor directory (names, types, shapes) and samples of
  // the data. Two files with the same fingerprint give the same logits.
  std::uint64_t fingerprint() const { return fingerprint_; }

 private:
  Model() = default;
  void bind_mtp(MtpPolicy policy, ModelBinder& binder, std::optional<ModelBinder>& mtp_binder);
  std::unique_ptr<Gguf> gguf_, mtp_gguf_;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace tandem
