// Implements  the first launch of Ops::hc_read: hc_write (where one waits), rms_norm by streams, R2 of the result.
// When        every hyper-connection module, up to 16 rows.
// How         a block per row and stream, a warp per segment of 256 (R4): its 32 lanes hold a block of 32 columns in
//             each of eight registers, which is how R2 wants them; the scales of the eight are computed by a lane each.
// Measured    docs/decisions.md, 2026-11-30.
#include "gpu/cuda_check.h"
#include "gpu/kernels/hc_read.cuh"
#include "gpu/kernels/launch.cuh"
#include "gpu/kernels/launch_check.h"
#include "gpu/kernels/reduce.cuh"

namespace tandem {
namespace {

struct HcNorm {
  DeviceRows x;
  ConstDeviceRows written, logits;
  const float* gamma;
  unsigned n;  // columns of a stream
  float eps;
  DeviceRows normed;
  QuantOut quant;
};

template <bool kWrite>
__global__ void __launch_bounds__(1024) hc_norm_kernel(const HcNorm a) {
  __shared__ float lanes[32 * kWarp];
  const std::size_t row = blockIdx.y, base = std::size_t{blockIdx.x} * a.n;
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, segments = blockDim.x / kWarp;
  const unsigned first = warp * kSegment + lane;
  float* x = a.x.data + row * a.x.stride + base;
  const float* gamma = a.gamma + base;
  float v[kSegmentSteps], scale[kSegmentSteps];
#pragma unroll
  for (unsigned k = 0; k < kSegmentSteps; ++k)
    if (first + k * kLanes < a.n) scale[k] = gamma[first + k * kLanes];
  begin_kernel();
#pragma unroll
  for (unsigned k = 0; k < kSegmentSteps; ++k)
    if (first + k * kLanes < a.n) v[k] = x[first + k * kLanes];
  if constexpr (kWrite) {
    const float* y = a.written.data + row * a.written.stride;
    float add[kSegmentSteps];
#pragma unroll
    for (unsigned k = 0; k < kSegmentSteps; ++k)
      if (first + k * kLanes < a.n) add[k] = y[first + k * kLanes];
    const float logit = a.logits.data[row * a.logits.stride + blockIdx.x];
    const float weight = 2.0F * sigmoid_c(logit / static_cast<float>(kHcStreams));
#pragma unroll
    for (unsigned k = 0; k < kSegmentSteps; ++k)
      if (first + k * kLanes < a.n) {
        v[k] = __fmaf_rn(weight, add[k], v[k]);
        x[first + k * kLanes] = v[k];
      }
  }
  float acc = 0.0F;
#pragma unroll
  for (unsigned k = 0; k < kSegmentSteps; ++k)
    if (first + k * kLanes < a.n) acc = __fmaf_rn(v[k], v[k], acc);
  lanes[warp * kWarp + lane] = acc;
  __syncthreads();
  const float sum = warp_tree(strided_tree(lanes + lane, kWarp, segments));
  const float inverse = 1.0F / __fsqrt_rn(sum / static_cast<float>(a.n) + a.eps);
  float* normed = a.normed.data + row * a.normed.stride + base;
  const std::size_t block = (row * kHcStreams * a.n + base + warp * kSegment) / 32;
  // A step is there for all lanes or for none: n is a multiple of 32.
  float amax[kSegmentSteps];
  bool finite = true;
#pragma unroll
  for (unsigned k = 0; k < kSegmentSteps; ++k) {
    amax[k] = 0.0F;
    if (first + k * kLanes >= a.n) continue;
    v[k] = (v[k] * inverse) * scale[k];
    normed[first + k * kLanes] = v[k];
    finite = finite && is_finite(v[k]);
    amax[k] = warp_max(fabsf(v[k]));
  }
  if (!finite) atomicMin(a.quant.bad, static_cast<std::int32_t>(row));
  float own = amax[0];
#pragma unroll
  for (unsigned k = 1; k < kSegmentSteps; ++k)
    if (lane % kSegmentSteps == k) own = amax[k];
  const BlockScale own_scale = block_scale(own);
  int half_sum = 0;  // lane 2k + h: of half h of block k
#pragma unroll
  for (unsigned k = 0; k < kSegmentSteps; ++k) {
    const float by = __shfl_sync(kAllLanes, own_scale.inverse, k);
    if (first + k * kLanes >= a.n) continue;
    const int q = __float2int_rn(v[k] * by);
    a.quant.q[32 * (block + k) + lane] = static_cast<std::int8_t>(q);
    const HalfSums sums = half_sums(q, lane);
    if (lane / 2 == k) half_sum = lane % 2 == 0 ? sums.low : sums.high;
  }
  const unsigned left = (a.n - warp * static_cast<unsigned>(kSegment)) / kWarp, blocks = min(kSegmentSteps, left);
  if (lane < blocks) a.quant.d[block + lane] = own_scale.d;
  if (lane < 2 * blocks) a.quant.s[2 * block + lane] = half_sum;
}

}  // namespace

void launch_hc_norm(const DeviceHcRead& read, DeviceStream stream) {
  const std::size_t n = read.mixed.cols, segments = (n + kSegment - 1) / kSegment;
  LAUNCH_CHECK(n % 32 == 0 && segments <= 32 && read.x.cols == kHcStreams * n && read.normed.cols == read.x.cols, n,
               read.x.cols, read.normed.cols);
  const auto threads = static_cast<unsigned>(segments * kWarp);
  const HcNorm args{read.x,
                    read.written,
                    read.written_inject,
                    read.gamma,
                    static_cast<unsigned>(n),
                    read.eps,
                    read.normed,
                    quant_out(read.scratch.normed_q)};
  const dim3 grid(static_cast<unsigned>(kHcStreams), static_cast<unsigned>(read.x.rows));
  if (read.written)
    launch_kernel(hc_norm_kernel<true>, grid, threads, 0, stream, args);
  else
    launch_kernel(hc_norm_kernel<false>, grid, threads, 0, stream, args);
}

}  // namespace tandem
