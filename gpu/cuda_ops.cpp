// CudaOps: loading and passes. Products are gpu/cuda_products.cpp, experts gpu/cuda_experts.cpp, what a GDN layer does
// beside them gpu/cuda_gdn.cpp, other operations gpu/cuda_float_ops.cpp.
#include "gpu/cuda_ops.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "gpu/cuda_check.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/quantize.h"
#include "gpu/kernels/sample.h"
#include "runtime/expert_store.h"
#include "runtime/model_visit.h"
#include "runtime/sequence_state.h"
#include "runtime/timeline.h"

namespace tandem {

namespace {

// Recorded passes kept; a program uses a handful (widths, a draft head), tests that make many sequences begin anew.
constexpr std::size_t kMostRecords = 64;

DeviceStream make_stream(int device) {
  CUDA_CHECK(cudaSetDevice(device));
  cudaStream_t stream = nullptr;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

void check_experts(const ExpertBank& bank, const ExpertWeights& shared) {
  for (const WeightView* view : {&bank.gate, &bank.up, &bank.down, &shared.gate, &shared.up, &shared.down})
    if (!has_tile_layout(view->type))
      fail_input(
          "tensor {}: expected experts of a type that the card has kernels for, found {}. Fix: --device cpu, or "
          "a file of another type",
          view->name, dtype_name(view->type));
}

}  // namespace

CudaOps::CudaOps(const GpuOptions& options)
    : device_(options.device),
      graphs_(options.graphs),
      crew_(options.crew),
      parallel_(options.parallel),
      stream_(make_stream(options.device)),
      sides_(stream_),
      memory_(stream_),
      card_(memory_),
      weights_(memory_),
      handoff_(memory_),
      expert_stream_(stream_),
      fetch_(memory_, records_),
      numbers_(memory_, 1),
      flags_(memory_, kFlags),
      arrived_(memory_, 1),
      records_(stream_, options.device) {
  CHECK(crew_ != nullptr && parallel_);
  cudaDeviceProp properties;
  CUDA_CHECK(cudaGetDeviceProperties(&properties, device_));
  name_ = properties.name;
  if (options.verify_experts) check_ = std::make_unique<ExpertCheck>(memory_);
  memory_.set_pending(&numbers_.data()->pending);
  // Compute capability 9.0 brought it (gpu/kernels/launch.cuh).
  set_early_starts(options.early_starts && properties.major >= 9);
  load_tile_kernels();
  load_hc_kernels();
}

CudaOps::~CudaOps() {
  static_cast<void>(cudaStreamSynchronize(stream_));
}

std::string CudaOps::describe() const {
  return fmt::format("{} (cuda:{}){}, with {}", name_, device_, graphs_ ? "" : ", no graphs", crew_->describe());
}
std::vector<std::string> CudaOps::warnings() const {
  std::vector<std::string> all = crew_->warnings();
  if (!fetch_warning_.empty()) all.push_back(fetch_warning_);
  return all;
}

LoadedModel CudaOps::load(const Model& model, const LoadOptions& options) {
  std::vector<const std::uint8_t*> keys;
  for_each_bank(model, [&](const ExpertBank& bank) { keys.push_back(bank.gate.data); });
  for (const LayerWeights& layer : model.layers) check_experts(layer.moe.routed, layer.moe.shared);
  if (model.mtp) {
    check_experts(model.mtp->layer.moe.routed, model.mtp->layer.moe.shared);
    if (const WeightView& output = model.mtp->output; output.rows > gpu::kMaxSoftmaxLogits)
      fail_input(
          "tensor {}: expected at most {} tokens that the draft head chooses among, found {}. Fix: --draft-vocab {}",
          output.name, gpu::kMaxSoftmaxLogits, output.rows, gpu::kMaxSoftmaxLogits);
  }
  const auto known = banks_.find(keys[0]);
  std::shared_ptr<ExpertStore> store = known == banks_.end() ? nullptr : known->second.store();
  const std::size_t expert_bytes = store ? 0 : ExpertStore::load_bytes(model, options);

  LoadedModel loaded;
  std::size_t dense_bytes = 0;
  loaded.dense = weights_.load(model, parallel_, [&](std::size_t done, std::size_t total) {
    dense_bytes = total;
    if (options.progress) options.progress(done, total + expert_bytes);
  });
  const ModelShape& shape = model.shape;
  if (!store) {
    LoadOptions with_dense = options;
    if (options.progress)
      with_dense.progress = [&](std::size_t done, std::size_t total) {
        options.progress(dense_bytes + done, dense_bytes + total);
      };
    LentMemory lent(memory_, options.lending);
    // Another model's long passes would not take it back, and use the same ring.
    for (const auto& [key, ref] : banks_)
      if (const std::shared_ptr<ExpertStore> other = ref.store())
        CHECK(!lent && !other->lent_memory(), "two models on a card that lends memory");
    store = std::make_shared<ExpertStore>(model, with_dense, &card_, parallel_, std::move(lent));
    card_.wait();  // the last uploads
    auto experts = std::make_shared<Experts>();
    experts->store = store;
    experts->experts = shape.experts;
    experts->trunk_banks = shape.layers;
    experts->used = static_cast<std::size_t>(shape.experts_used);
    experts->ff = static_cast<std::size_t>(shape.expert_ff);
    experts->stream_rows = options.stream_rows;
    for (const LayerWeights& layer : model.layers) experts->routers.push_back(layer.moe.router);
    experts->slots = Staged<const std::uint8_t*>(memory_, keys.size() * static_cast<std::size_t>(shape.experts));
    experts->moves = std::numeric_limits<std::uint64_t>::max();  // not there yet
    if (graphs_ && options.fetch_ahead != FetchAhead::kOff && store->has_card() && store->ram_pinned())
      start_fetching(*experts, *store, options);
    for (std::size_t b = 0; b < keys.size(); ++b) banks_[keys[b]] = {experts, static_cast<int>(b)};
    crew_->share_experts(model, store);
  }
  loaded.experts = store;

  const auto ff = static_cast<std::size_t>(std::max(shape.expert_ff, shape.shared_expert_ff));
  const auto used = static_cast<std::size_t>(shape.experts_used);
  if (expert_scratch_.pairs < std::max(kMaxPairs, used) ||
      expert_memory_.bytes() < expert_scratch_bytes(kMaxPairs, ff)) {
    expert_memory_ = {memory_, expert_scratch_bytes(kMaxPairs, ff)};
    expert_scratch_ = make_expert_scratch(expert_memory_.data(), kMaxPairs, ff);
    ffn_memory_ = {memory_, expert_scratch_bytes(kMaxPairs, ff)};
    ffn_scratch_ = make_expert_scratch(ffn_memory_.data(), kMaxPairs, ff);
    forget_records();
  }
  reserve_hc(static_cast<std::size_t>(shape.wide()), static_cast<std::size_t>(shape.hc_rank));
  reserve_gdn(static_cast<std::size_t>(shape.gdn_key_heads));
  const auto hidden = static_cast<std::size_t>(shape.hidden);
  meeting_room_ = {std::max(meeting_room_.used, used), std::max(meeting_room_.hidden, hidden),
                   std::max(meeting_room_.meetings, keys.size())};
  return loaded;
}

// A judge that other experts have is kept: the crew is the same.
void CudaOps::start_fetching(Experts& experts, const ExpertStore& store, const LoadOptions& options) {
  if (!fetch_.possible()) {
    fetch_warning_ =
        "the driver cannot write a word behind a copy (cuStreamBatchMemOp), so experts are not fetched ahead, which "
        "can cost a tenth of the speed. Fix: a newer driver, or adapt.fetch_ahead: off in the policy for no warning";
    return;
  }
  std::size_t largest = 0;
  for (int b = 0; b < store.banks(); ++b)
    if (const ExpertBlobLayout* layout = store.layout(b)) largest = std::max(largest, layout->bytes);
  if (fetch_.reserve(largest, static_cast<std::size_t>(experts.experts), static_cast<std::size_t>(store.banks())))
    forget_records();
  experts.fetches = true;
  const bool others = std::any_of(banks_.begin(), banks_.end(), [](const auto& entry) {
    return entry.second.experts->fetches && !entry.second.experts->store.expired();
  });
  if (!others) fetch_.set_how(options.fetch_ahead, options.fetch_seconds);
}

// ---- passes ---------------------------------------------------------------------------------------------------------

void CudaOps::begin_part(std::size_t first) {
  CHECK(first % kRowGroup == 0, "a part from row {} on", first);
  part_first_ = first;
}

void CudaOps::stage(std::string_view name, int layer) {
  stage_ = name;
  layer_ = layer;
  if (clock_) clock_->mark(name, now_.marks, recording_);
}

void CudaOps::forget_records() {
  recorded_.clear();
  records_.clear();
}

void CudaOps::time_stages(bool on) {
  clock_ = on ? std::make_unique<StageClock>(stream_) : nullptr;
  crew_seconds_ = 0;
  crew_meetings_ = 0;
  forget_records();  // they hold no marks, or marks that are gone
}

std::vector<Ops::StageTime> CudaOps::stage_times() const {
  if (!clock_) return {};
  std::vector<StageTime> times = clock_->times();
  times.push_back({"crew, computing (CPU)", crew_seconds_, crew_meetings_});
  return times;
}

std::int32_t* CudaOps::next_flag(std::size_t first) {
  CHECK(now_.flags.size() < flag_room_, "{} places that can find a bad value", now_.flags.size());
  now_.flags.push_back({stage_, layer_, part_first_ + first});
  return flags_.data() + (now_.flags.size() - 1);
}

void CudaOps::launch(FunctionRef<void()> body) {
  now_ = {};
  listed_ = nullptr;
  crew_rows_ = {};
  started_ = {};
  sides_.forget();  // of a pass that failed
  quantized_ = {};
  part_first_ = 0;
  numbers_.send(0, 1);
  CUDA_CHECK(cudaMemsetAsync(flags_.data(), 0x7F, flag_room_ * sizeof(std::int32_t), stream_));
  if (clock_) clock_->mark("inputs", now_.marks, recording_);
  body();
  flags_.fetch(0, now_.flags.size());
  if (clock_) clock_->mark("", now_.marks, recording_);
}

std::optional<BadValue> CudaOps::bad_value(const std::vector<Flag>& flags) const {
  for (std::size_t i = 0; i < flags.size(); ++i)
    if (const std::int32_t row = flags_.host()[i]; row != kNoBadRow && !flags[i].stage.empty())
      return BadValue{flags[i].stage, flags[i].layer, flags[i].first + static_cast<std::size_t>(row)};
  return {};
}

// The addresses of the experts on the card, where some have moved since the last pass.
void CudaOps::refresh_slots() {
  for (const auto& [key, ref] : banks_) {
    if (ref.bank != 0) continue;  // one per store
    Experts& experts = *ref.experts;
    const std::shared_ptr<ExpertStore> store = experts.store.lock();
    if (!store || store->moves() == experts.moves) continue;
    experts.moves = store->moves();
    const bool all_before = std::exchange(experts.all_on_card, true);
    experts.can_stream.assign(static_cast<std::size_t>(store->banks()), false);
    const std::uint8_t** table = experts.slots.host();
    if (experts.fetches) experts.ram.resize(experts.slots.size());
    std::size_t i = 0;
    for (int b = 0; b < store->banks(); ++b) {
      bool can_stream = store->layout(b) != nullptr && can_gemm_experts(*store->layout(b));
      for (int e = 0; e < experts.experts; ++e, ++i) {
        const bool here = store->on_card(b, e);
        const std::uint8_t* const blob = store->blob(b, e);
        experts.all_on_card = experts.all_on_card && here;
        can_stream = can_stream && blob != nullptr;  // else it is in the file
        table[i] = here ? blob : nullptr;
        if (experts.fetches) experts.ram[i] = here ? nullptr : blob;
      }
      experts.can_stream[static_cast<std::size_t>(b)] = can_stream;
    }
    // Where all are on the card, recorded passes have no meetings; lent memory that is taken back changes that.
    if (experts.all_on_card != all_before) forget_records();
    experts.slots.send(0, experts.slots.size());
  }
}

void CudaOps::serve(const Handoff::Meeting& meeting) {
  const double seconds = handoff_.serve(meeting, numbers_.host()->first_meeting, *crew_, &fetch_);
  crew_seconds_ += seconds;
  crew_meetings_ += seconds > 0 ? 1 : 0;
}

// The host's half of a pass has failed: the card, which may stand at a meeting, gets on, and its numbers are not used
// again.
void CudaOps::let_pass_end() {
  const auto meetings = static_cast<std::uint32_t>(meeting_room_.meetings);
  handoff_.answer_all(numbers_.host()->first_meeting + meetings);
  next_meeting_ += meetings + 1;
}

// A recorded pass is given its late inputs when it runs.
void CudaOps::await_late() {
  if (recording_) {
    now_.waits_for_late = true;
    handoff_.await_late(&numbers_.data()->late, stream_);
  } else if (late_ != nullptr) {
    (**std::exchange(late_, nullptr))();
  }
}

std::optional<BadValue> CudaOps::run_pass(const PassKey& key, const PassNumbers& numbers, const LateInput& late,
                                          FunctionRef<void()> body) {
  CHECK(key.rows <= kRowGroup * kRowGroups, "{} rows in a pass", key.rows);
  pass_rows_ = key.rows;
  refresh_slots();
  flag_room_ = key.rows <= kMaxWindow ? kWindowFlags : kFlags;
  const std::size_t met = std::max(prepare_long_pass(key), kMaxWindow);
  if (handoff_.reserve(met, meeting_room_.used, meeting_room_.hidden, meeting_room_.hidden, meeting_room_.meetings)) {
    forget_records();  // they name the area that was outgrown
  }
  Numbers& on_card = *numbers_.host();
  on_card.replay = numbers.replay;
  on_card.pending = numbers.pending;
  on_card.first_meeting = next_meeting_;
  on_card.late = next_late_;
  on_card.choice = {numbers.choice.seed, numbers.choice.temperature, numbers.choice_position};
  for (std::size_t g = 0; g < kRowGroups; ++g)
    on_card.positions[g] = numbers.position + static_cast<std::int32_t>(g * kRowGroup);

  if (fetching_ != fetch_.judge().on()) {
    fetching_ = !fetching_;
    forget_records();
  }

  const bool record = graphs_ && key.rows <= kMaxWindow && !key.once;
  if (!record) {
    late_ = late ? &late : nullptr;
    try {
      launch(body);
    } catch (...) {
      let_pass_end();
      CUDA_CHECK(cudaStreamSynchronize(stream_));
      expert_stream_.end();
      throw;
    }
    CHECK(late_ == nullptr, "a pass that does not wait for its late inputs");
    next_meeting_ += static_cast<std::uint32_t>(now_.meetings.size());
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    expert_stream_.end();
    if (clock_) clock_->add(now_.marks);
    if (check_) check_->compare(now_.samples, *crew_);
    return bad_value(now_.flags);
  }
  if (!records_.has(key)) {
    if (records_.size() >= kMostRecords) {
      forget_records();
    }
    recording_ = true;
    struct Done {
      bool& flag;
      ~Done() { flag = false; }
    } const done{recording_};
    records_.record(key, [&] { launch(body); });
    recorded_[key] = now_;
  }
  Recorded& pass = recorded_.at(key);
  fetch_.begin(on_card.first_meeting, pass.fetches);
  struct Fetching {
    ExpertFetch& fetch;
    ~Fetching() { fetch.end(); }
  } const fetching{fetch_};
  records_.start(key);
  CHECK(pass.waits_for_late == late.has_value(),
        "late inputs that the pass does not wait for, or none for one that does");
  try {
    if (late) {
      const std::uint32_t number = next_late_++;
      // Also when it fails: the card may stand there.
      struct Given {
        Handoff& handoff;
        std::uint32_t number;
        ~Given() { handoff.give_late(number); }
      } const given{handoff_, number};
      (*late)();
    }
    for (const Handoff::Meeting& meeting : pass.meetings) serve(meeting);
  } catch (...) {
    let_pass_end();
    records_.finish();
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    throw;
  }
  records_.finish();
  next_meeting_ += static_cast<std::uint32_t>(pass.meetings.size());
  CUDA_CHECK(cudaStreamSynchronize(stream_));
  if (clock_) clock_->add(pass.marks);
  if (check_) check_->compare(pass.samples, *crew_);
  return bad_value(pass.flags);
}

// ---- the machine ----------------------------------------------------------------------------------------------------

std::unique_ptr<Ops> make_gpu_ops(const GpuOptions& options, std::string* why_not) {
  const std::vector<GpuCard> cards = list_gpus(why_not);
  if (!why_not->empty()) return nullptr;
  if (options.device < 0 || static_cast<std::size_t>(options.device) >= cards.size()) {
    *why_not = fmt::format("there {} {} card{} (cuda:0{})", cards.size() == 1 ? "is" : "are", cards.size(),
                           cards.size() == 1 ? "" : "s",
                           cards.size() == 1 ? "" : fmt::format(" to cuda:{}", cards.size() - 1));
    return nullptr;
  }
  *why_not = cards[static_cast<std::size_t>(options.device)].problem;
  if (!why_not->empty()) return nullptr;
  return std::make_unique<CudaOps>(options);
}

}  // namespace tandem
