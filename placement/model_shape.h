// The numbers that describe a qwen4exp model. Plain integers: the planner knows neither files nor tensors.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace tandem {

struct ModelShape {
  // trunk
  std::int64_t hidden = 0;         // d, 2560
  std::int64_t vocab = 0;          // 248320
  int layers = 0;                  // trunk layers, without the MTP block, 48
  int mtp_layers = 0;              // 0 or 1
  std::int64_t max_positions = 0;  // trained context, 262144
  float norm_eps = 1e-6F;          // every RMS norm and L2 norm
  std::vector<bool> is_gdn;        // per trunk layer: Gated DeltaNet (true) or QSA attention (false)

  // hyper-connections
  int streams = 0;                                        // hc_count, 4
  std::int64_t hc_rank = 0;                               // 320
  std::int64_t wide() const { return streams * hidden; }  // D = streams * hidden, 10240

  // QSA attention
  int heads = 0;                 // 24
  int kv_heads = 0;              // 2
  std::int64_t head_dim = 0;     // 256
  std::int64_t rope_dims = 0;    // 64 rotated dims of each head and of each indexer head
  double rope_theta = 0;         // 1e7
  int indexer_heads = 0;         // 4
  std::int64_t indexer_dim = 0;  // 128
  int indexer_ratio = 0;         // tokens per pooled block, 4
  int indexer_budget = 0;        // tokens, 2048
  int indexer_blocks() const { return indexer_budget / indexer_ratio; }

  // Gated DeltaNet
  int gdn_key_heads = 0;     // 16
  int gdn_value_heads = 0;   // 48; value head j uses key head j mod gdn_key_heads (tiled, GGUF order)
  std::int64_t gdn_dim = 0;  // key and value head dim, 128
  int gdn_conv = 0;          // 4 taps
  std::int64_t gdn_key_width() const { return gdn_key_heads * gdn_dim; }
  std::int64_t gdn_value_width() const { return gdn_value_heads * gdn_dim; }
  std::int64_t gdn_conv_width() const { return 2 * gdn_key_width() + gdn_value_width(); }  // 10240

  // experts
  int experts = 0;                    // 512 (256, 288, 320 in pruned derivatives)
  int experts_used = 0;               // 10
  std::int64_t expert_ff = 0;         // 640
  std::int64_t shared_expert_ff = 0;  // 640

  // n-gram embedding (PLE); ple_layer < 0 when the model has none
  int ple_layer = -1;                          // 0-based, 1
  int ngram_size = 0;                          // 3: bigrams and trigrams
  int heads_per_ngram = 0;                     // 8
  std::int64_t ple_row_width = 0;              // 160
  int ple_conv = 0;                            // 4 taps, dilation ngram_size
  std::int64_t ple_rows = 0;                   // rows of the table, 320001536
  std::int32_t ple_eos = -1;                   // the token that cuts n-gram context, 248044
  std::int32_t image_token = -1;               // stands for embedding-only positions; falls back to ple_eos
  std::vector<std::uint64_t> ple_multipliers;  // [ngram_size], lag 0 first
  std::vector<std::uint64_t> ple_vocab_sizes;  // [ple_heads()]
  std::vector<std::uint64_t> ple_offsets;      // [ple_heads()]
  int ple_heads() const { return (ngram_size - 1) * heads_per_ngram; }
  std::int64_t ple_width() const { return ple_heads() * ple_row_width; }  // 2560
  int ple_history() const { return (ple_conv - 1) * ngram_size; }         // rows of conv input kept, 9
};

}  // namespace tandem
