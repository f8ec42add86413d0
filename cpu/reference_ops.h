// The scalar machine: docs/numerics.md R1 to R9 written down as code, for reading. Never optimised; every other machine
// must give its bits.
#pragma once

#include <memory>

#include "runtime/ops.h"

namespace tandem {

class ReferenceOps : public Ops {
 public:
  std::string describe() const override { return "CPU reference (scalar)"; }

  std::int64_t quantize(ConstRows x, QuantRows q) override;
  void matmul(const WeightView& w, const Activation& a, Rows y) override;
  void rms_norm(ConstRows x, std::size_t groups, const float* gamma, float eps, Rows y) override;
  void l2_norm(ConstRows x, std::size_t dim, float eps, float scale, Rows y) override;
  void norm_rope(ConstRows x, std::size_t heads, std::size_t dim, std::size_t head_stride, const float* gamma,
                 float eps, const RopeView& rope, Rows y) override;
  void hc_low(Rows lo, int streams) override;
  void hc_mix(ConstRows normed, ConstRows gate, int streams, Rows mixed) override;
  void hc_write(Rows x, ConstRows y, ConstRows inject, int streams) override;
  void causal_conv(ConstRows history, ConstRows x, ConstRows weights, std::size_t dilation, Rows y) override;
  void gdn_gates(Rows alpha, Rows beta, const float* dt_bias, const float* a) override;
  void gdn_scan(const GdnScan& scan) override;
  void gdn_output(ConstRows o, ConstRows z, const float* norm, std::size_t dim, float eps, Rows r) override;
  void kv_store(const KvView& kv, std::size_t position, ConstRows k, ConstRows v) override;
  void mean_pool(ConstRows x, std::size_t ratio, Rows y) override;
  void select_positions(ConstRows q, std::size_t heads, ConstRows pooled, std::size_t position, std::size_t ratio,
                        std::size_t blocks, AttendLists lists) override;
  void index_blocks(const IndexBlocks& blocks) override;
  void all_positions(std::size_t position, AttendLists lists) override;
  void attention(ConstRows q, const KvView& kv, const AttendLists& lists, float scale, ConstRows gate,
                 std::size_t gate_stride, Rows out) override;
  std::int64_t route(ConstRows logits, Routes routes) override;
  void expert_ffn(const ExpertBank& bank, const Routes& routes, const Activation& a, Rows y) override;
  void ffn(const ExpertWeights& weights, const Activation& a, Rows y) override;
  void combine(const Routes& routes, ConstRows y, ConstRows shared_logit, ConstRows shared, Rows out) override;
  void ple_gate(ConstRows key, ConstRows query, ConstRows value, int streams, Rows gv) override;
  void add2(Rows x, ConstRows a, ConstRows b) override;
  void softmax_sum(ConstRows logits, float temperature, Chosen* chosen) override;
  void tile_streams(ConstRows a, int streams, Rows x) override;
  void add_streams(Rows x, ConstRows a, int streams) override;
  void pair_streams(ConstRows a, ConstRows h, int streams, Rows out) override;

 private:
  std::vector<float> block_keys_, block_means_;  // scratch of index_blocks
};

std::unique_ptr<Ops> make_reference_ops();

}  // namespace tandem
