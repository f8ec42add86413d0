#include "gpu/kernels/attention_input.h"

#include "gpu/cuda_check.h"
#include "gpu/kernels/kv_types.cuh"
#include "gpu/kernels/launch.cuh"
#include "gpu/kernels/launch_check.h"
#include "gpu/kernels/reduce.cuh"

namespace tandem::gpu {

namespace {

constexpr unsigned kWarps = 4;  // of a block

// value(i, normed and rotated value i) for the values of one head, by a warp.
template <typename Store>
__device__ void norm_rope_head(const float* x, const float* gamma, unsigned n, float eps, const DeviceRope& rope,
                               std::size_t row, float* normed, Store store) {
  const unsigned lane = threadIdx.x % kWarp, half = static_cast<unsigned>(rope.half);
  const std::size_t angle = (static_cast<std::size_t>(rope.first == nullptr ? 0 : *rope.first) + row) * half;
  float v[kSegmentSteps], g[kSegmentSteps], cos[kSegmentSteps], sin[kSegmentSteps], square = 0.0F;
#pragma unroll
  for (unsigned k = 0; k < kSegmentSteps; ++k) {
    const unsigned i = k * kLanes + lane, pair = i < half ? i : i - half;
    if (i < n) v[k] = x[i], g[k] = gamma[i];
    if (i < 2 * half) cos[k] = rope.cos[angle + pair], sin[k] = rope.sin[angle + pair];
  }
#pragma unroll
  for (unsigned k = 0; k < kSegmentSteps; ++k)
    if (k * kLanes + lane < n) square = __fmaf_rn(v[k], v[k], square);
  const float inverse = inverse_root<true>(warp_tree(square), n, eps);
#pragma unroll
  for (unsigned k = 0; k < kSegmentSteps; ++k)
    if (k * kLanes + lane < n) normed[k * kLanes + lane] = (v[k] * inverse) * g[k];
  __syncwarp();
#pragma unroll
  for (unsigned k = 0; k < kSegmentSteps; ++k) {
    const unsigned i = k * kLanes + lane;
    if (i < n) store(i, rotated(normed, i, half, cos[k], sin[k]));
  }
}

// One block a processor is enough to ask for: with more, sm_86 spills four bytes.
template <typename T>
__global__ void __launch_bounds__(kWarps* kWarp, 1) input_kernel(const __grid_constant__ DeviceAttentionInput in) {
  begin_kernel();
  __shared__ float normed[kWarps][kSegment];
  const unsigned warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const auto heads = static_cast<unsigned>(in.heads), kv_heads = static_cast<unsigned>(in.kv.kv_heads);
  const auto n = static_cast<unsigned>(in.kv.head_dim);
  unsigned unit = blockIdx.x * kWarps + warp;
  const std::size_t r = blockIdx.y;
  if (unit < heads) {
    float* out = in.q_rot.data + r * in.q_rot.stride + std::size_t{unit} * n;
    return norm_rope_head(in.q.data + r * in.q.stride + unit * in.head_stride, in.q_norm, n, in.eps, in.rope, r,
                          normed[warp], [out](unsigned i, float v) { out[i] = v; });
  }
  unit -= heads;
  const std::size_t position = static_cast<std::size_t>(*in.position) + r;
  if (unit >= 2 * kv_heads || position >= in.kv.capacity) return;
  const unsigned head = unit < kv_heads ? unit : unit - kv_heads;
  const std::size_t column = std::size_t{head} * n, to = position * kv_heads * n + column;
  if (unit < kv_heads) {
    T* keys = static_cast<T*>(in.kv.k) + to;
    return norm_rope_head(in.k.data + r * in.k.stride + column, in.k_norm, n, in.eps, in.rope, r, normed[warp],
                          [keys](unsigned i, float v) { narrow(v, keys[i]); });
  }
  T* values = static_cast<T*>(in.kv.v) + to;
  for (unsigned i = lane; i < n; i += kWarp) narrow(in.v.data[r * in.v.stride + column + i], values[i]);
}

}  // namespace

void attention_input(const DeviceAttentionInput& in, DeviceStream stream) {
  const std::size_t w = in.q.rows, dim = in.kv.head_dim, width = in.kv.kv_heads * dim;
  LAUNCH_CHECK(dim > 0 && dim <= kSegment && 2 * in.rope.half <= dim && in.k.rows == w && in.v.rows == w &&
                   in.q_rot.rows == w && w <= 65535,
               dim, in.rope.half, w, in.k.rows, in.v.rows, in.q_rot.rows);
  LAUNCH_CHECK(in.k.cols == width && in.v.cols == width && in.q_rot.cols == in.heads * dim && in.heads > 0 &&
                   in.q.cols >= (in.heads - 1) * in.head_stride + dim,
               in.k.cols, in.v.cols, width, in.q_rot.cols, in.heads, in.q.cols);
  if (w == 0) return;
  const std::size_t units = in.heads + 2 * in.kv.kv_heads;
  const dim3 grid(static_cast<unsigned>((units + kWarps - 1) / kWarps), static_cast<unsigned>(w));
  if (in.kv.half)
    launch_kernel(input_kernel<__half>, grid, kWarps * kWarp, 0, stream, in);
  else
    launch_kernel(input_kernel<float>, grid, kWarps * kWarp, 0, stream, in);
}

}  // namespace tandem::gpu
