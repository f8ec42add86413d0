// What a model needs in bytes, and where each part would live. Pure arithmetic on shape and sizes.
#pragma once

#include <cstdint>

#include "placement/model_shape.h"

namespace tandem {

// Bytes of the weights in the file(s), by how they are used.
struct WeightBytes {
  std::int64_t dense = 0;        // read for every token: mixers, hyper-connections, router, shared experts, norms, PLE
  std::int64_t head = 0;         // output matrix (and a draft head of its own)
  std::int64_t embedding = 0;    // token embedding: one row per token
  std::int64_t experts = 0;      // routed experts of the trunk
  std::int64_t ngram_table = 0;  // ple_heads() rows per token
  std::int64_t mtp_dense = 0;    // draft block without its routed experts
  std::int64_t mtp_experts = 0;  // routed experts of the draft block
  std::int64_t unused = 0;       // in the file, but never read
  // Everything that is read; without `unused`.
  std::int64_t total() const { return dense + head + embedding + experts + ngram_table + mtp_dense + mtp_experts; }
};

// Rows of a verify window, at most (kMaxWindow in runtime/sequence_state.h).
inline constexpr int kWindowRows = 16;

// How one sequence is stored. Bits per value count block scales too (8.5 for int8 with a half per 32 values).
struct StateLayout {
  std::int64_t context = 0;     // positions
  double kv_bits = 16;          // keys and values
  double pooled_bits = 32;      // pooled indexer keys, one row per indexer_ratio positions
  double raw_bits = 32;         // raw indexer keys
  bool raw_everywhere = false;  // false: raw keys only of the open block and the window
  int window = kWindowRows;     // rows of one verify window that can be dropped again
};

// Bytes of one sequence. With A attention layers and G Gated DeltaNet layers of the trunk, C positions, w window rows:
//   kv            A * C * 2 * kv_heads * head_dim * kv_bits / 8
//   pooled        A * floor(C / ratio) * indexer_dim * pooled_bits / 8
//   raw           A * R * indexer_dim * raw_bits / 8,  R = C if raw_everywhere, else ratio + w
//   gdn_state     G * value_heads * gdn_dim^2 * 4
//   gdn_conv      G * (taps - 1) * gdn_conv_width * 4
//   ple_conv      (taps - 1) * ngram_size * D * 4, 0 without PLE
//   replay        w * (replay_bytes_per_row + G * gdn_conv_width * 4 + D * 4): the log from which a dropped draft is
//                 undone, and the window's rows of the convolutions' histories; without PLE no D
//   mtp_kv, mtp_pooled, mtp_raw   as above with A = mtp_layers
// Bytes are rounded up to whole ones per term.
struct StateBytes {
  std::int64_t kv = 0, pooled = 0, raw = 0;
  std::int64_t gdn_state = 0, gdn_conv = 0, ple_conv = 0, replay = 0;
  std::int64_t mtp_kv = 0, mtp_pooled = 0, mtp_raw = 0;
  std::int64_t total() const {
    return kv + pooled + raw + gdn_state + gdn_conv + ple_conv + replay + mtp_kv + mtp_pooled + mtp_raw;
  }
};
StateBytes state_bytes(const ModelShape& shape, const StateLayout& layout);

// The memory of the keys and values of one sequence (kv and mtp_kv of the above): an area for the keys and one for the
// values of each attention layer, the trunk's and then the draft block's, `stride` bytes apart. Row p of an area begins
// at p * position_bytes.
struct CacheAreas {
  int count = 0;
  std::int64_t bytes = 0, stride = 0;  // of an area
  std::int64_t position_bytes = 0;
  std::int64_t total() const { return count * stride; }
};
CacheAreas cache_areas(const ModelShape& shape, const StateLayout& layout);

// One row of the delta-rule log over all GDN layers: k, u and the decay of every head, as floats:
//   G * (key_heads * gdn_dim + value_heads * gdn_dim + value_heads) * 4
std::int64_t replay_bytes_per_row(const ModelShape& shape);

// Experts on their way to a card while a long pass runs (gpu/expert_stream.h): kStreamPlaces places, which together
// hold two banks of `bank_bytes`, or 512 MiB if that is less; a place holds one expert at least.
inline constexpr std::int64_t kStreamPlaces = 16;
std::int64_t stream_ring_bytes(std::int64_t bank_bytes, std::int64_t expert_bytes);
// Rows of a pass that has work memory of its own beside that of longer ones, where the latter is lent
// (placement/adapt.h): every verify window, and short questions.
inline constexpr int kShortRows = 64;
// What the experts of a pass of so many rows need on a card beside that: for every (row, expert) pair its hidden row,
// quantised (ff * 11 / 8), and its place in the order of the experts (8).
std::int64_t long_pass_bytes(const ModelShape& shape, std::int64_t rows);

// Rows of a prompt's pass where nobody says: 512 without a card (vram 0) and on one of less than 8 GiB; 1,024 below 16
// GiB; 4,096 from there on. A pass is sent all experts that are off the card however many rows it has, so more rows are
// read in the same time, and cost work memory (0.25 MB each at full size).
std::int64_t default_prefill_rows(std::int64_t vram);

// Where everything would live on a machine with a card: what every token reads goes to the card; routed experts and
// the token embedding stay in RAM (the card takes as many experts as then fit); the n-gram table may stay on disk.
struct Footprint {
  std::int64_t card_weights = 0;  // dense + head + mtp_dense
  std::int64_t card_state = 0;    // StateBytes::total
  std::int64_t ram_experts = 0;   // experts + mtp_experts
  std::int64_t ram_embedding = 0;
  std::int64_t disk_or_ram = 0;   // n-gram table
  std::int64_t expert_count = 0;  // routed experts, the draft block's included
  std::int64_t card() const { return card_weights + card_state; }
  std::int64_t ram() const { return ram_experts + ram_embedding; }
  // Mean bytes of one routed expert; 0 when there are none.
  std::int64_t expert_bytes() const { return expert_count == 0 ? 0 : ram_experts / expert_count; }
};
Footprint footprint(const ModelShape& shape, const WeightBytes& weights, const StateLayout& layout);

}  // namespace tandem
