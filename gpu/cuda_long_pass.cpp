// CudaOps: the experts of a pass of more rows than a window has. The pairs are sorted by expert on the card; experts on
// the card are met in batches, those that are not are streamed in (gpu/expert_stream.h) or left to the crew.
#include <algorithm>

#include "gpu/cuda_check.h"
#include "gpu/cuda_ops.h"
#include "gpu/kernels/tile_gemm.h"
#include "runtime/expert_store.h"
#include "runtime/sequence_state.h"

namespace tandem {

// What a long pass needs beside the work memory of others, and whether its experts are streamed. Before the pass: this
// allocates.
std::size_t CudaOps::prepare_long_pass(const PassKey& key) {
  code_ = key.code;
  std::size_t ring = 0, crew_rows = 0;
  MachineMemory* ring_memory = &memory_;
  for (const auto& [data, ref] : banks_) {
    if (ref.bank != 0) continue;  // one per store
    const std::shared_ptr<ExpertStore> store = ref.store();
    if (!store) continue;
    Experts& experts = *ref.experts;
    experts.streaming = false;
    const std::size_t rows = key.rows, met = experts.all_on_card ? 0 : rows;
    if (rows > kMaxWindow) reserve_gemm(rows * experts.used, experts);
    // Short passes have not taken back the memory that the ring is in.
    const bool short_pass = rows <= (store->lent_memory().prompt ? store->short_rows() : kMaxWindow);
    if (short_pass || experts.all_on_card || rows < experts.stream_rows || !store->ram_pinned()) {
      crew_rows = std::max(crew_rows, met);
      continue;
    }
    std::int64_t expert_bytes = 0;
    bool every_bank = true;
    for (int b = 0; b < store->banks(); ++b) {
      if (!experts.can_stream[static_cast<std::size_t>(b)]) {
        every_bank = false;
        continue;
      }
      expert_bytes = std::max(expert_bytes, static_cast<std::int64_t>(store->layout(b)->bytes));
    }
    experts.streaming = expert_bytes > 0;
    if (!every_bank) crew_rows = std::max(crew_rows, met);
    ring = std::max(ring, static_cast<std::size_t>(stream_ring_bytes(expert_bytes * experts.experts, expert_bytes)));
    if (store->lent_memory().prompt) ring_memory = store->lent_memory().prompt.get();
  }
  if (ring == 0) return crew_rows;
  expert_stream_.reserve(*ring_memory, ring);
  // The copies of the first layer begin before its mixer, if the pass is of a kind that has run before.
  if (const auto known = stream_starts_.find(key.code); known != stream_starts_.end()) {
    const auto found = banks_.find(known->second);
    if (found != banks_.end() && found->second.store() != nullptr && streams(found->second))
      begin_stream(found->second);
  }
  return crew_rows;
}

void CudaOps::reserve_gemm(std::size_t pairs, const Experts& experts) {
  if (pairs <= gemm_scratch_.pairs && experts.ff <= gemm_ff_ && experts.experts <= gemm_experts_) return;
  gemm_ff_ = std::max(gemm_ff_, experts.ff);
  gemm_experts_ = std::max(gemm_experts_, experts.experts);
  const std::size_t most = std::max(pairs, gemm_scratch_.pairs);
  const auto count = static_cast<std::size_t>(gemm_experts_);
  gemm_memory_ = {};
  gemm_memory_ = {memory_, gemm_scratch_bytes(most, gemm_ff_, count)};
  gemm_scratch_ = make_gemm_scratch(gemm_memory_.data(), most, gemm_ff_, count);
}

bool CudaOps::streams(const BankRef& ref) const {
  const Experts& experts = *ref.experts;
  return experts.streaming && experts.can_stream[static_cast<std::size_t>(ref.bank)];
}

// All experts off the card from this bank on; a pass of the trunk meets all of its banks, the draft block is alone.
void CudaOps::begin_stream(const BankRef& ref) {
  const std::shared_ptr<ExpertStore> store = ref.store();
  const Experts& experts = *ref.experts;
  std::vector<ExpertStream::Source> sources;
  const int last = ref.bank < experts.trunk_banks ? experts.trunk_banks : ref.bank + 1;
  for (int b = ref.bank; b < last; ++b) {
    if (!experts.can_stream[static_cast<std::size_t>(b)]) continue;
    const std::size_t bytes = store->layout(b)->bytes;
    for (int e = 0; e < experts.experts; ++e)
      if (!store->on_card(b, e)) sources.push_back({b, e, store->blob(b, e), bytes});
  }
  expert_stream_.begin(std::move(sources));
}

void CudaOps::long_experts(const BankRef& ref, const ExpertBank& bank, const Routes& routes, const Activation& a,
                           Rows y) {
  const std::shared_ptr<ExpertStore> store = ref.store();
  const std::size_t pairs = routes.rows * routes.used;
  const auto count = static_cast<std::size_t>(ref.experts->experts);
  launch_sort_pairs(routes.expert, pairs, count, gemm_scratch_.sorted, stream_);
  memory_.zero(gemm_scratch_.bad, pairs * sizeof(std::int32_t));
  GemmExperts experts;
  experts.layout = store->layout(ref.bank);
  experts.scale[0] = bank.gate.scale, experts.scale[1] = bank.up.scale, experts.scale[2] = bank.down.scale;
  experts.x = {a.q.q, a.q.d, a.q.s};
  experts.used = routes.used;
  experts.y = y.data;
  experts.y_stride = y.stride;
  const auto launch = [&](const ExpertBatch& batch) {
    launch_gemm_experts(experts, batch, pairs * static_cast<std::size_t>(batch.count) / count, gemm_scratch_, stream_);
  };
  ExpertBatch batch;
  for (int e = 0; e < ref.experts->experts; ++e) {
    if (!store->on_card(ref.bank, e)) continue;
    batch.expert[batch.count] = e;
    batch.blob[batch.count++] = store->blob(ref.bank, e);
    if (batch.count < kBatchExperts) continue;
    launch(batch);
    batch.count = 0;
  }
  launch(batch);
  if (!streams(ref)) return;

  stage("experts streamed in", layer_);
  if (!expert_stream_.open()) {
    stream_starts_[code_] = bank.gate.data;
    begin_stream(ref);
  }
  for (ExpertStream::Batch next = expert_stream_.next(ref.bank); !next.sources.empty();
       next = expert_stream_.next(ref.bank)) {
    batch.count = 0;
    const std::uint8_t* at = next.first;
    for (const ExpertStream::Source& source : next.sources) {
      batch.expert[batch.count] = source.expert;
      batch.blob[batch.count++] = at;
      at += source.bytes;
    }
    launch(batch);
    expert_stream_.used();
  }
}

}  // namespace tandem
