// The fast CPU machine: the operations of ReferenceOps, bit for bit, with vector kernels and a oneTBB arena.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "cpu/crew.h"
#include "cpu/expert_run.h"
#include "cpu/kernels/tile_kernels.h"
#include "cpu/packed_weights.h"
#include "cpu/played_card.h"
#include "cpu/reference_ops.h"
#include "runtime/function_ref.h"

namespace tandem {

struct CpuOptions {
  int workers = 0;    // threads that compute, the calling one included; 0 = one per core available to the process,
  int suggested = 0;  // or this many, if it is not 0 and there are so many cores
  TileIsa isa = best_tile_isa();  // REQUIRES one that this processor has
  bool pin = false;               // bind the crew to its cores
  CrewCores cores = CrewCores::kPerformance;
};

// REQUIRES a processor with AVX2, FMA and F16C (runtime/main.cpp checks before it makes one). One thread at a time.
class CpuOps : public ReferenceOps {
 public:
  explicit CpuOps(const CpuOptions& options);
  explicit CpuOps(int workers, TileIsa isa = best_tile_isa()) : CpuOps(CpuOptions{.workers = workers, .isa = isa}) {}
  ~CpuOps() override;
  std::string describe() const override;
  std::vector<std::string> warnings() const override;
  int workers() const { return crew_.workers(); }
  TileIsa isa() const { return isa_; }
  Crew& crew() { return crew_; }
  void host_loop(std::size_t n, const std::function<void(std::size_t)>& body) override { crew_.loop(n, body); }
  // body(i) for 0 <= i < n tiles of `columns` columns each (times the rows they meet), spread over the workers when the
  // whole is worth it.
  void parallel_tiles(std::size_t n, std::size_t columns, Crew::Body body);

  LoadedModel load(const Model& model, const LoadOptions& options) override;
  void share_experts(const Model& model, const std::shared_ptr<ExpertStore>& store) override;
  std::int64_t quantize(ConstRows x, QuantRows q) override;
  void matmul(const WeightView& w, const Activation& a, Rows y) override;
  void matmuls(std::span<const Product> products, const Activation& a) override;
  void rms_norm(ConstRows x, std::size_t groups, const float* gamma, float eps, Rows y) override;
  void l2_norm(ConstRows x, std::size_t dim, float eps, float scale, Rows y) override;
  void norm_rope(ConstRows x, std::size_t heads, std::size_t dim, std::size_t head_stride, const float* gamma,
                 float eps, const RopeView& rope, Rows y) override;
  void hc_low(Rows lo, int streams) override;
  void hc_mix(ConstRows normed, ConstRows gate, int streams, Rows mixed) override;
  void hc_write(Rows x, ConstRows y, ConstRows inject, int streams) override;
  void causal_conv(ConstRows history, ConstRows x, ConstRows weights, std::size_t dilation, Rows y) override;
  void gdn_scan(const GdnScan& scan) override;
  void gdn_output(ConstRows o, ConstRows z, const float* norm, std::size_t dim, float eps, Rows r) override;
  void kv_store(const KvView& kv, std::size_t position, ConstRows k, ConstRows v) override;
  void select_positions(ConstRows q, std::size_t heads, ConstRows pooled, std::size_t position, std::size_t ratio,
                        std::size_t blocks, AttendLists lists) override;
  void attention(ConstRows q, const KvView& kv, const AttendLists& lists, float scale, ConstRows gate,
                 std::size_t gate_stride, Rows out) override;
  void expert_ffn(const ExpertBank& bank, const Routes& routes, const Activation& a, Rows y) override;
  void start_experts(const ExpertBank& bank, const Routes& routes, const Activation& a, Rows y,
                     const SharedExpert& shared) override;
  void finish_experts() override;
  void ffn(const ExpertWeights& weights, const Activation& a, Rows y) override;
  void combine(const Routes& routes, ConstRows y, ConstRows shared_logit, ConstRows shared, Rows out) override;
  void ple_gate(ConstRows key, ConstRows query, ConstRows value, int streams, Rows gv) override;
  void add2(Rows x, ConstRows a, ConstRows b) override;
  void softmax_sum(ConstRows logits, float temperature, Chosen* chosen) override;

 private:
  CpuOps(const CpuOptions& options, const std::vector<int>& processors);
  // body(i) for 0 <= i < n, spread over the workers when the whole is worth it: `work` estimates one body in weights
  // or values touched.
  void parallel(std::size_t n, std::size_t work, Crew::Body body);
  // body(row, first, last) over pieces of every row, cut at multiples of `step` columns; cost: work of one column.
  void parallel_columns(std::size_t rows, std::size_t cols, std::size_t step, std::size_t cost,
                        FunctionRef<void(std::size_t, std::size_t, std::size_t)> body);
  // Returns whether the shared expert is in the list: not when it is absent, or has another shape than the others.
  bool list_experts(const ExpertBank& bank, const Routes& routes, const Activation& a, Rows y,
                    const SharedExpert& shared, ExpertRun& run);
  PackedExpert packed_shared(const ExpertWeights& weights, const Activation& a) const;
  void run_here(ExpertRun& run);

  struct BankRef {
    std::weak_ptr<ExpertStore> store;
    int bank = 0;
  };
  int cores_;  // that the process may use
  TileIsa isa_;
  Crew crew_;
  PlayedCard card_;
  PackedWeights weights_;
  std::unordered_map<const std::uint8_t*, BankRef> banks_;  // by the address of a bank's first gate matrix
  ExpertRun card_run_, crew_run_;
  std::function<void(std::size_t)> run_unit_;
  Crew::Body crew_body_;
  std::vector<std::int32_t> first_pair_, next_pair_;  // scratch of list_experts
  struct MatmulPart {
    const WeightView* w;
    const PackedMatrix* packed;  // null: by strips of the file's rows
    Rows y;
    std::size_t strip, end;  // rows of a unit; units up to the end of this matrix
  };
  std::vector<MatmulPart> parts_;  // scratch of matmuls
};

std::unique_ptr<Ops> make_cpu_ops(const CpuOptions& options);
std::unique_ptr<Ops> make_cpu_ops(int workers, TileIsa isa = best_tile_isa());

}  // namespace tandem
