// Everything one sequence leaves behind: KV, pooled and raw indexer keys, GDN states, convolution histories, the token
// history, MTP caches, the position.
//
// A pass either commits its rows, or opens a window: up to kMaxWindow rows whose effect is only logged. keep(a) then
// keeps the first a of them, exactly as if the others had never been run (spec/model.md section 8 of the design: the
// delta-rule state is not copied; the accepted rows' (k, u, decay) are folded into it by the next pass).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "placement/footprint.h"
#include "placement/model_shape.h"
#include "runtime/ops.h"
#include "runtime/tokenizer.h"

namespace tandem {

inline constexpr std::size_t kMaxWindow = kWindowRows;

// The last `depth` committed rows of a [*, width] stream, plus the rows of an open window (MachineMemory::commit_rows,
// keep_rows, log_rows change it; how many rows the window has is known to whoever owns the history).
class RowHistory {
 public:
  RowHistory() = default;
  RowHistory(MachineMemory& memory, std::size_t depth, std::size_t width);
  HistoryRows view() const { return {rows_.data(), rows_.data() + depth_ * width_, depth_, width_}; }
  ConstRows committed() const { return {rows_.data(), depth_, width_}; }  // oldest first, zeros before the start
  std::size_t committed_bytes() const { return depth_ * width_ * sizeof(float); }
  const Array<float>& storage() const { return rows_; }
  std::size_t depth() const { return depth_; }
  std::size_t width() const { return width_; }

 private:
  std::size_t depth_ = 0, width_ = 0;
  Array<float> rows_;  // [depth + kMaxWindow, width]
};

struct GdnLayerState {
  Array<float> s;                        // [value_heads, dim, dim]
  RowHistory conv;                       // pre-convolution qkv rows
  Array<float> log_k, log_u, log_decay;  // of the last window, kMaxWindow rows (SequenceState::replay)
};

struct AttentionLayerState {
  Array<std::uint8_t> k, v;  // [context, kv width] in the KV type
  Array<float> pooled;       // [context / ratio, indexer_dim], normed and rotated
  RowHistory raw_keys;       // the raw indexer keys of the open block and of the window
};

// Memory for the keys and values of one sequence, of which the rows that it has not reached are lent to experts
// (ExpertStore::lease_cache).
class CacheLease {
 public:
  virtual ~CacheLease() = default;
  virtual MachineMemory& memory() = 0;  // of CacheAreas::total() bytes, for arrays in the order of the areas
  // The first `positions` rows are this sequence's from now on, the others may be lent.
  virtual void need(std::int64_t positions) = 0;
};

struct StateOptions {
  std::size_t context = 4096;  // positions
  KvType kv = KvType::kF16;
};

class SequenceState {
 public:
  // In the memory of the machine that will run it, which must outlive it; keys and values in the lease's, if there is
  // one, and then the store that gave it must outlive this, too.
  SequenceState(const ModelShape& shape, const StateOptions& options, MachineMemory& memory = host_memory(),
                std::shared_ptr<CacheLease> cache = nullptr);

  std::size_t position() const { return tokens_.size(); }  // committed tokens
  std::size_t context() const { return options_.context; }
  std::size_t room() const { return options_.context - position(); }
  std::span<const TokenId> tokens() const { return tokens_; }  // committed tokens, oldest first
  std::size_t pending() const { return pending_.size(); }      // rows of the open window
  const StateOptions& options() const { return options_; }

  // Closes the open window: the first `rows` rows stay, the rest never were. REQUIRES rows <= pending().
  void keep(std::size_t rows);
  void reset();  // back to an empty sequence

  // A point to return to: recurrent parts are copied, cached rows are not (they stay valid while the sequence only
  // grows). rewind() restores it. REQUIRES no open window; the checkpoint was taken from this object at a position <=
  // the present one and no rewind to an earlier position happened in between.
  class Checkpoint;
  std::shared_ptr<const Checkpoint> checkpoint() const;
  void rewind(const Checkpoint& checkpoint);
  static std::size_t checkpoint_position(const Checkpoint& checkpoint);
  std::size_t checkpoint_bytes() const;

  // Versioned, checksummed file (docs/formats.md, "State file"), written to a temporary name, synced and renamed.
  // REQUIRES no open window. restore() throws InputError for a damaged or truncated file, another version, another
  // model (fingerprint) or other settings (KV type), or a context too small; the state is then unchanged.
  void save(const std::filesystem::path& path, std::uint64_t model_fingerprint) const;
  void restore(const std::filesystem::path& path, std::uint64_t model_fingerprint);

  // ---- used by the pipeline ------------------------------------------------------------------------------------
  struct MtpState {
    AttentionLayerState attention;
    std::size_t rows = 0;     // committed rows
    std::size_t pending = 0;  // rows of the open draft window
    // Wide residuals of the positions from hidden_first on that the head has not been fed (runtime/mtp_drafter.h). Part
    // of checkpoints, not of state files.
    std::vector<float> hidden;
    std::size_t hidden_first = 0;
    std::size_t waiting(std::size_t width) const { return hidden.size() / width; }
  };
  void keep_drafts(std::size_t n);  // as keep, for the open draft window
  // A pass of the trunk is next, and it and the drafts after it write no rows of the caches from `positions` on.
  void need_rows(std::int64_t positions);
  std::size_t needed_rows() const { return needed_rows_; }
  // Rows of the last window that are accepted and not yet folded into the delta-rule states.
  std::size_t replay = 0;
  std::vector<GdnLayerState> gdn;              // by trunk layer; empty entries for attention layers
  std::vector<AttentionLayerState> attention;  // by trunk layer; empty entries for GDN layers
  RowHistory ple_conv;
  MtpState mtp;

  MachineMemory& memory() const { return *memory_; }
  std::uint64_t identity() const { return identity_; }  // of its addresses
  KvView kv_view(const AttentionLayerState& layer) const;
  void append_committed(std::span<const TokenId> tokens);
  void append_window(std::span<const TokenId> tokens);
  // The last `n` committed tokens, oldest first; fewer at the start. Valid until tokens are appended.
  std::span<const TokenId> history_before(std::size_t n) const;
  const ModelShape& shape() const { return shape_; }

 private:
  // What passes change in place, in the order of the layers.
  std::vector<const Array<float>*> recurrent_parts() const;

  ModelShape shape_;
  StateOptions options_;
  MachineMemory* memory_;
  std::shared_ptr<CacheLease> cache_;
  std::size_t needed_rows_ = 0;
  std::uint64_t identity_ = new_identity();
  std::vector<HistoryRows> histories_;  // of the trunk
  std::vector<TokenId> tokens_, pending_;
};

}  // namespace tandem
