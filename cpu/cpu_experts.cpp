// CpuOps: loading a model, and the expert FFN on the machine's own workers and on the crew.
#include <algorithm>

#include "cpu/cpu_ops.h"
#include "runtime/model_visit.h"
#include "runtime/sequence_state.h"

namespace tandem {

LoadedModel CpuOps::load(const Model& model, const LoadOptions& options) {
  const ParallelFor spread = [this](std::size_t n, const std::function<void(std::size_t)>& body) {
    crew_.loop(n, body);
  };
  std::vector<const std::uint8_t*> keys;
  for_each_bank(model, [&](const ExpertBank& bank) { keys.push_back(bank.gate.data); });
  const auto known = banks_.find(keys[0]);
  std::shared_ptr<ExpertStore> store = known == banks_.end() ? nullptr : known->second.store.lock();
  const std::size_t expert_bytes = store ? 0 : ExpertStore::load_bytes(model, options);

  LoadedModel loaded;
  std::size_t dense_bytes = 0;
  loaded.dense = weights_.load(model, spread, [&](std::size_t done, std::size_t total) {
    dense_bytes = total;
    if (options.progress) options.progress(done, total + expert_bytes);
  });
  if (!store) {
    LoadOptions with_dense = options;
    if (options.progress)
      with_dense.progress = [&](std::size_t done, std::size_t total) {
        options.progress(dense_bytes + done, dense_bytes + total);
      };
    const auto forget = [this, keys](ExpertStore* gone) {
      for (const std::uint8_t* key : keys) banks_.erase(key);
      delete gone;
    };
    store = {new ExpertStore(model, with_dense, &card_, spread, {memory(), options.lending}), forget};
    share_experts(model, store);
  }
  loaded.experts = store;
  return loaded;
}

void CpuOps::share_experts(const Model& model, const std::shared_ptr<ExpertStore>& store) {
  int index = 0;
  for_each_bank(model, [&](const ExpertBank& bank) { banks_[bank.gate.data] = {store, index++}; });
  // The rows of any verify window find their room ready.
  const ModelShape& shape = model.shape;
  const auto window_rows = kMaxWindow * static_cast<std::size_t>(shape.experts_used);
  const auto ff = static_cast<std::size_t>(std::max(shape.expert_ff, shape.shared_expert_ff));
  for (ExpertRun* run : {&card_run_, &crew_run_}) run->reserve(window_rows + kMaxWindow, window_rows + 1, ff);
}

PackedExpert CpuOps::packed_shared(const ExpertWeights& weights, const Activation& a) const {
  const PackedMatrix* gate = a.q ? weights_.matrix(weights.gate) : nullptr;
  const PackedMatrix* up = a.q ? weights_.matrix(weights.up) : nullptr;
  const PackedMatrix* down = weights_.matrix(weights.down);
  const bool packed = gate != nullptr && up != nullptr && down != nullptr;
  return packed ? packed_expert(isa_, *gate, *up, *down) : PackedExpert{};
}

// The routes of `run`, expert by expert, so that a weight is read once for all its rows.
bool CpuOps::list_experts(const ExpertBank& bank, const Routes& routes, const Activation& a, Rows y,
                          const SharedExpert& shared, ExpertRun& run) {
  constexpr std::int32_t kNone = -1;
  const std::size_t pairs = routes.rows * routes.used;
  first_pair_.assign(static_cast<std::size_t>(bank.experts), kNone);
  next_pair_.resize(std::max(next_pair_.size(), pairs));
  for (std::size_t i = pairs; i-- > 0;) {
    if (routes.expert[i] < 0) continue;
    std::int32_t& first = first_pair_[static_cast<std::size_t>(routes.expert[i])];
    next_pair_[i] = first;
    first = static_cast<std::int32_t>(i);
  }
  const auto known = a.q ? banks_.find(bank.gate.data) : banks_.end();
  const std::shared_ptr<ExpertStore> store = known == banks_.end() ? nullptr : known->second.store.lock();
  const ExpertBlobLayout* layout = store ? store->layout(known->second.bank) : nullptr;
  run.begin(a);
  // First, since its units are the largest (it has more bits than the others).
  const PackedExpert always = shared.weights != nullptr ? packed_shared(*shared.weights, a) : PackedExpert{};
  const bool listed = always && always.gate.rows == bank.gate.rows;
  if (listed) {
    run.add_expert(always, *shared.weights);
    for (std::size_t r = 0; r < shared.y.rows; ++r) run.add_row(r, shared.y.row(r));
  }
  for (std::int32_t e = 0; e < bank.experts; ++e) {
    std::int32_t i = first_pair_[static_cast<std::size_t>(e)];
    if (i == kNone) continue;
    const ExpertWeights weights = bank.expert(e);
    const std::uint8_t* blob = layout != nullptr ? store->blob(known->second.bank, e) : nullptr;
    run.add_expert(blob != nullptr ? packed_expert(isa_, *layout, blob, weights) : PackedExpert{}, weights);
    for (; i != kNone; i = next_pair_[static_cast<std::size_t>(i)]) {
      const auto pair = static_cast<std::size_t>(i);
      run.add_row(pair / routes.used, y.row(pair));
    }
  }
  run.finish(workers());
  return listed;
}

void CpuOps::run_here(ExpertRun& run) {
  parallel(run.units(), run.work() / std::max<std::size_t>(1, run.units()), [&](std::size_t u) { run.run(u); });
}

void CpuOps::expert_ffn(const ExpertBank& bank, const Routes& routes, const Activation& a, Rows y) {
  list_experts(bank, routes, a, y, {}, card_run_);
  run_here(card_run_);
}

void CpuOps::start_experts(const ExpertBank& bank, const Routes& routes, const Activation& a, Rows y,
                           const SharedExpert& shared) {
  const bool listed = list_experts(bank, routes, a, y, shared, crew_run_);
  crew_.start_experts(crew_run_.units(), crew_body_);
  if (shared.weights != nullptr && !listed) ffn(*shared.weights, a, shared.y);
}

void CpuOps::finish_experts() {
  crew_.wait_experts();
}

void CpuOps::ffn(const ExpertWeights& weights, const Activation& a, Rows y) {
  const PackedExpert packed = packed_shared(weights, a);
  card_run_.begin(a);
  // An unpacked expert is a unit: its rows are cut into strips, so that there are several.
  constexpr std::size_t kStrip = 8;
  const std::size_t strip = packed ? std::max<std::size_t>(1, y.rows) : kStrip;
  for (std::size_t first = 0; first < y.rows; first += strip) {
    card_run_.add_expert(packed, weights);
    for (std::size_t r = first; r < std::min(y.rows, first + strip); ++r) card_run_.add_row(r, y.row(r));
  }
  card_run_.finish(workers());
  run_here(card_run_);
}

}  // namespace tandem
