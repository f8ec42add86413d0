#include "bench/pass_bytes.h"

#include <numeric>

#include "cpu/select.h"
#include "placement/check.h"
#include "runtime/model_tensors.h"

namespace tandem::bench {

std::uint64_t PassBytes::total(std::size_t w, const std::vector<std::size_t>& experts_met) const {
  CHECK(experts_met.size() == expert.size(), "{} of {} layers", experts_met.size(), expert.size());
  const std::uint64_t routed = std::inner_product(expert.begin(), expert.end(), experts_met.begin(), std::uint64_t{0});
  return dense + head + w * rows + routed;
}

PassBytes pass_bytes(const Model& model) {
  const WeightBytes weights = weight_bytes(sort_tensors(model.gguf(), model.shape));
  PassBytes bytes;
  bytes.dense = static_cast<std::uint64_t>(weights.dense);
  bytes.head = static_cast<std::uint64_t>(weights.head);
  bytes.rows = model.token_embd.row_size();
  if (model.shape.ple_layer >= 0)
    bytes.rows += static_cast<std::uint64_t>(model.shape.ple_heads()) * model.ple_table.row_size();
  for (const LayerWeights& layer : model.layers) {
    const ExpertWeights expert = layer.moe.routed.expert(0);
    bytes.expert.push_back(expert.gate.bytes() + expert.up.bytes() + expert.down.bytes());
  }
  return bytes;
}

std::size_t count_experts(ConstRows logits, std::size_t used) {
  std::vector<bool> met(logits.cols);
  std::vector<std::int32_t> top(used);
  for (std::size_t r = 0; r < logits.rows; ++r) {
    top_k_sorted(logits.row(r), logits.cols, used, top.data());
    for (const std::int32_t expert : top) met[static_cast<std::size_t>(expert)] = true;
  }
  return static_cast<std::size_t>(std::count(met.begin(), met.end(), true));
}

}  // namespace tandem::bench
