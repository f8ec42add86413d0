#include "gpu/kernels/gdn_edges.h"

#include "gpu/cuda_check.h"
#include "gpu/kernels/gdn_gate.cuh"
#include "gpu/kernels/launch.cuh"
#include "gpu/kernels/launch_check.h"
#include "gpu/kernels/quantize.cuh"
#include "gpu/kernels/reduce.cuh"

namespace tandem::gpu {

namespace {

constexpr unsigned kWarps = 4;           // of a block
constexpr unsigned kCopied = 4 * kWarp;  // floats that a warp copies

unsigned divide_up(std::size_t a, std::size_t b) {
  return static_cast<unsigned>((a + b - 1) / b);
}

struct InputArgs {
  DeviceGdnInput in;
  unsigned groups;  // of dim columns
};

// kSteps * 32 >= dim, kTaps >= the number of taps.
template <unsigned kSteps, unsigned kTaps>
__global__ void __launch_bounds__(kWarps* kWarp) input_kernel(const __grid_constant__ InputArgs args) {
  begin_kernel();
  const DeviceGdnInput& in = args.in;
  const unsigned lane = threadIdx.x % kWarp, group = blockIdx.x * kWarps + threadIdx.x / kWarp;
  const std::size_t t = blockIdx.y;
  const auto dim = static_cast<unsigned>(in.dim), key_heads = static_cast<unsigned>(in.key_heads);
  if (group >= args.groups) {
    const unsigned h = (group - args.groups) * kWarp + lane;
    if (h >= in.alpha.cols) return;
    float& alpha = in.alpha.data[t * in.alpha.stride + h];
    float& beta = in.beta.data[t * in.beta.stride + h];
    alpha = decay_gate(alpha, in.dt_bias[h], in.a[h]);
    beta = sigmoid_c(beta);
    return;
  }
  const std::size_t first = std::size_t{group} * dim;
  const auto taps = static_cast<unsigned>(in.taps.rows);
  float w[kSteps][kTaps], z[kSteps][kTaps];
#pragma unroll
  for (unsigned i = 0; i < kSteps; ++i) {
    const unsigned j = i * kWarp + lane;
    const std::size_t c = first + j;
    if (j >= dim || c >= in.qkv.cols) continue;
#pragma unroll
    for (unsigned k = 0; k < kTaps; ++k)
      if (k < taps) {
        const std::size_t at = t + k;
        z[i][k] = at < in.history.rows ? in.history.data[at * in.history.stride + c]
                                       : in.qkv.data[(at - in.history.rows) * in.qkv.stride + c];
        w[i][k] = in.taps.data[k * in.taps.stride + c];
      }
  }
  float v[kSteps], square = 0.0F;
#pragma unroll
  for (unsigned i = 0; i < kSteps; ++i) {
    const unsigned j = i * kWarp + lane;
    const std::size_t c = first + j;
    if (j >= dim || c >= in.qkv.cols) continue;
    float sum = 0.0F;
#pragma unroll
    for (unsigned k = 0; k < kTaps; ++k)
      if (k < taps) {
        sum = __fmaf_rn(w[i][k], z[i][k], sum);
        if (k + 1 == taps && in.window != nullptr) in.window[t * in.qkv.cols + c] = z[i][k];
      }
    v[i] = silu_c(sum);
    square = __fmaf_rn(v[i], v[i], square);
  }
  if (group >= 2 * key_heads) {
#pragma unroll
    for (unsigned i = 0; i < kSteps; ++i) {
      const unsigned j = i * kWarp + lane;
      if (j < dim && first + j < in.qkv.cols) in.conv.data[t * in.conv.stride + first + j] = v[i];
    }
    return;
  }
  const bool query = group < key_heads;
  const float inverse = inverse_root<false>(warp_tree(square), dim, in.eps), scale = query ? in.scale : 1.0F;
  float* out = query ? in.q.data + t * in.q.stride + first
                     : in.k.data + t * in.k.stride + (first - std::size_t{key_heads} * dim);
#pragma unroll
  for (unsigned i = 0; i < kSteps; ++i) {
    const unsigned j = i * kWarp + lane;
    if (j < dim) out[j] = (v[i] * inverse) * scale;
  }
}

struct ResultArgs {
  DeviceGdnResult r;
  unsigned heads, key_copies;  // warps per row: of heads, of the log of keys
};

__device__ void copy_part(const ConstDeviceRows& from, float* to, std::size_t t, unsigned part, unsigned lane) {
#pragma unroll
  for (unsigned i = 0; i < kCopied / kWarp; ++i) {
    const std::size_t c = std::size_t{part} * kCopied + i * kWarp + lane;
    if (c < from.cols) to[t * from.cols + c] = from.data[t * from.stride + c];
  }
}

template <unsigned kSteps>
__global__ void __launch_bounds__(kWarps* kWarp) result_kernel(const __grid_constant__ ResultArgs args) {
  begin_kernel();
  const DeviceGdnResult& r = args.r;
  const unsigned lane = threadIdx.x % kWarp, unit = blockIdx.x * kWarps + threadIdx.x / kWarp;
  const std::size_t t = blockIdx.y;
  if (unit >= args.heads + args.key_copies) {
    if (r.log_decay != nullptr) copy_part(r.decay, r.log_decay, t, unit - args.heads - args.key_copies, lane);
    return;
  }
  if (unit >= args.heads) return copy_part(r.k, r.log_k, t, unit - args.heads, lane);
  const auto dim = static_cast<unsigned>(r.dim);
  const std::size_t first = std::size_t{unit} * dim;
  float* o = r.o.data + t * r.o.stride + first;
  const float* z = r.z.data + t * r.z.stride + first;
  float v[kSteps], norm[kSteps], gate[kSteps], square = 0.0F;
#pragma unroll
  for (unsigned i = 0; i < kSteps; ++i) {
    const unsigned j = i * kWarp + lane;
    if (j >= dim) continue;
    v[i] = o[j];
    norm[i] = r.norm[j];
    gate[i] = z[j];
  }
#pragma unroll
  for (unsigned i = 0; i < kSteps; ++i) {
    const unsigned j = i * kWarp + lane;
    if (j >= dim) continue;
    gate[i] = sigmoid_c(gate[i]);
    square = __fmaf_rn(v[i], v[i], square);
  }
  const float inverse = inverse_root<true>(warp_tree(square), dim, r.eps);
#pragma unroll
  for (unsigned i = 0; i < kSteps; ++i) {
    const unsigned j = i * kWarp + lane;
    if (j >= dim) continue;
    v[i] = ((v[i] * inverse) * norm[i]) * gate[i];
    o[j] = v[i];
  }
  if (r.q_codes == nullptr) return;
#pragma unroll
  for (unsigned i = 0; i < kSteps; ++i) {  // blocks of 32
    if (i * kWarp >= dim) break;
    float amax = fabsf(v[i]);
#pragma unroll
    for (unsigned step = 16; step > 0; step /= 2) amax = fmaxf(amax, __shfl_xor_sync(kAllLanes, amax, step));
    const BlockScale scale = block_scale(amax);
    const int code = __float2int_rn(v[i] * scale.inverse);
    int sum = code;
#pragma unroll
    for (unsigned step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    const std::size_t block = (t * r.o.cols + first) / kWarp + i;
    r.q_codes[kWarp * block + lane] = static_cast<std::int8_t>(code);
    if (lane == 0) r.q_scales[block] = scale.d;
    if (lane % 16 == 0) r.q_sums[2 * block + lane / 16] = sum;
    if (!is_finite(v[i])) atomicMin(r.bad, static_cast<std::int32_t>(t));
  }
}

}  // namespace

void gdn_input(const DeviceGdnInput& in, DeviceStream stream) {
  const std::size_t w = in.qkv.rows, keys = in.key_heads * in.dim;
  LAUNCH_CHECK(in.dim > 0 && in.dim <= kMaxEdgeDim && in.taps.rows >= 1 && in.taps.rows <= kMaxEdgeTaps &&
                   in.history.rows + 1 == in.taps.rows && w <= 65535,
               in.dim, in.taps.rows, in.history.rows, w);
  LAUNCH_CHECK(in.qkv.cols == in.taps.cols && in.conv.cols == in.qkv.cols && in.conv.rows == w && in.q.cols == keys &&
                   in.k.cols == keys && in.q.rows == w && in.k.rows == w && 2 * keys <= in.qkv.cols &&
                   in.alpha.rows == w && in.beta.rows == w && in.beta.cols == in.alpha.cols &&
                   (in.history.rows == 0 || in.history.cols == in.qkv.cols),
               in.qkv.cols, in.taps.cols, in.conv.cols, in.q.cols, in.k.cols, in.alpha.cols, in.beta.cols);
  if (w == 0) return;
  const InputArgs args{in, divide_up(in.qkv.cols, in.dim)};
  const dim3 grid(divide_up(args.groups + divide_up(in.alpha.cols, kWarp), kWarps), static_cast<unsigned>(w));
  if (in.dim <= 4 * kWarp && in.taps.rows <= 4)
    launch_kernel(input_kernel<4, 4>, grid, kWarps * kWarp, 0, stream, args);
  else
    launch_kernel(input_kernel<kMaxEdgeDim / kWarp, kMaxEdgeTaps>, grid, kWarps * kWarp, 0, stream, args);
}

void gdn_result(const DeviceGdnResult& r, DeviceStream stream) {
  const std::size_t w = r.o.rows;
  LAUNCH_CHECK(r.dim > 0 && r.dim <= kMaxEdgeDim && r.o.cols % r.dim == 0 && r.z.cols == r.o.cols && r.z.rows == w &&
                   (r.q_codes == nullptr || r.dim % kWarp == 0) && w <= 65535,
               r.dim, r.o.cols, r.z.cols, w, r.z.rows);
  LAUNCH_CHECK((r.log_k == nullptr || r.k.rows == w) && (r.log_decay == nullptr || r.decay.rows == w), w, r.k.rows,
               r.decay.rows);
  if (w == 0) return;
  const ResultArgs args{r, static_cast<unsigned>(r.o.cols / r.dim),
                        r.log_k == nullptr ? 0 : divide_up(r.k.cols, kCopied)};
  const unsigned decay_copies = r.log_decay == nullptr ? 0 : divide_up(r.decay.cols, kCopied);
  const dim3 grid(divide_up(args.heads + args.key_copies + decay_copies, kWarps), static_cast<unsigned>(w));
  if (r.dim <= 4 * kWarp)
    launch_kernel(result_kernel<4>, grid, kWarps * kWarp, 0, stream, args);
  else
    launch_kernel(result_kernel<kMaxEdgeDim / kWarp>, grid, kWarps * kWarp, 0, stream, args);
}

}  // namespace tandem::gpu
