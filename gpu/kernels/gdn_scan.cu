#include "gpu/kernels/gdn_scan.h"

#include "gpu/cuda_check.h"
#include "gpu/kernels/launch_check.h"
#include "gpu/kernels/reduce.cuh"

namespace tandem::gpu {

namespace {

constexpr unsigned kChain = 32;  // key elements of a segment
constexpr unsigned kTile = 16;   // rows whose keys and queries are in shared memory at a time
constexpr unsigned kPitch = 36;  // floats between two segments there: threads of four segments read four banks
constexpr unsigned kThreads = 64;

struct ScanArgs {
  DeviceGdnScan s;
  unsigned dim;
  unsigned replay_rows;
};

// kSegments = segments of a column, padded to a power of two; kWhole: every segment has 32 elements.
template <unsigned kSegments, bool kWhole>
struct Scan {
  static constexpr unsigned kColumns = kThreads / kSegments;
  struct Shared {
    alignas(16) float k[kTile][kSegments * kPitch];
    alignas(16) float q[kTile][kSegments * kPitch];
    float v[kTile][kColumns];
    float decay[kTile], beta[kTile];
  };

  const ScanArgs& args;
  Shared& shared;
  unsigned head, key_head, segment, column, first_column;
  float s[kChain];

  __device__ unsigned dim() const { return kWhole ? kSegments * kChain : args.dim; }
  __device__ bool inside(unsigned i) const { return kWhole || segment * kChain + i < args.dim; }

  // Rows first .. first + count - 1 of x (one key head) into shared memory.
  __device__ void stage(float (&to)[kTile][kSegments * kPitch], const ConstDeviceRows& x, std::size_t first,
                        unsigned count) const {
#pragma unroll 8
    for (unsigned at = threadIdx.x; at < count * dim(); at += kThreads) {
      const unsigned r = at / dim(), i = at % dim();
      to[r][i / kChain * kPitch + i % kChain] = x.data[(first + r) * x.stride + std::size_t{key_head} * dim() + i];
    }
  }
  __device__ void stage_values(const ConstDeviceRows& x, std::size_t first, unsigned count) const {
    for (unsigned at = threadIdx.x; at < count * kColumns; at += kThreads) {
      const unsigned r = at / kColumns, c = at % kColumns;
      if (first_column + c < dim())
        shared.v[r][c] = x.data[(first + r) * x.stride + std::size_t{head} * dim() + first_column + c];
    }
  }
  __device__ void stage_scalar(float (&to)[kTile], const ConstDeviceRows& x, std::size_t first, unsigned count) const {
    if (threadIdx.x < count) to[threadIdx.x] = x.data[(first + threadIdx.x) * x.stride + head];
  }
  __device__ void load(const float (&from)[kSegments * kPitch], float (&x)[kChain]) const {
    const auto* quads = reinterpret_cast<const float4*>(from + segment * kPitch);
#pragma unroll
    for (unsigned i = 0; i < kChain / 4; ++i) {
      const float4 quad = quads[i];
      x[4 * i] = quad.x, x[4 * i + 1] = quad.y, x[4 * i + 2] = quad.z, x[4 * i + 3] = quad.w;
    }
  }
  // The tree over the segments of this thread's column.
  __device__ static float tree(float v) {
#pragma unroll
    for (unsigned stride = 1; stride < kSegments; stride *= 2) v = v + __shfl_xor_sync(kAllLanes, v, stride);
    return v;
  }

  __device__ void replay_row(unsigned r) {
    float k[kChain];
    load(shared.k[r], k);
    const float decay = shared.decay[r], u = shared.v[r][column];
#pragma unroll
    for (unsigned i = 0; i < kChain; ++i)
      if (inside(i)) s[i] = __fmaf_rn(k[i], u, decay * s[i]);
  }

  __device__ void row(unsigned r, std::size_t t) {
    float x[kChain];
    load(shared.k[r], x);
    const float decay = shared.decay[r];
    float acc = 0.0F;
#pragma unroll
    for (unsigned i = 0; i < kChain; ++i)
      if (inside(i)) {
        s[i] = decay * s[i];
        acc = __fmaf_rn(s[i], x[i], acc);
      }
    const float u = shared.beta[r] * (shared.v[r][column] - tree(acc));
#pragma unroll
    for (unsigned i = 0; i < kChain; ++i)
      if (inside(i)) s[i] = __fmaf_rn(x[i], u, s[i]);
    load(shared.q[r], x);
    acc = 0.0F;
#pragma unroll
    for (unsigned i = 0; i < kChain; ++i)
      if (inside(i)) acc = __fmaf_rn(s[i], x[i], acc);
    const float out = tree(acc);
    const std::size_t at = std::size_t{head} * dim() + first_column + column;
    if (segment == 0 && first_column + column < dim()) {
      args.s.out.data[t * args.s.out.stride + at] = out;
      if (args.s.log_u.data != nullptr) args.s.log_u.data[t * args.s.log_u.stride + at] = u;
    }
  }

  __device__ float* cell(unsigned i) const {
    return args.s.state + (std::size_t{head} * dim() + segment * kChain + i) * dim() + first_column + column;
  }
  __device__ void store() const {
    if (first_column + column >= args.dim) return;
#pragma unroll
    for (unsigned i = 0; i < kChain; ++i)
      if (inside(i)) *cell(i) = s[i];
  }
};

template <unsigned kSegments, bool kWhole>
__global__ void __launch_bounds__(kThreads) scan_kernel(const __grid_constant__ ScanArgs args) {
  using Body = Scan<kSegments, kWhole>;
  __shared__ typename Body::Shared shared;
  Body body{args,
            shared,
            blockIdx.y,
            blockIdx.y % static_cast<unsigned>(args.s.key_heads),
            threadIdx.x % kSegments,
            threadIdx.x / kSegments,
            blockIdx.x * Body::kColumns,
            {}};
  const bool live = body.first_column + body.column < body.dim();
#pragma unroll
  for (unsigned i = 0; i < kChain; ++i) body.s[i] = live && body.inside(i) ? *body.cell(i) : 0.0F;

  const unsigned replay =
      args.s.replay_count == nullptr ? args.replay_rows : min(static_cast<unsigned>(*args.s.replay_count), kTile);
  if (replay > 0) {
    body.stage(shared.k, args.s.replay_k, 0, replay);
    body.stage_values(args.s.replay_u, 0, replay);
    body.stage_scalar(shared.decay, args.s.replay_decay, 0, replay);
    __syncthreads();
    for (unsigned r = 0; r < replay; ++r) body.replay_row(r);
    if (args.s.log_u.data != nullptr) body.store();
    __syncthreads();
  }
  const std::size_t rows = args.s.q.rows;
  for (std::size_t first = 0; first < rows; first += kTile) {
    const unsigned count = static_cast<unsigned>(rows - first < kTile ? rows - first : kTile);
    body.stage(shared.k, args.s.k, first, count);
    body.stage(shared.q, args.s.q, first, count);
    body.stage_values(args.s.v, first, count);
    body.stage_scalar(shared.decay, args.s.decay, first, count);
    body.stage_scalar(shared.beta, args.s.beta, first, count);
    __syncthreads();
    for (unsigned r = 0; r < count; ++r) body.row(r, first + r);
    __syncthreads();
  }
  if (args.s.log_u.data == nullptr) body.store();
}

template <unsigned kSegments>
void launch(const ScanArgs& args, DeviceStream stream) {
  constexpr unsigned kColumns = kThreads / kSegments;
  const dim3 grid((args.dim + kColumns - 1) / kColumns, static_cast<unsigned>(args.s.value_heads));
  if (args.dim == kSegments * kChain)
    scan_kernel<kSegments, true><<<grid, kThreads, 0, stream>>>(args);
  else
    scan_kernel<kSegments, false><<<grid, kThreads, 0, stream>>>(args);
  CUDA_CHECK_LAUNCH();
}

}  // namespace

void gdn_scan(const DeviceGdnScan& scan, DeviceStream stream) {
  LAUNCH_CHECK(scan.dim > 0 && scan.dim <= 4 * kChain && scan.replay_k.rows <= kTile && scan.key_heads > 0 &&
                   scan.k.rows == scan.q.rows && scan.v.rows == scan.q.rows,
               scan.dim, scan.replay_k.rows, scan.key_heads, scan.q.rows, scan.k.rows, scan.v.rows);
  const ScanArgs args{scan, static_cast<unsigned>(scan.dim), static_cast<unsigned>(scan.replay_k.rows)};
  if (scan.dim <= kChain)
    launch<1>(args, stream);
  else if (scan.dim <= 2 * kChain)
    launch<2>(args, stream);
  else
    launch<4>(args, stream);
}

}  // namespace tandem::gpu
