// Work memory of a pass: every intermediate result, sized once for the largest pass.
//
// A long pass runs in parts of at most part_rows rows, one after the other through the mixers of a layer; its experts
// meet all of its rows at once. So what a layer's experts take and give, and the residual, has a row for every row of
// the pass ("of the pass" below), everything else for a part.
#pragma once

#include <cstdint>
#include <vector>

#include "placement/model_shape.h"
#include "runtime/ops.h"

namespace tandem {

// A [rows, cols] float buffer; rows(w) is its first w rows.
class Buffer {
 public:
  Buffer() = default;
  Buffer(MachineMemory& memory, std::size_t rows, std::size_t cols) : cols_(cols), data_(memory, rows * cols) {}
  Rows rows(std::size_t w) const {
    DCHECK(w * cols_ <= data_.size());
    return {data_.data(), w, cols_};
  }
  std::size_t bytes() const { return data_.bytes(); }

 private:
  std::size_t cols_ = 0;
  Array<float> data_;
};

// The same for rows that the host gives or takes (runtime/memory.h).
class StagedBuffer {
 public:
  StagedBuffer() = default;
  StagedBuffer(MachineMemory& memory, std::size_t rows, std::size_t cols) : cols_(cols), data_(memory, rows * cols) {}
  StagedBuffer(Staged<float> data, std::size_t cols) : cols_(cols), data_(std::move(data)) {}
  const Staged<float>& data() const { return data_; }
  Rows rows(std::size_t w) const {
    DCHECK(w * cols_ <= data_.size());
    return {data_.data(), w, cols_};
  }
  Rows host(std::size_t w) const {
    DCHECK(w * cols_ <= data_.size());
    return {data_.host(), w, cols_};
  }
  void send(std::size_t w) const { data_.send(0, w * cols_); }
  void fetch(std::size_t w) const { data_.fetch(0, w * cols_); }
  std::size_t bytes() const { return data_.bytes(); }

 private:
  std::size_t cols_ = 0;
  Staged<float> data_;
};

// Rows of a part, when nothing else is said; a multiple of 16.
inline constexpr std::size_t kPartRows = 1024;

struct Workspace {
  // For passes of up to `rows` rows in parts of `part`. `fixed` is where all of it lies but the two buffers that grow,
  // which are in `growing`: memory of the same machine.
  Workspace(MachineMemory& growing, MachineMemory& fixed, const ModelShape& shape, std::size_t rows,
            std::size_t context, std::size_t part = kPartRows);
  Workspace(MachineMemory& m, const ModelShape& shape, std::size_t rows, std::size_t context,
            std::size_t part = kPartRows)
      : Workspace(m, m, shape, rows, context, part) {}

  MachineMemory& memory;
  std::size_t max_rows, part_rows;
  std::uint64_t identity = new_identity();  // of its addresses: the two buffers that grow change it
  // given by the host, of the pass
  StagedBuffer embedding;                                 // [w, d]
  StagedBuffer rope_cos, rope_sin, block_cos, block_sin;  // [w (+ 1), rope_dims / 2]
  StagedBuffer ngram;                                     // [w, ple_width]
  StagedBuffer wide_in;                                   // [w, D] residuals for the draft head; none on a host machine
  // of the pass
  StagedBuffer x;  // [w, D]     residual streams
  Buffer mixed;    // [w, d]     input of a block
  Buffer inject;   // [w, streams] logits
  Buffer block;    // [w, d]     output of a block
  Buffer expert_y, shared, shared_logit;
  Array<std::int32_t> route_expert, hit_expert, miss_expert;
  Array<float> route_weight;
  // hyper-connections
  Buffer normed;  // [w, D]     n of READ; also key / gated value of the n-gram layer
  Buffer wide_a;  // [w, D]     HC gate logits; query and conv input of the n-gram layer
  Buffer wide_b;  // [w, D]     n-gram key; conv output
  Buffer low;     // [w, rank]
  // GDN
  Buffer qkv, conv;    // [w, conv_width]
  Buffer z, gdn_out;   // [w, value_width]
  Buffer qn, kn;       // [w, key_width]
  Buffer alpha, beta;  // [w, value_heads]
  // attention
  Buffer q_gate;                // [w, heads * 2 * head_dim]
  Buffer q_rot, attn_out;       // [w, heads * head_dim]
  Buffer k, k_rot, v;           // [w, kv_heads * head_dim]
  Buffer index_q, index_q_rot;  // [w, indexer_heads * indexer_dim]
  Buffer index_k;               // [w, indexer_dim]
  Array<std::int32_t> positions, position_count;
  std::size_t position_stride;
  Buffer router;  // [w, experts]
  // head
  StagedBuffer logits;    // [w, tokens], as the last reserve_logits said
  Staged<Chosen> chosen;  // [kMaxWindow] tokens that the machine has chosen
  Buffer concat;          // [w * streams, 2 d], MTP fusion only

  // Makes `logits` [rows, tokens], in memory that grows on demand.
  void reserve_logits(std::size_t rows, std::size_t tokens);
  std::size_t bytes() const;  // of all of it, as it is now

  // Of a part; one at a time.
  QuantRows quant(std::size_t rows, std::size_t cols);
  // Of the pass: what the experts and the head take.
  QuantRows block_quant(std::size_t rows) const {
    return {block_q_.data(), block_d_.data(), block_s_.data(), rows, hidden_};
  }
  AttendLists lists(std::size_t rows) { return {positions.data(), position_count.data(), rows, position_stride}; }
  // The ids of all routes of a pass, bank by bank, for the host.
  std::int32_t* route_log(std::size_t bank, std::size_t rows, std::size_t used) const {
    return reinterpret_cast<std::int32_t*>(route_log_.get()) + bank * rows * used;
  }
  // Makes room for lists of `stride` positions (dense attention over a long sequence).
  void reserve_positions(std::size_t rows, std::size_t stride);
  Routes routes(std::size_t rows, std::size_t used) { return {route_expert.data(), route_weight.data(), rows, used}; }
  // The same routes with -1 where the expert is off the card, and where it is on the card.
  Routes hits(std::size_t rows, std::size_t used) { return {hit_expert.data(), route_weight.data(), rows, used}; }
  Routes misses(std::size_t rows, std::size_t used) { return {miss_expert.data(), route_weight.data(), rows, used}; }

 private:
  std::size_t hidden_;
  Array<std::int8_t> quant_q_, block_q_;
  Array<float> quant_d_, block_d_;
  Array<std::int32_t> quant_s_, block_s_;
  std::shared_ptr<std::uint8_t> route_log_;
  std::size_t route_log_bytes_ = 0;
};

// What Workspace(shape, rows, context, part_rows) takes after reserve_logits(logit_rows, shape.vocab), without making
// it.
std::int64_t workspace_bytes(const ModelShape& shape, std::int64_t rows, std::int64_t context, std::int64_t logit_rows,
                             std::int64_t part_rows = static_cast<std::int64_t>(kPartRows));

}  // namespace tandem
