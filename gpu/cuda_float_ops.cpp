// CudaOps: the operations on floats, each a call of its kernel.
#include <algorithm>

#include "gpu/cuda_check.h"
#include "gpu/cuda_ops.h"
#include "gpu/kernels/attention.h"
#include "gpu/kernels/attention_input.h"
#include "gpu/kernels/elementwise.h"
#include "gpu/kernels/history.h"
#include "gpu/kernels/ngram.h"
#include "gpu/kernels/norms.h"
#include "gpu/kernels/select.h"
#include "runtime/sequence_state.h"

namespace tandem {

namespace {
// The pipeline has checked that there is room for the pass's positions.
constexpr std::size_t kAnyBlocks = std::size_t{1} << 30;

gpu::DeviceKv on_card(const KvView& kv) {
  return {kv.type == KvType::kF16, kv.k, kv.v, kv.kv_heads, kv.head_dim, kv.capacity};
}
DeviceLists on_card(const AttendLists& lists) {
  return {lists.positions, lists.count, lists.rows, lists.stride};
}
AttendLists group_of(const AttendLists& lists, std::size_t first, std::size_t count) {
  return {lists.positions + first * lists.stride, lists.count + first, count, lists.stride};
}
}  // namespace

// Work memory of one operation; the next one may have the same.
void* CudaOps::scratch(std::size_t bytes) {
  if (scratches_.empty() || scratches_.back().bytes() < bytes) scratches_.emplace_back(memory_, bytes);
  return scratches_.back().data();
}

void CudaOps::choose(ConstRows logits, const TokenChoice& choice, std::size_t, const TokenId* ids, Chosen* chosen) {
  void* work = scratch(gpu::sample_bytes(logits.rows));
  std::int32_t* const bad = next_flag(pass_rows_ - logits.rows);  // logits are those of a pass's last rows
  if (choice.temperature == 0.0F) return gpu::arg_max(logits, ids, chosen, bad, work, stream_);
  gpu::sample(logits, ids, &numbers_.data()->choice, chosen, bad, work, stream_);
}
void CudaOps::softmax_sum(ConstRows logits, float, Chosen* chosen) {
  void* work = scratch(gpu::sample_bytes(logits.rows));
  gpu::softmax_sum(logits, &numbers_.data()->choice, chosen, arrived_.data(), work, stream_);
}

void CudaOps::rms_norm(ConstRows x, std::size_t groups, const float* gamma, float eps, Rows y) {
  gpu::rms_norm(x, groups, gamma, eps, y, stream_);
}
void CudaOps::l2_norm(ConstRows x, std::size_t dim, float eps, float scale, Rows y) {
  gpu::l2_norm(x, dim, eps, scale, y, stream_);
}
void CudaOps::norm_rope(ConstRows x, std::size_t heads, std::size_t dim, std::size_t head_stride, const float* gamma,
                        float eps, const RopeView& rope, Rows y) {
  CHECK(rope.cos.stride == rope.cos.cols && rope.sin.stride == rope.cos.cols, "angles {} apart", rope.cos.stride);
  gpu::norm_rope(x, heads, dim, head_stride, gamma, eps, {rope.cos.data, rope.sin.data, rope.cos.cols, nullptr}, y,
                 stream_);
}
void CudaOps::hc_low(Rows lo, int streams) {
  gpu::hc_low(lo, streams, stream_);
}
void CudaOps::hc_mix(ConstRows normed, ConstRows gate, int streams, Rows mixed) {
  gpu::hc_mix(normed, gate, streams, mixed, stream_);
}
void CudaOps::hc_write(Rows x, ConstRows y, ConstRows inject, int streams) {
  gpu::hc_write(x, y, inject, streams, stream_);
}
void CudaOps::causal_conv(ConstRows history, ConstRows x, ConstRows weights, std::size_t dilation, Rows y) {
  gpu::causal_conv(history, x, weights, dilation, y, nullptr, stream_);
}
void CudaOps::kv_store(const KvView& kv, std::size_t, ConstRows k, ConstRows v) {
  gpu::kv_store(on_card(kv), position(), k, v, stream_);
}
void CudaOps::attention_input(const AttentionInput& in) {
  CHECK(in.dim == in.kv.head_dim && in.rope.cos.stride == in.rope.cos.cols && in.rope.sin.stride == in.rope.cos.cols,
        "heads of {} and {}, angles {} apart", in.dim, in.kv.head_dim, in.rope.cos.stride);
  gpu::DeviceAttentionInput args;
  args.heads = in.heads;
  args.head_stride = in.head_stride;
  args.q = in.q;
  args.k = in.k;
  args.v = in.v;
  args.q_norm = in.q_norm;
  args.k_norm = in.k_norm;
  args.eps = in.eps;
  args.rope = {in.rope.cos.data, in.rope.sin.data, in.rope.cos.cols, nullptr};
  args.kv = on_card(in.kv);
  args.position = position();
  args.q_rot = in.q_rot;
  gpu::attention_input(args, stream_);
}
void CudaOps::mean_pool(ConstRows x, std::size_t ratio, Rows y) {
  gpu::mean_pool(x, ratio, y, stream_);
}
void CudaOps::select_positions(ConstRows q, std::size_t heads, ConstRows pooled, std::size_t, std::size_t ratio,
                               std::size_t blocks, AttendLists lists) {
  stage("indexer scores", layer_);
  const std::size_t group = rows_at_once(q.rows);
  for (std::size_t first = 0; first < q.rows; first += group) {
    const std::size_t count = std::min(group, q.rows - first);
    auto* scores = static_cast<float*>(scratch(group * pooled.rows * sizeof(float)));
    std::int32_t* flag = next_flag(first);
    gpu::select_positions(q.slice(first, count), heads, pooled, position(first / kRowGroup), ratio, blocks,
                          on_card(group_of(lists, first, count)), scores, flag, stream_);
  }
}
void CudaOps::index_blocks(const IndexBlocks& b) {
  gpu::DeviceIndexBlocks args;
  args.raw = {b.raw.rows, b.raw.window, b.raw.depth, b.raw.width};
  args.pending = &numbers_.data()->pending;
  args.keys = b.keys;
  args.position = position();
  args.ratio = b.ratio;
  args.gamma = b.gamma;
  args.eps = b.eps;
  args.cos = b.rope.cos;
  args.sin = b.rope.sin;
  args.pooled = DeviceRows(b.pooled, kAnyBlocks, b.keys.cols);
  gpu::index_blocks(args, stream_);
}
void CudaOps::all_positions(std::size_t, AttendLists lists) {
  for (std::size_t first = 0; first < lists.rows; first += kRowGroup)
    gpu::all_positions(position(first / kRowGroup), lists.stride,
                       on_card(group_of(lists, first, std::min(kRowGroup, lists.rows - first))), stream_);
}
void CudaOps::attention(ConstRows q, const KvView& kv, const AttendLists& lists, float scale, ConstRows gate,
                        std::size_t gate_stride, Rows out) {
  const std::size_t heads = q.cols / kv.head_dim;
  stage("attention, sums", layer_);
  constexpr std::size_t kLongList = 8192;  // whose scores of many rows would take much memory
  const std::size_t group = lists.stride > kLongList ? kRowGroup : rows_at_once(q.rows);
  // Fewer rows are cut into more groups of entries, and need more a row.
  void* work = scratch(std::max(gpu::attention_bytes(group, heads, kv.head_dim, lists.stride),
                                gpu::attention_bytes(kRowGroup, heads, kv.head_dim, lists.stride)));
  for (std::size_t first = 0; first < q.rows; first += group) {
    const std::size_t count = std::min(group, q.rows - first);
    gpu::attention(q.slice(first, count), on_card(kv), on_card(group_of(lists, first, count)), lists.stride, scale,
                   gate.slice(first, count), gate_stride, out.slice(first, count), work, stream_);
  }
}

void CudaOps::combine(const Routes& routes, ConstRows y, ConstRows shared_logit, ConstRows shared, Rows out) {
  sides_.join(kFfn);
  gpu::combine(routes.expert, routes.weight, routes.used, y, shared_logit, shared, out, stream_, crew_rows_);
  crew_rows_ = {};
}
void CudaOps::ple_gate(ConstRows key, ConstRows query, ConstRows value, int streams, Rows gv) {
  gpu::ple_gate(key, query, value, streams, gv, stream_);
}
void CudaOps::add2(Rows x, ConstRows a, ConstRows b) {
  gpu::add2(x, a, b, stream_);
}
void CudaOps::tile_streams(ConstRows a, int streams, Rows x) {
  gpu::tile_streams(a, streams, x, stream_);
}
void CudaOps::add_streams(Rows x, ConstRows a, int streams) {
  gpu::add_streams(x, a, streams, stream_);
}
void CudaOps::pair_streams(ConstRows a, ConstRows h, int streams, Rows out) {
  gpu::pair_streams(a, h, streams, out, stream_);
}

}  // namespace tandem
