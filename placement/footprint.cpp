#include "placement/footprint.h"

#include <algorithm>
#include <cmath>

namespace tandem {
namespace {

std::int64_t bytes_of(std::int64_t values, double bits) {
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(values) * bits / 8.0));
}

struct CacheBytes {
  std::int64_t kv, pooled, raw;
};

CacheBytes cache_bytes(const ModelShape& shape, const StateLayout& layout, std::int64_t attention_layers) {
  const std::int64_t ratio = std::max(shape.indexer_ratio, 1);
  const std::int64_t raw_rows = layout.raw_everywhere ? layout.context : ratio + layout.window;
  return {
      bytes_of(attention_layers * layout.context * 2 * shape.kv_heads * shape.head_dim, layout.kv_bits),
      bytes_of(attention_layers * (layout.context / ratio) * shape.indexer_dim, layout.pooled_bits),
      bytes_of(attention_layers * raw_rows * shape.indexer_dim, layout.raw_bits),
  };
}

std::int64_t gdn_layers(const ModelShape& shape) {
  return std::count(shape.is_gdn.begin(), shape.is_gdn.end(), true);
}

}  // namespace

std::int64_t replay_bytes_per_row(const ModelShape& shape) {
  return gdn_layers(shape) * (shape.gdn_key_width() + shape.gdn_value_width() + shape.gdn_value_heads) * 4;
}

StateBytes state_bytes(const ModelShape& shape, const StateLayout& layout) {
  const std::int64_t gdn = gdn_layers(shape);
  const std::int64_t attention = static_cast<std::int64_t>(shape.is_gdn.size()) - gdn;
  const CacheBytes trunk = cache_bytes(shape, layout, attention);
  const CacheBytes mtp = cache_bytes(shape, layout, shape.mtp_layers);
  StateBytes bytes;
  bytes.kv = trunk.kv;
  bytes.pooled = trunk.pooled;
  bytes.raw = trunk.raw;
  bytes.gdn_state = gdn * shape.gdn_value_heads * shape.gdn_dim * shape.gdn_dim * 4;
  bytes.gdn_conv = gdn * (shape.gdn_conv - 1) * shape.gdn_conv_width() * 4;
  bytes.ple_conv = shape.ple_layer < 0 ? 0 : shape.ple_history() * shape.wide() * 4;
  const std::int64_t history_row = gdn * shape.gdn_conv_width() + (shape.ple_layer < 0 ? 0 : shape.wide());
  bytes.replay = layout.window * (replay_bytes_per_row(shape) + history_row * 4);
  bytes.mtp_kv = mtp.kv;
  bytes.mtp_pooled = mtp.pooled;
  bytes.mtp_raw = mtp.raw;
  return bytes;
}

CacheAreas cache_areas(const ModelShape& shape, const StateLayout& layout) {
  constexpr std::int64_t kAlignment = 256;  // of an array in a region of a card (runtime/region.h)
  const std::int64_t attention = static_cast<std::int64_t>(shape.is_gdn.size()) - gdn_layers(shape);
  CacheAreas areas;
  areas.position_bytes = bytes_of(std::int64_t{shape.kv_heads} * shape.head_dim, layout.kv_bits);
  if (areas.position_bytes == 0) return {};
  areas.count = static_cast<int>(2 * (attention + shape.mtp_layers));
  areas.bytes = layout.context * areas.position_bytes;
  areas.stride = (areas.bytes + kAlignment - 1) / kAlignment * kAlignment;
  return areas;
}

std::int64_t stream_ring_bytes(std::int64_t bank_bytes, std::int64_t expert_bytes) {
  constexpr std::int64_t kMost = std::int64_t{512} << 20;  // what copies may be ahead while the mixers of a layer run
  return bank_bytes == 0 ? 0 : kStreamPlaces * std::max(std::min(kMost, 2 * bank_bytes) / kStreamPlaces, expert_bytes);
}

std::int64_t long_pass_bytes(const ModelShape& shape, std::int64_t rows) {
  return rows * shape.experts_used * (shape.expert_ff + shape.expert_ff / 8 + shape.expert_ff / 4 + 8);
}

std::int64_t default_prefill_rows(std::int64_t vram) {
  return vram >= std::int64_t{16} << 30 ? 4096 : vram >= std::int64_t{8} << 30 ? 1024 : 512;
}

Footprint footprint(const ModelShape& shape, const WeightBytes& weights, const StateLayout& layout) {
  Footprint place;
  place.card_weights = weights.dense + weights.head + weights.mtp_dense;
  place.card_state = state_bytes(shape, layout).total();
  place.ram_experts = weights.experts + weights.mtp_experts;
  place.ram_embedding = weights.embedding;
  place.disk_or_ram = weights.ngram_table;
  const std::int64_t blocks = shape.layers + (weights.mtp_experts > 0 ? 1 : 0);
  place.expert_count = place.ram_experts > 0 ? blocks * shape.experts : 0;
  return place;
}

}  // namespace tandem
