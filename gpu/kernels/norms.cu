#include "gpu/kernels/norms.h"

#include "gpu/cuda_check.h"
#include "gpu/kernels/launch.cuh"
#include "gpu/kernels/launch_check.h"
#include "gpu/kernels/reduce.cuh"

namespace tandem::gpu {

namespace {

// What becomes of value x at column j of row r (column i of its group), given 1 / sqrt(...) of the group. `operand` is
// read before that is known, so that the load does not wait for it.
struct RmsFinish {
  const float* gamma;
  static constexpr bool kMean = true;
  struct Operand {
    float gamma;
  };
  __device__ Operand operand(std::size_t, std::size_t j, unsigned) const { return {gamma[j]}; }
  __device__ float operator()(float x, float inverse, Operand o) const { return (x * inverse) * o.gamma; }
};
struct L2Finish {
  float scale;
  static constexpr bool kMean = false;
  struct Operand {};
  __device__ Operand operand(std::size_t, std::size_t, unsigned) const { return {}; }
  __device__ float operator()(float x, float inverse, Operand) const { return (x * inverse) * scale; }
};
struct GdnFinish {
  const float* norm;
  const float* z;
  std::size_t z_stride;
  static constexpr bool kMean = true;
  struct Operand {
    float norm, gate;
  };
  __device__ Operand operand(std::size_t r, std::size_t j, unsigned i) const {
    return {norm[i], sigmoid_c(z[r * z_stride + j])};
  }
  __device__ float operator()(float x, float inverse, Operand o) const { return ((x * inverse) * o.norm) * o.gate; }
};

// The lane's values of one segment, and what finishes them.
template <typename Finish>
struct LaneSegment {
  float v[kSegmentSteps];
  typename Finish::Operand o[kSegmentSteps];
  unsigned first, n;  // element k is first + k * 32

  __device__ LaneSegment(const float* in, unsigned segment, unsigned n_, const Finish& finish, std::size_t r,
                         std::size_t base)
      : first(segment * kSegment + threadIdx.x % kWarp), n(n_) {
#pragma unroll
    for (unsigned k = 0; k < kSegmentSteps; ++k)
      if (first + k * kLanes < n) v[k] = in[first + k * kLanes];
#pragma unroll
    for (unsigned k = 0; k < kSegmentSteps; ++k)
      if (first + k * kLanes < n) o[k] = finish.operand(r, base + first + k * kLanes, first + k * kLanes);
  }
  __device__ float square() const {
    float acc = 0.0F;
#pragma unroll
    for (unsigned k = 0; k < kSegmentSteps; ++k)
      if (first + k * kLanes < n) acc = __fmaf_rn(v[k], v[k], acc);
    return acc;
  }
  __device__ void write(float* out, float inverse, const Finish& finish) const {
#pragma unroll
    for (unsigned k = 0; k < kSegmentSteps; ++k)
      if (first + k * kLanes < n) out[first + k * kLanes] = finish(v[k], inverse, o[k]);
  }
};

// A block per group, a warp per segment or per two.
template <typename Finish, unsigned kRounds>
__global__ void norm_block(const float* x, std::size_t x_stride, unsigned n, float eps, Finish finish, float* y,
                           std::size_t y_stride) {
  begin_kernel();
  __shared__ float lanes[kMaxSegments * kWarp];
  const std::size_t r = blockIdx.y, base = std::size_t{blockIdx.x} * n;
  const float* in = x + r * x_stride + base;
  float* out = y + r * y_stride + base;
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  const unsigned segments = (n + kSegment - 1) / kSegment;
  if constexpr (kRounds == 1) {
    const LaneSegment<Finish> own(in, warp, n, finish, r, base);
    lanes[warp * kWarp + lane] = own.square();
    __syncthreads();
    const float sum = warp_tree(strided_tree(lanes + lane, kWarp, segments));
    own.write(out, inverse_root<Finish::kMean>(sum, n, eps), finish);
  } else {
    const LaneSegment<Finish> own(in, warp, n, finish, r, base), more(in, warp + warps, n, finish, r, base);
    lanes[warp * kWarp + lane] = own.square();
    if (warp + warps < segments) lanes[(warp + warps) * kWarp + lane] = more.square();
    __syncthreads();
    const float sum = warp_tree(strided_tree(lanes + lane, kWarp, segments));
    const float inverse = inverse_root<Finish::kMean>(sum, n, eps);
    own.write(out, inverse, finish);
    more.write(out, inverse, finish);
  }
}

constexpr unsigned kGroupsPerBlock = 4;

// Groups of at most one segment: a warp each.
template <typename Finish>
__global__ void norm_warps(const float* x, std::size_t x_stride, unsigned groups, unsigned n, float eps, Finish finish,
                           float* y, std::size_t y_stride) {
  begin_kernel();
  const unsigned group = blockIdx.x * kGroupsPerBlock + threadIdx.x / kWarp;
  if (group >= groups) return;
  const std::size_t r = blockIdx.y, base = std::size_t{group} * n;
  const LaneSegment<Finish> own(x + r * x_stride + base, 0, n, finish, r, base);
  own.write(y + r * y_stride + base, inverse_root<Finish::kMean>(warp_tree(own.square()), n, eps), finish);
}

template <typename Finish>
void launch_norm(ConstDeviceRows x, std::size_t n, float eps, const Finish& finish, DeviceRows y, DeviceStream stream) {
  LAUNCH_CHECK(n > 0 && n <= kMaxSegments * kSegment && x.cols % n == 0 && y.cols == x.cols && y.rows == x.rows, n,
               x.rows, x.cols, y.rows, y.cols);
  if (x.rows == 0) return;
  const auto groups = static_cast<unsigned>(x.cols / n), rows = static_cast<unsigned>(x.rows);
  const auto size = static_cast<unsigned>(n);
  if (n > kSegment * 32)
    launch_kernel(norm_block<Finish, 2>, dim3(groups, rows), row_threads(n), 0, stream, x.data, x.stride, size, eps,
                  finish, y.data, y.stride);
  else if (n > kSegment)
    launch_kernel(norm_block<Finish, 1>, dim3(groups, rows), row_threads(n), 0, stream, x.data, x.stride, size, eps,
                  finish, y.data, y.stride);
  else
    launch_kernel(norm_warps<Finish>, dim3((groups + kGroupsPerBlock - 1) / kGroupsPerBlock, rows),
                  kGroupsPerBlock * kWarp, 0, stream, x.data, x.stride, groups, size, eps, finish, y.data, y.stride);
}

// A warp per head. The normed values lie in shared memory before the rotation, whose pairs are `half` apart.
__global__ void norm_rope_warps(const float* x, std::size_t x_stride, unsigned heads, unsigned n, unsigned head_stride,
                                const float* gamma, float eps, DeviceRope rope, float* y, std::size_t y_stride) {
  begin_kernel();
  __shared__ float normed[kGroupsPerBlock][kSegment];
  const unsigned warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const unsigned head = blockIdx.x * kGroupsPerBlock + warp;
  if (head >= heads) return;
  const std::size_t r = blockIdx.y;
  const float* in = x + r * x_stride + std::size_t{head} * head_stride;
  float* out = y + r * y_stride + std::size_t{head} * n;
  const auto half = static_cast<unsigned>(rope.half);
  const std::size_t angle = (static_cast<std::size_t>(rope.first == nullptr ? 0 : *rope.first) + r) * half;
  const LaneSegment<RmsFinish> own(in, 0, n, RmsFinish{gamma}, 0, 0);
  // The angles of this lane's rotated values, read before they are needed.
  float cos[kSegmentSteps], sin[kSegmentSteps];
#pragma unroll
  for (unsigned k = 0; k < kSegmentSteps; ++k) {
    const unsigned i = k * kLanes + lane, pair = i < half ? i : i - half;
    if (i < 2 * half) {
      cos[k] = rope.cos[angle + pair];
      sin[k] = rope.sin[angle + pair];
    }
  }
  own.write(normed[warp], inverse_root<true>(warp_tree(own.square()), n, eps), RmsFinish{gamma});
  __syncwarp();
#pragma unroll
  for (unsigned k = 0; k < kSegmentSteps; ++k) {
    const unsigned i = k * kLanes + lane;
    if (i < n) out[i] = rotated(normed[warp], i, half, cos[k], sin[k]);
  }
}

}  // namespace

void rms_norm(ConstDeviceRows x, std::size_t groups, const float* gamma, float eps, DeviceRows y, DeviceStream stream) {
  LAUNCH_CHECK(groups > 0 && x.cols % groups == 0, groups, x.cols);
  launch_norm(x, x.cols / groups, eps, RmsFinish{gamma}, y, stream);
}

void l2_norm(ConstDeviceRows x, std::size_t dim, float eps, float scale, DeviceRows y, DeviceStream stream) {
  launch_norm(x, dim, eps, L2Finish{scale}, y, stream);
}

void gdn_output(ConstDeviceRows o, ConstDeviceRows z, const float* norm, std::size_t dim, float eps, DeviceRows r,
                DeviceStream stream) {
  LAUNCH_CHECK(z.rows == o.rows && z.cols == o.cols, z.rows, z.cols, o.rows, o.cols);
  launch_norm(o, dim, eps, GdnFinish{norm, z.data, z.stride}, r, stream);
}

void norm_rope(ConstDeviceRows x, std::size_t heads, std::size_t dim, std::size_t head_stride, const float* gamma,
               float eps, const DeviceRope& rope, DeviceRows y, DeviceStream stream) {
  LAUNCH_CHECK(dim <= kSegment && y.cols == heads * dim && 2 * rope.half <= dim && y.rows == x.rows &&
                   x.cols >= (heads - 1) * head_stride + dim,
               heads, dim, head_stride, rope.half, x.rows, x.cols, y.rows, y.cols);
  if (x.rows == 0) return;
  const dim3 grid(static_cast<unsigned>((heads + kGroupsPerBlock - 1) / kGroupsPerBlock),
                  static_cast<unsigned>(x.rows));
  launch_kernel(norm_rope_warps, grid, kGroupsPerBlock * kWarp, 0, stream, x.data, x.stride,
                static_cast<unsigned>(heads), static_cast<unsigned>(dim), static_cast<unsigned>(head_stride), gamma,
                eps, rope, y.data, y.stride);
}

}  // namespace tandem::gpu
