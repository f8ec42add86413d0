// CudaOps: READ of a hyper-connection module in three launches.
#include <algorithm>

#include "gpu/cuda_ops.h"

namespace tandem {

// Before passes: a READ may not allocate, and the counters are zero from here on.
void CudaOps::reserve_hc(std::size_t wide, std::size_t rank) {
  if (wide <= hc_wide_ && rank <= hc_rank_) return;
  hc_wide_ = std::max(wide, hc_wide_);
  hc_rank_ = std::max(rank, hc_rank_);
  forget_records();
  hc_memory_ = {memory_, hc_scratch_bytes(hc_wide_, hc_rank_)};
  hc_scratch_ = make_hc_scratch(hc_memory_.data(), hc_wide_, hc_rank_);
  memory_.zero(hc_scratch_.arrived, hc_scratch_.arrived_bytes);
}

std::int64_t CudaOps::hc_read(const HcRead& read) {
  quantized_ = {};
  const HcWeights& weights = *read.weights;
  const std::size_t rows = read.x.rows, d = read.mixed.cols, rank = read.low.cols;
  if (!can_fuse_hc_read(weights.down.type, weights.up.type, rows, static_cast<std::size_t>(read.streams), d, rank) ||
      read.x.cols > hc_wide_ || rank > hc_rank_)
    return Ops::hc_read(read);
  CHECK(weights.down.rows == rank && weights.down.cols == read.x.cols && weights.up.rows == read.x.cols &&
            weights.up.cols == rank,
        "{}: [{}, {}] and [{}, {}] for {} columns", weights.down.name, weights.down.rows, weights.down.cols,
        weights.up.rows, weights.up.cols, read.x.cols);

  DeviceHcRead args;
  args.eps = read.eps;
  args.gamma = read.gamma;
  args.x = read.x;
  args.written = read.written;
  args.written_inject = read.written_inject;
  args.down = tiles(weights.down);
  args.up = tiles(weights.up);
  const bool float_inject = weights.inject && dtype_info(weights.inject.type).kind == DTypeKind::kFloat;
  if (float_inject) {
    args.inject_weights = weights_.data(weights.inject);
    args.inject_type = float_type(weights.inject.type);
    args.inject_scale = weights.inject.scale;
  }
  args.normed = read.normed;
  args.low = read.low;
  args.inject = read.inject;
  args.mixed = read.mixed;
  args.scratch = hc_scratch_;
  args.scratch.normed_q.bad = next_flag();
  args.scratch.low_q.bad = next_flag();
  // Without a stage it says nothing: whether a row of `mixed` must be finite is known when it is quantised.
  const std::size_t flag = now_.flags.size();
  args.mixed_q = {read.mixed_q.q, read.mixed_q.d, read.mixed_q.s, next_flag()};
  now_.flags[flag] = {};
  launch_hc_norm(args, stream_);
  launch_hc_down(args, stream_);
  if (weights.inject && !float_inject) {
    const HcQuant& normed = hc_scratch_.normed_q;
    launch_tile_matmul(tiles(weights.inject), {normed.q, normed.d, normed.s}, rows, read.inject.data,
                       read.inject.stride, stream_);
  }
  launch_hc_up(args, stream_);
  quantized_ = {read.mixed.data, read.mixed_q.q, rows, d, flag};
  return -1;
}

}  // namespace tandem
