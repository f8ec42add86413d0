// The GPU machine (gpu/gpu_ops.h makes it): every operation a launch or two on one stream, passes recorded as CUDA
// graphs, experts off the card handed to the crew.
//
// Arguments are in the card's memory (CudaMemory); what changes from pass to pass is read there too. Operations that
// meet a value that is no number note it in a word of their own, which run_pass looks at when the pass has ended.
#pragma once

#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "gpu/card_slots.h"
#include "gpu/device_weights.h"
#include "gpu/expert_check.h"
#include "gpu/expert_fetch.h"
#include "gpu/expert_stream.h"
#include "gpu/gpu_ops.h"
#include "gpu/handoff.h"
#include "gpu/kernels/elementwise.h"
#include "gpu/kernels/expert_ffn.h"
#include "gpu/kernels/hc_read.h"
#include "gpu/kernels/sample.h"
#include "gpu/kernels/tile_gemm.h"
#include "gpu/pass_graphs.h"
#include "gpu/side_streams.h"
#include "gpu/stage_clock.h"

namespace tandem {

// REQUIRES a float type.
inline gpu::FloatType float_type(DType type) {
  return type == DType::F32 ? gpu::FloatType::kF32 : type == DType::F16 ? gpu::FloatType::kF16 : gpu::FloatType::kBf16;
}

class CudaOps : public Ops {
 public:
  explicit CudaOps(const GpuOptions& options);
  ~CudaOps() override;
  std::string describe() const override;
  std::vector<std::string> warnings() const override;
  std::optional<Hardware::Gpu> card() const override { return card_facts(device_); }
  std::size_t card_bytes() const override { return memory_.bytes(); }
  std::uint64_t experts_compared() const override { return check_ ? check_->compared() : 0; }
  const FetchJudge* fetching() const override { return &fetch_.judge(); }
  MachineMemory& memory() override { return memory_; }
  LoadedModel load(const Model& model, const LoadOptions& options) override;
  std::optional<BadValue> run_pass(const PassKey& key, const PassNumbers& numbers, const LateInput& late,
                                   FunctionRef<void()> body) override;
  void await_late() override;
  void begin_part(std::size_t first) override;
  void host_loop(std::size_t n, const std::function<void(std::size_t)>& body) override { parallel_(n, body); }
  void stage(std::string_view name, int layer) override;
  void time_stages(bool on) override;
  std::vector<StageTime> stage_times() const override;

  std::int64_t quantize(ConstRows x, QuantRows q) override;
  void matmul(const WeightView& w, const Activation& a, Rows y) override;
  using Ops::matmuls;
  void matmuls(std::span<const Product> products, const Activation& a) override;
  void choose(ConstRows logits, const TokenChoice& choice, std::size_t position, const TokenId* ids,
              Chosen* chosen) override;
  void softmax_sum(ConstRows logits, float temperature, Chosen* chosen) override;
  void rms_norm(ConstRows x, std::size_t groups, const float* gamma, float eps, Rows y) override;
  void l2_norm(ConstRows x, std::size_t dim, float eps, float scale, Rows y) override;
  void norm_rope(ConstRows x, std::size_t heads, std::size_t dim, std::size_t head_stride, const float* gamma,
                 float eps, const RopeView& rope, Rows y) override;
  void hc_low(Rows lo, int streams) override;
  void hc_mix(ConstRows normed, ConstRows gate, int streams, Rows mixed) override;
  void hc_write(Rows x, ConstRows y, ConstRows inject, int streams) override;
  std::int64_t hc_read(const HcRead& read) override;
  void causal_conv(ConstRows history, ConstRows x, ConstRows weights, std::size_t dilation, Rows y) override;
  void gdn_gates(Rows alpha, Rows beta, const float* dt_bias, const float* a) override;
  void gdn_scan(const GdnScan& scan) override;
  void gdn_output(ConstRows o, ConstRows z, const float* norm, std::size_t dim, float eps, Rows r) override;
  void gdn_input(const GdnInput& in) override;
  std::int64_t gdn_result(const GdnResult& result) override;
  std::int64_t gdn_step(const GdnStep& step) override;
  void kv_store(const KvView& kv, std::size_t position, ConstRows k, ConstRows v) override;
  void attention_input(const AttentionInput& in) override;
  void mean_pool(ConstRows x, std::size_t ratio, Rows y) override;
  void select_positions(ConstRows q, std::size_t heads, ConstRows pooled, std::size_t position, std::size_t ratio,
                        std::size_t blocks, AttendLists lists) override;
  void index_blocks(const IndexBlocks& blocks) override;
  void all_positions(std::size_t position, AttendLists lists) override;
  void attention(ConstRows q, const KvView& kv, const AttendLists& lists, float scale, ConstRows gate,
                 std::size_t gate_stride, Rows out) override;
  std::int64_t route(ConstRows logits, Routes routes) override;
  RouteSplit split_routes(const ExpertBank& bank, const ExpertStore* store, int index, const Routes& routes,
                          const Routes& hits, const Routes& misses, std::int32_t* log) override;
  std::int64_t router(std::span<const Product> products, const Activation& a, const RoutePlan& plan,
                      RouteSplit& split) override;
  void expert_ffn(const ExpertBank& bank, const Routes& routes, const Activation& a, Rows y) override;
  void start_experts(const ExpertBank& bank, const Routes& routes, const Activation& a, Rows y,
                     const SharedExpert& shared) override;
  void finish_experts() override;
  void ffn(const ExpertWeights& weights, const Activation& a, Rows y) override;
  bool start_ffn(const ExpertWeights& weights, const Activation& a, Rows y) override;
  void combine(const Routes& routes, ConstRows y, ConstRows shared_logit, ConstRows shared, Rows out) override;
  void ple_gate(ConstRows key, ConstRows query, ConstRows value, int streams, Rows gv) override;
  void add2(Rows x, ConstRows a, ConstRows b) override;
  void tile_streams(ConstRows a, int streams, Rows x) override;
  void add_streams(Rows x, ConstRows a, int streams) override;
  void pair_streams(ConstRows a, ConstRows h, int streams, Rows out) override;

 private:
  // Streams beside the main one, by what they are for.
  enum Side : std::size_t { kFfn, kProducts, kNames };
  // Numbers of the pass on the card. positions[g] is that of row g * kRowGroup.
  static constexpr std::size_t kRowGroup = 16, kRowGroups = 512;
  // Places of a pass that find bad values: of a window; of a long pass, whose parts each have their own.
  static constexpr std::size_t kWindowFlags = 2048, kFlags = 32768;
  struct Numbers {
    gpu::SampleNumbers choice;
    std::int32_t replay, pending;
    std::uint32_t first_meeting, late;
    std::int32_t positions[kRowGroups];
  };
  // A loaded model's experts, with the addresses of those on the card, [banks * experts], as kernels read them.
  struct Experts {
    std::weak_ptr<ExpertStore> store;
    Staged<const std::uint8_t*> slots;
    // What can be fetched ahead: [banks * experts], page-locked, of those off the card. And what names it, by bank.
    std::vector<const std::uint8_t*> ram;
    std::vector<WeightView> routers;
    bool fetches = false;  // they may be fetched ahead
    std::uint64_t moves = 0;
    int experts = 0, trunk_banks = 0;
    std::size_t used = 0, ff = 0;
    std::size_t stream_rows = 0;  // LoadOptions::stream_rows
    bool all_on_card = false;
    std::vector<bool> can_stream;  // by bank: a long pass can be sent what is off the card
    bool streaming = false;        // the pass that runs is
  };
  struct BankRef {
    std::shared_ptr<Experts> experts;
    int bank = 0;
    std::shared_ptr<ExpertStore> store() const { return experts->store.lock(); }
    const std::uint8_t* const* slots() const {
      return experts->slots.data() + static_cast<std::size_t>(bank) * static_cast<std::size_t>(experts->experts);
    }
  };
  // A place that may find a value that is no number; and a meeting with the crew. Listed while a pass is launched.
  struct Flag {
    std::string stage;
    int layer = -1;
    std::size_t first = 0;  // row of the pass that the flag counts from
  };
  struct Started {
    Handoff::Meeting meeting;
    const std::int32_t* misses = nullptr;  // null: no meeting is open
  };
  // What the last hc_read has quantised beside its own: quantize finds it done, and names the flag.
  struct Quantized {
    const float* x = nullptr;
    const std::int8_t* q = nullptr;
    std::size_t rows = 0, cols = 0, flag = 0;
  };
  struct Recorded {
    std::vector<StageClock::Mark> marks;
    std::vector<Flag> flags;
    std::vector<Handoff::Meeting> meetings;
    std::vector<ExpertFetch::Bank> fetches;  // by meeting; empty: none are fetched
    std::vector<ExpertCheck::Sample> samples;
    bool waits_for_late = false;
  };

  DeviceCount position(std::size_t group = 0) const {
    return numbers_.data()->positions + part_first_ / kRowGroup + group;
  }
  // Of an operation on rows of the part from `first` on.
  std::int32_t* next_flag(std::size_t first = 0);
  // Rows of one launch of attention and of the choice of positions.
  static std::size_t rows_at_once(std::size_t rows) { return rows <= kRowGroup ? kRowGroup : 4 * kRowGroup; }
  const BankRef& bank_of(const ExpertBank& bank) const;
  void* scratch(std::size_t bytes);
  void reserve_hc(std::size_t wide, std::size_t rank);
  void reserve_gdn(std::size_t key_heads);
  // How many rows a scan folds in first; null: none, an earlier part has.
  DeviceCount replay_count() const;
  DeviceTiles tiles(const WeightView& w) const;
  void product_group(std::span<const Product> group, const Activation& a, DeviceStream stream);
  void refresh_slots();
  void start_fetching(Experts& experts, const ExpertStore& store, const LoadOptions& options);
  // Returns the rows of the pass that may meet the crew.
  std::size_t prepare_long_pass(const PassKey& key);
  void reserve_gemm(std::size_t pairs, const Experts& experts);
  bool streams(const BankRef& ref) const;
  void begin_stream(const BankRef& ref);
  void long_experts(const BankRef& ref, const ExpertBank& bank, const Routes& routes, const Activation& a, Rows y);
  void forget_records();
  void launch(FunctionRef<void()> body);  // numbers, flags, body
  std::optional<BadValue> bad_value(const std::vector<Flag>& flags) const;
  // The next meeting of the pass is for these misses.
  gpu::MeetingArgs open_meeting(const ExpertBank& bank, const Routes& misses, std::size_t hidden,
                                const std::int32_t* asked = nullptr);
  // Beside the router of this bank: names experts of the next one.
  void name_experts(const BankRef& ref, const Activation& a, std::size_t used);
  void serve(const Handoff::Meeting& meeting);
  void let_pass_end();

  int device_;
  std::string name_;
  bool graphs_;
  std::shared_ptr<Ops> crew_;
  ParallelFor parallel_;
  DeviceStream stream_;
  SideStreams sides_;
  CudaMemory memory_;
  CardSlots card_;
  DeviceWeights weights_;
  Handoff handoff_;
  ExpertStream expert_stream_;
  ExpertFetch fetch_;
  bool fetching_ = false;                                   // in the passes that are recorded
  std::string fetch_warning_;                               // why nothing is fetched though it was asked for
  std::unordered_map<const std::uint8_t*, BankRef> banks_;  // by the address of a bank's first gate matrix
  Staged<Numbers> numbers_;
  Staged<std::int32_t> flags_;
  Array<std::uint8_t> expert_memory_, ffn_memory_;
  Array<std::uint32_t> arrived_;                // of kernels whose last block goes on
  ExpertScratch expert_scratch_, ffn_scratch_;  // of the experts; of an FFN that runs beside them
  // Long passes: hidden rows of all pairs.
  Array<std::uint8_t> gemm_memory_;
  GemmScratch gemm_scratch_;
  std::size_t gemm_ff_ = 0;
  int gemm_experts_ = 0;
  std::uint64_t code_ = 0;                                      // PassKey::code of the pass that runs
  std::map<std::uint64_t, const std::uint8_t*> stream_starts_;  // by code: the bank that such a pass meets first
  const std::int32_t* listed_ = nullptr;                        // the hits whose jobs expert_scratch_ holds
  std::vector<Array<std::uint8_t>> scratches_;  // the last one is the largest; recorded passes may use earlier ones
  Array<std::uint8_t> hc_memory_;
  HcScratch hc_scratch_;
  std::size_t hc_wide_ = 0, hc_rank_ = 0;  // of the largest module that it suits
  Array<std::uint32_t> gdn_arrived_;       // of gdn_step's kernel
  Quantized quantized_;
  std::uint32_t next_meeting_ = 1, next_late_ = 1;
  const LateInput* late_ = nullptr;  // of the pass that is launched, until it has been called
  bool recording_ = false;
  Recorded now_;  // of the pass that is launched
  std::string stage_;
  int layer_ = -1;
  std::size_t pass_rows_ = 0, part_first_ = 0, flag_room_ = kWindowFlags;
  Started started_;          // the open meeting, which the router's kernel may have published
  gpu::CrewRows crew_rows_;  // what the next combine finds in the crew's memory
  struct {
    std::size_t used = 0, hidden = 0, meetings = 0;
  } meeting_room_;  // what the loaded models need
  std::map<PassKey, Recorded> recorded_;
  std::unique_ptr<ExpertCheck> check_;  // null: nothing is checked
  std::unique_ptr<StageClock> clock_;   // null: stages are not timed
  double crew_seconds_ = 0;
  std::uint64_t crew_meetings_ = 0;
  PassGraphs records_;
};

}  // namespace tandem
