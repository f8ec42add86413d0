#include "runtime/sequence_state.h"

#include <algorithm>
#include <utility>

namespace tandem {

// ---- RowHistory -----------------------------------------------------------------------------------------------------

RowHistory::RowHistory(MachineMemory& memory, std::size_t depth, std::size_t width)
    : depth_(depth), width_(width), rows_(memory, (depth + kMaxWindow) * width) {}

// ---- SequenceState --------------------------------------------------------------------------------------------------

namespace {
AttentionLayerState make_attention_state(MachineMemory& memory, MachineMemory& cache, const ModelShape& shape,
                                         const StateOptions& options) {
  const std::size_t width = static_cast<std::size_t>(shape.kv_heads * shape.head_dim);
  const std::size_t value_bytes = options.kv == KvType::kF32 ? 4 : 2;
  const auto ratio = static_cast<std::size_t>(shape.indexer_ratio);
  const auto dim = static_cast<std::size_t>(shape.indexer_dim);
  AttentionLayerState state;
  state.k = Array<std::uint8_t>(cache, options.context * width * value_bytes);
  state.v = Array<std::uint8_t>(cache, options.context * width * value_bytes);
  state.pooled = Array<float>(memory, options.context / ratio * dim);
  state.raw_keys = RowHistory(memory, ratio - 1, dim);
  return state;
}

GdnLayerState make_gdn_state(MachineMemory& memory, const ModelShape& shape) {
  const auto dim = static_cast<std::size_t>(shape.gdn_dim);
  const auto heads = static_cast<std::size_t>(shape.gdn_value_heads);
  GdnLayerState state;
  state.s = {memory, heads * dim * dim};
  state.conv = RowHistory(memory, static_cast<std::size_t>(shape.gdn_conv - 1),
                          static_cast<std::size_t>(shape.gdn_conv_width()));
  state.log_k = {memory, kMaxWindow * static_cast<std::size_t>(shape.gdn_key_width())};
  state.log_u = {memory, kMaxWindow * heads * dim};
  state.log_decay = {memory, kMaxWindow * heads};
  return state;
}
}  // namespace

SequenceState::SequenceState(const ModelShape& shape, const StateOptions& options, MachineMemory& memory,
                             std::shared_ptr<CacheLease> cache)
    : shape_(shape), options_(options), memory_(&memory), cache_(std::move(cache)) {
  CHECK(options.context > 0);
  tokens_.reserve(options.context);
  pending_.reserve(kMaxWindow);
  MachineMemory& rows = cache_ ? cache_->memory() : memory;
  const auto layers = static_cast<std::size_t>(shape_.layers);
  gdn.resize(layers);
  attention.resize(layers);
  for (std::size_t i = 0; i < layers; ++i)
    if (shape_.is_gdn[i]) {
      gdn[i] = make_gdn_state(memory, shape_);
      histories_.push_back(gdn[i].conv.view());
    } else {
      attention[i] = make_attention_state(memory, rows, shape_, options_);
      histories_.push_back(attention[i].raw_keys.view());
    }
  if (shape_.ple_layer >= 0) {
    ple_conv =
        RowHistory(memory, static_cast<std::size_t>(shape_.ple_history()), static_cast<std::size_t>(shape_.wide()));
    histories_.push_back(ple_conv.view());
  }
  if (shape_.mtp_layers > 0) mtp.attention = make_attention_state(memory, rows, shape_, options_);
}

// What the draft block has is kept, too, where it is ahead of the trunk.
void SequenceState::need_rows(std::int64_t positions) {
  const std::size_t needed = std::max(static_cast<std::size_t>(positions), mtp.rows + mtp.pending);
  needed_rows_ = std::min(needed, options_.context);
  if (cache_) cache_->need(static_cast<std::int64_t>(needed_rows_));
}

// Caches are not cleared: what lies past the end is never read.
void SequenceState::reset() {
  tokens_.clear();
  pending_.clear();
  replay = 0;
  const auto clear = [&](const Array<float>& array) {
    if (!array.empty()) memory_->zero(array.data(), array.bytes());
  };
  for (const GdnLayerState& layer : gdn) {
    clear(layer.s);
    clear(layer.conv.storage());
  }
  for (const AttentionLayerState& layer : attention) clear(layer.raw_keys.storage());
  clear(ple_conv.storage());
  clear(mtp.attention.raw_keys.storage());
  mtp.rows = mtp.pending = mtp.hidden_first = 0;
  mtp.hidden.clear();
}

void SequenceState::keep(std::size_t rows) {
  CHECK(rows <= pending_.size(), "keep {} of {} rows", rows, pending_.size());
  tokens_.insert(tokens_.end(), pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(rows));
  pending_.clear();
  memory_->keep_rows(histories_, rows);
  replay = rows;
}

void SequenceState::keep_drafts(std::size_t n) {
  CHECK(n <= mtp.pending, "keep {} of {} draft rows", n, mtp.pending);
  const HistoryRows raw_keys = mtp.attention.raw_keys.view();
  memory_->keep_rows({&raw_keys, 1}, n);
  mtp.rows += n;
  mtp.pending = 0;
}

KvView SequenceState::kv_view(const AttentionLayerState& layer) const {
  return {options_.kv,
          layer.k.data(),
          layer.v.data(),
          static_cast<std::size_t>(shape_.kv_heads),
          static_cast<std::size_t>(shape_.head_dim),
          options_.context};
}

void SequenceState::append_committed(std::span<const TokenId> tokens) {
  CHECK(pending_.empty());
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
}

void SequenceState::append_window(std::span<const TokenId> tokens) {
  CHECK(pending_.empty());
  pending_.assign(tokens.begin(), tokens.end());
}

std::span<const TokenId> SequenceState::history_before(std::size_t n) const {
  return std::span(tokens_).last(std::min(n, tokens_.size()));
}

// ---- checkpoints ----------------------------------------------------------------------------------------------------

class SequenceState::Checkpoint {
 public:
  std::size_t position = 0, replay = 0, mtp_rows = 0;
  std::vector<Array<float>> parts;  // as recurrent_parts lists them
  std::vector<float> mtp_hidden;
  std::size_t mtp_hidden_first = 0;
};

std::vector<const Array<float>*> SequenceState::recurrent_parts() const {
  std::vector<const Array<float>*> parts;
  const auto add = [&](const Array<float>& array) {
    if (!array.empty()) parts.push_back(&array);
  };
  for (const GdnLayerState& layer : gdn)
    for (const Array<float>* array : {&layer.s, &layer.conv.storage(), &layer.log_k, &layer.log_u, &layer.log_decay})
      add(*array);
  for (const AttentionLayerState& layer : attention) add(layer.raw_keys.storage());
  add(ple_conv.storage());
  add(mtp.attention.raw_keys.storage());
  return parts;
}

std::shared_ptr<const SequenceState::Checkpoint> SequenceState::checkpoint() const {
  CHECK(pending_.empty() && mtp.pending == 0, "a window is open");
  auto point = std::make_shared<Checkpoint>();
  point->position = position();
  point->replay = replay;
  point->mtp_rows = mtp.rows;
  for (const Array<float>* part : recurrent_parts()) point->parts.push_back(part->clone());
  point->mtp_hidden = mtp.hidden;
  point->mtp_hidden_first = mtp.hidden_first;
  return point;
}

void SequenceState::rewind(const Checkpoint& point) {
  CHECK(pending_.empty() && mtp.pending == 0, "a window is open");
  CHECK(point.position <= position(), "checkpoint at {} is ahead of {}", point.position, position());
  tokens_.resize(point.position);
  replay = point.replay;
  const std::vector<const Array<float>*> parts = recurrent_parts();
  for (std::size_t i = 0; i < parts.size(); ++i) parts[i]->assign(point.parts[i]);
  mtp.rows = point.mtp_rows;
  mtp.hidden = point.mtp_hidden;
  mtp.hidden_first = point.mtp_hidden_first;
}

std::size_t SequenceState::checkpoint_position(const Checkpoint& point) {
  return point.position;
}

std::size_t SequenceState::checkpoint_bytes() const {
  std::size_t bytes = mtp.hidden.size() * sizeof(float);
  for (const Array<float>* part : recurrent_parts()) bytes += part->bytes();
  return bytes;
}

}  // namespace tandem
