#include "runtime/sequence_state.h"

#include <algorithm>
#include <cstring>

namespace tandem {

// ---- RowHistory -----------------------------------------------------------------------------------------------------

RowHistory::RowHistory(std::size_t depth, std::size_t width)
    : depth_(depth), width_(width), rows_(depth * width), window_(kMaxWindow * width) {}

ConstRows RowHistory::committed() const {
  return {rows_.data(), depth_, width_};
}

void RowHistory::commit(ConstRows x) {
  CHECK(pending_ == 0 && x.cols == width_, "{} pending rows, {} of {} columns", pending_, x.cols, width_);
  const std::size_t kept = depth_ - std::min(depth_, x.rows);
  std::memmove(rows_.data(), rows_.data() + (depth_ - kept) * width_, kept * width_ * sizeof(float));
  for (std::size_t i = kept; i < depth_; ++i)
    std::copy_n(x.row(x.rows - depth_ + i), width_, rows_.data() + i * width_);
}

void RowHistory::log(ConstRows x) {
  CHECK(pending_ + x.rows <= kMaxWindow && x.cols == width_, "{} + {} rows", pending_, x.rows);
  for (std::size_t r = 0; r < x.rows; ++r) std::copy_n(x.row(r), width_, window_.data() + (pending_ + r) * width_);
  pending_ += x.rows;
}

void RowHistory::keep(std::size_t rows) {
  CHECK(rows <= pending_, "keep {} of {} rows", rows, pending_);
  pending_ = 0;
  commit(ConstRows(window_.data(), rows, width_));
}

const float* RowHistory::back(std::size_t back) const {
  CHECK(back >= 1 && back <= depth_ + pending_, "row {} back of {} + {}", back, depth_, pending_);
  return back <= pending_ ? window_.data() + (pending_ - back) * width_
                          : rows_.data() + (depth_ + pending_ - back) * width_;
}

// ---- SequenceState --------------------------------------------------------------------------------------------------

namespace {
AttentionLayerState make_attention_state(const ModelShape& shape, const StateOptions& options) {
  const std::size_t width = static_cast<std::size_t>(shape.kv_heads * shape.head_dim);
  const std::size_t value_bytes = options.kv == KvType::kF32 ? 4 : 2;
  const auto ratio = static_cast<std::size_t>(shape.indexer_ratio);
  const auto dim = static_cast<std::size_t>(shape.indexer_dim);
  AttentionLayerState state;
  state.k = LazyArray<std::uint8_t>(options.context * width * value_bytes);
  state.v = LazyArray<std::uint8_t>(options.context * width * value_bytes);
  state.pooled = LazyArray<float>(options.context / ratio * dim);
  state.raw_keys = RowHistory(ratio - 1, dim);
  return state;
}

GdnLayerState make_gdn_state(const ModelShape& shape) {
  const auto dim = static_cast<std::size_t>(shape.gdn_dim);
  const auto heads = static_cast<std::size_t>(shape.gdn_value_heads);
  GdnLayerState state;
  state.s.resize(heads * dim * dim);
  state.conv =
      RowHistory(static_cast<std::size_t>(shape.gdn_conv - 1), static_cast<std::size_t>(shape.gdn_conv_width()));
  state.log_k.resize(kMaxWindow * static_cast<std::size_t>(shape.gdn_key_width()));
  state.log_u.resize(kMaxWindow * heads * dim);
  state.log_decay.resize(kMaxWindow * heads);
  return state;
}
}  // namespace

SequenceState::SequenceState(const ModelShape& shape, const StateOptions& options) : shape_(shape), options_(options) {
  CHECK(options.context > 0);
  tokens_.reserve(options.context);
  pending_.reserve(kMaxWindow);
  reset();
}

void SequenceState::reset() {
  const auto layers = static_cast<std::size_t>(shape_.layers);
  tokens_.clear();
  pending_.clear();
  gdn.clear();
  attention.clear();
  gdn.resize(layers);
  attention.resize(layers);
  for (std::size_t i = 0; i < layers; ++i)
    if (shape_.is_gdn[i])
      gdn[i] = make_gdn_state(shape_);
    else
      attention[i] = make_attention_state(shape_, options_);
  if (shape_.ple_layer >= 0)
    ple_conv = RowHistory(static_cast<std::size_t>(shape_.ple_history()), static_cast<std::size_t>(shape_.wide()));
  mtp = MtpState{};
  if (shape_.mtp_layers > 0) mtp.attention = make_attention_state(shape_, options_);
}

void SequenceState::keep(std::size_t rows) {
  CHECK(rows <= pending_.size(), "keep {} of {} rows", rows, pending_.size());
  tokens_.insert(tokens_.end(), pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(rows));
  pending_.clear();
  for (GdnLayerState& layer : gdn) {
    if (layer.s.empty()) continue;
    layer.conv.keep(rows);
    layer.replay = rows;
    layer.logged = 0;
  }
  for (AttentionLayerState& layer : attention)
    if (layer.k.data() != nullptr) layer.raw_keys.keep(rows);
  if (shape_.ple_layer >= 0) ple_conv.keep(rows);
}

void SequenceState::MtpState::keep(std::size_t n) {
  CHECK(n <= pending, "keep {} of {} draft rows", n, pending);
  attention.raw_keys.keep(n);
  rows += n;
  pending = 0;
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
  std::size_t position = 0, mtp_rows = 0;
  std::vector<GdnLayerState> gdn;
  std::vector<RowHistory> raw_keys;  // by trunk layer
  RowHistory ple_conv, mtp_raw_keys;
  std::vector<float> mtp_hidden;
  std::size_t mtp_hidden_first = 0;
};

std::shared_ptr<const SequenceState::Checkpoint> SequenceState::checkpoint() const {
  CHECK(pending_.empty() && mtp.pending == 0, "a window is open");
  auto point = std::make_shared<Checkpoint>();
  point->position = position();
  point->mtp_rows = mtp.rows;
  point->gdn = gdn;
  for (const AttentionLayerState& layer : attention) point->raw_keys.push_back(layer.raw_keys);
  point->ple_conv = ple_conv;
  point->mtp_raw_keys = mtp.attention.raw_keys;
  point->mtp_hidden = mtp.hidden;
  point->mtp_hidden_first = mtp.hidden_first;
  return point;
}

void SequenceState::rewind(const Checkpoint& point) {
  CHECK(pending_.empty() && mtp.pending == 0, "a window is open");
  CHECK(point.position <= position(), "checkpoint at {} is ahead of {}", point.position, position());
  tokens_.resize(point.position);
  gdn = point.gdn;
  for (std::size_t i = 0; i < attention.size(); ++i) attention[i].raw_keys = point.raw_keys[i];
  ple_conv = point.ple_conv;
  mtp.attention.raw_keys = point.mtp_raw_keys;
  mtp.rows = point.mtp_rows;
  mtp.hidden = point.mtp_hidden;
  mtp.hidden_first = point.mtp_hidden_first;
}

std::size_t SequenceState::checkpoint_position(const Checkpoint& point) {
  return point.position;
}

std::size_t SequenceState::checkpoint_bytes() const {
  const auto history = [](const RowHistory& h) { return (h.depth() + kMaxWindow) * h.width() * sizeof(float); };
  std::size_t bytes = history(ple_conv) + history(mtp.attention.raw_keys) + mtp.hidden.size() * sizeof(float);
  for (const GdnLayerState& layer : gdn)
    bytes += (layer.s.size() + layer.log_k.size() + layer.log_u.size() + layer.log_decay.size()) * sizeof(float) +
             history(layer.conv);
  for (const AttentionLayerState& layer : attention) bytes += history(layer.raw_keys);
  return bytes;
}

}  // namespace tandem
