#include "gpu/kernels/gdn_step.h"

#include <cuda_pipeline_primitives.h>

#include <algorithm>
#include <iterator>

#include "gpu/cuda_check.h"
#include "gpu/kernels/gdn_chain.cuh"
#include "gpu/kernels/gdn_gate.cuh"
#include "gpu/kernels/launch.cuh"
#include "gpu/kernels/launch_check.h"
#include "gpu/kernels/quantize.cuh"

namespace tandem::gpu {

namespace {

constexpr unsigned kReplay = 16;  // rows that may be replayed
constexpr unsigned kParts = 3;    // a head's columns of qkv: query, key, value

// kSegments = segments of a column; a thread of the scan has two columns, so that keys are read once for both.
template <unsigned kSegments>
struct Shape {
  static constexpr unsigned kDim = kSegments * kChain, kRow = kSegments * kPitch;
  static constexpr unsigned kScanThreads = kSegments * kDim / 2;
  static constexpr unsigned kThreads = kScanThreads < 128 ? 128 : kScanThreads;
  static constexpr unsigned kWarps = kThreads / kWarp;
};

// Shared memory, in floats from its start: of the rows; history and rows of qkv; its taps; z; the rows to replay.
struct Layout {
  unsigned k, q, v, raw, taps, gate, replay_k, replay_u, end;
};
Layout layout(unsigned dim, unsigned rows, unsigned taps) {
  const unsigned tile = dim / kChain * kPitch;
  Layout l{};
  l.q = l.k + rows * tile;
  l.v = l.q + rows * tile;
  l.raw = l.v + rows * dim;
  l.taps = l.raw + (taps - 1 + rows) * kParts * dim;
  l.gate = l.taps + taps * kParts * dim;
  l.replay_k = l.gate + rows * dim;
  l.replay_u = l.replay_k + kReplay * tile;
  l.end = l.replay_u + kReplay * dim;
  return l;
}

struct StepArgs {
  DeviceGdnStep s;
  Layout at;
  unsigned rows, taps, sharers;  // sharers: value heads of a key head
};

// `count` floats at a time of `rows` rows, 16 bytes each, by all threads of a block; to(row, column) is where a quad
// goes.
template <typename To>
__device__ __forceinline__ void copy_rows_async(const float* from, std::size_t stride, unsigned rows, unsigned count,
                                                To to) {
  for (unsigned i = threadIdx.x; i < rows * (count / 4); i += blockDim.x) {
    const unsigned r = i / (count / 4), c = i % (count / 4) * 4;
    __pipeline_memcpy_async(to(r, c), from + r * stride + c, 4 * sizeof(float));
  }
}
__device__ __forceinline__ void wait_copied() {
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
}

template <unsigned kSegments>
struct Step {
  using S = Shape<kSegments>;
  static constexpr unsigned kDim = S::kDim;

  const StepArgs& args;
  float* const shared;
  float (&decay)[kStepRows];
  float (&beta)[kStepRows];
  float (&replay_decay)[kReplay];
  const unsigned head = blockIdx.x, key_head = blockIdx.x % static_cast<unsigned>(args.s.in.key_heads);
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  // Of the scan.
  const unsigned segment = threadIdx.x % kSegments, column = threadIdx.x / kSegments * 2;
  float s[2][kChain];

  __device__ bool scans() const { return S::kThreads == S::kScanThreads || threadIdx.x < S::kScanThreads; }
  // The first of a part's columns in a row of qkv.
  __device__ std::size_t part_column(unsigned part) const {
    const std::size_t key = std::size_t{key_head} * kDim, keys = args.s.in.key_heads * kDim;
    return part == 0 ? key : part == 1 ? keys + key : 2 * keys + std::size_t{head} * kDim;
  }
  __device__ float2* cell(unsigned i) const {
    return reinterpret_cast<float2*>(args.s.scan.state + (std::size_t{head} * kDim + segment * kChain + i) * kDim +
                                     column);
  }

  __device__ void stage_replay(unsigned count) const {
    const DeviceGdnScan& scan = args.s.scan;
    copy_rows_async(scan.replay_k.data + std::size_t{key_head} * kDim, scan.replay_k.stride, count, kDim,
                    [&](unsigned r, unsigned c) {
                      return shared + args.at.replay_k + r * S::kRow + c / kChain * kPitch + c % kChain;
                    });
    copy_rows_async(scan.replay_u.data + std::size_t{head} * kDim, scan.replay_u.stride, count, kDim,
                    [&](unsigned r, unsigned c) { return shared + args.at.replay_u + r * kDim + c; });
    if (threadIdx.x < count)
      replay_decay[threadIdx.x] = scan.replay_decay.data[threadIdx.x * scan.replay_decay.stride + head];
  }
  // Rows of a head's columns of qkv, or of its taps, to rows of [parts][dim].
  __device__ void stage_parts(const ConstDeviceRows& from, unsigned rows, float* to) const {
    constexpr unsigned kQuads = kDim / 4;
    for (unsigned i = threadIdx.x; i < rows * kParts * kQuads; i += S::kThreads) {
      const unsigned r = i / (kParts * kQuads), part = i / kQuads % kParts, c = i % kQuads * 4;
      __pipeline_memcpy_async(to + 4 * i, from.data + r * from.stride + part_column(part) + c, 4 * sizeof(float));
    }
  }
  __device__ void stage_before() const {
    stage_parts(args.s.in.taps, args.taps, shared + args.at.taps);
    stage_parts(args.s.in.history, args.taps - 1, shared + args.at.raw);
  }
  __device__ void stage_rows() const {
    stage_parts(args.s.in.qkv, args.rows, shared + args.at.raw + (args.taps - 1) * kParts * kDim);
    copy_rows_async(args.s.result.z.data + std::size_t{head} * kDim, args.s.result.z.stride, args.rows, kDim,
                    [&](unsigned r, unsigned c) { return shared + args.at.gate + r * kDim + c; });
  }
  // A row a thread of the last two warps, while the rows are on their way.
  __device__ void gates() const {
    const DeviceGdnInput& in = args.s.in;
    if (lane >= args.rows) return;
    if (warp == S::kWarps - 1)
      decay[lane] = decay_gate(in.alpha.data[lane * in.alpha.stride + head], in.dt_bias[head], in.a[head]);
    else if (warp == S::kWarps - 2)
      beta[lane] = sigmoid_c(in.beta.data[lane * in.beta.stride + head]);
  }
  // A part's columns of row t: convolved, those of queries and keys normed; the part after them is z, gated. By a warp.
  __device__ void convolve(unsigned t, unsigned part) const {
    const DeviceGdnInput& in = args.s.in;
    if (part == kParts) {
      float* z = shared + args.at.gate + t * kDim + lane;
#pragma unroll
      for (unsigned i = 0; i < kSegments; ++i) z[i * kWarp] = sigmoid_c(z[i * kWarp]);
      return;
    }
    const float* raw = shared + args.at.raw + (t * kParts + part) * kDim + lane;
    const float* taps = shared + args.at.taps + part * kDim + lane;
    float* log = nullptr;  // a key head's columns once
    if (in.window != nullptr && (part == 2 || head == key_head))
      log = in.window + t * in.qkv.cols + part_column(part) + lane;
    float v[kSegments], square = 0.0F;
#pragma unroll
    for (unsigned i = 0; i < kSegments; ++i) {
      float sum = 0.0F, z = 0.0F;
#pragma unroll
      for (unsigned k = 0; k < kStepTaps; ++k)
        if (k < args.taps) {
          z = raw[k * kParts * kDim + i * kWarp];
          sum = __fmaf_rn(taps[k * kParts * kDim + i * kWarp], z, sum);
        }
      if (log != nullptr) log[i * kWarp] = z;
      v[i] = silu_c(sum);
      square = __fmaf_rn(v[i], v[i], square);
    }
    if (part == 2) {
#pragma unroll
      for (unsigned i = 0; i < kSegments; ++i) shared[args.at.v + t * kDim + i * kWarp + lane] = v[i];
      return;
    }
    const float inverse = inverse_root<false>(warp_tree(square), kDim, in.eps), scale = part == 0 ? in.scale : 1.0F;
    float* to = shared + (part == 0 ? args.at.q : args.at.k) + t * S::kRow + lane;
#pragma unroll
    for (unsigned i = 0; i < kSegments; ++i) to[i * kPitch] = (v[i] * inverse) * scale;
  }

  // ---- the delta rule, as in gdn_scan.cu
  __device__ void load(const float* row, float (&x)[kChain]) const {
    load_chain(row, segment, x);
  }
  __device__ static float tree(float v) {
    return segment_tree<kSegments>(v);
  }
  __device__ void replay_row(unsigned r) {
    float k[kChain];
    load(shared + args.at.replay_k + r * S::kRow, k);
    const float2 u = *reinterpret_cast<const float2*>(shared + args.at.replay_u + r * kDim + column);
    const float d = replay_decay[r];
#pragma unroll
    for (unsigned i = 0; i < kChain; ++i) {
      s[0][i] = __fmaf_rn(k[i], u.x, d * s[0][i]);
      s[1][i] = __fmaf_rn(k[i], u.y, d * s[1][i]);
    }
  }
  // A row's result takes the place of its v, which this warp alone has read.
  __device__ void write_out(unsigned r, float out0, float out1) const {
    if (segment == 0) *reinterpret_cast<float2*>(shared + args.at.v + r * kDim + column) = make_float2(out0, out1);
  }
  __device__ void scan_rows() {
    const DeviceRows& log = args.s.scan.log_u;
    float q[kChain];
#pragma unroll
    for (unsigned i = 0; i < kChain; ++i) q[i] = 0.0F;
    for (unsigned r = 0; r < args.rows; ++r) {
      float k[kChain];
      load(shared + args.at.k + r * S::kRow, k);
      const float d = decay[r], b = beta[r];
      const float2 v = *reinterpret_cast<const float2*>(shared + args.at.v + r * kDim + column);
      float out[2] = {}, acc[2] = {}, u[2];
#pragma unroll
      for (unsigned i = 0; i < kChain; ++i)
#pragma unroll
        for (unsigned c = 0; c < 2; ++c) {
          out[c] = __fmaf_rn(s[c][i], q[i], out[c]);
          s[c][i] = d * s[c][i];
          acc[c] = __fmaf_rn(s[c][i], k[i], acc[c]);
        }
      u[0] = b * (v.x - tree(acc[0]));
      u[1] = b * (v.y - tree(acc[1]));
      if (r > 0) write_out(r - 1, tree(out[0]), tree(out[1]));
      load(shared + args.at.q + r * S::kRow, q);
#pragma unroll
      for (unsigned i = 0; i < kChain; ++i)
#pragma unroll
        for (unsigned c = 0; c < 2; ++c) s[c][i] = __fmaf_rn(k[i], u[c], s[c][i]);
      if (segment == 0 && log.data != nullptr)
        *reinterpret_cast<float2*>(log.data + r * log.stride + std::size_t{head} * kDim + column) =
            make_float2(u[0], u[1]);
    }
    float out[2] = {};
#pragma unroll
    for (unsigned i = 0; i < kChain; ++i)
#pragma unroll
      for (unsigned c = 0; c < 2; ++c) out[c] = __fmaf_rn(s[c][i], q[i], out[c]);
    write_out(args.rows - 1, tree(out[0]), tree(out[1]));
  }
  __device__ void store() const {
#pragma unroll
    for (unsigned i = 0; i < kChain; ++i) *cell(i) = make_float2(s[0][i], s[1][i]);
  }

  // A segment of row t of the result: normed, gated, quantised; by a warp. Each takes the sum of all squares.
  __device__ void result(unsigned t, unsigned part) const {
    const DeviceGdnResult& r = args.s.result;
    const float* from = shared + args.at.v + t * kDim + lane;
    float square = 0.0F;
#pragma unroll
    for (unsigned i = 0; i < kSegments; ++i) square = __fmaf_rn(from[i * kWarp], from[i * kWarp], square);
    const float inverse = inverse_root<true>(warp_tree(square), kDim, r.eps);
    const unsigned column_in_head = part * kWarp + lane;
    const float gate = shared[args.at.gate + t * kDim + column_in_head];
    const float v = ((from[part * kWarp] * inverse) * r.norm[column_in_head]) * gate;
    const std::size_t first = std::size_t{head} * kDim;
    r.o.data[t * r.o.stride + first + column_in_head] = v;
    if (r.q_codes == nullptr) return;
    quantize_by_warp(v, lane, (t * r.o.cols + first) / kWarp + part, static_cast<std::int32_t>(t),
                     {r.q_codes, r.q_scales, r.q_sums, r.bad});
  }
};

template <unsigned kSegments>
__global__ void __launch_bounds__(Shape<kSegments>::kThreads, 1) step_kernel(const __grid_constant__ StepArgs args) {
  using S = Shape<kSegments>;
  extern __shared__ __align__(16) float shared[];
  __shared__ float decay[kStepRows], beta[kStepRows], replay_decay[kReplay];
  __shared__ bool keeps_keys;
  Step<kSegments> step{args, shared, decay, beta, replay_decay};
  const DeviceGdnStep& s = args.s;

  // Weights, and what the last pass has left: the kernel before this one makes the rows.
#pragma unroll
  for (unsigned i = 0; i < kChain; ++i) {
    const float2 pair = step.scans() ? *step.cell(i) : float2{};
    step.s[0][i] = pair.x, step.s[1][i] = pair.y;
  }
  const unsigned room = static_cast<unsigned>(s.scan.replay_k.rows);
  const unsigned replay =
      s.scan.replay_count == nullptr ? room : min(static_cast<unsigned>(__ldcg(s.scan.replay_count)), room);
  step.stage_before();
  step.stage_replay(replay);
  begin_kernel();

  step.stage_rows();
  step.gates();
  wait_copied();
  // The last of a key head's blocks to have the keys that are replayed may put others in their place. They have been
  // read: no fence. The number is not needed, and nothing waits for it, before the rows have run.
  unsigned before = 0;
  if (threadIdx.x == 0 && s.result.log_k != nullptr) before = atomicInc(s.arrived + step.key_head, args.sharers - 1);
  for (unsigned u = step.warp; u < (kParts + 1) * args.rows; u += S::kWarps)
    step.convolve(u / (kParts + 1), u % (kParts + 1));
  __syncthreads();

  if (step.scans()) {
    for (unsigned r = 0; r < replay; ++r) step.replay_row(r);
    const bool commits = s.scan.log_u.data == nullptr;
    if (replay > 0 && !commits) step.store();
    step.scan_rows();
    if (commits) step.store();
  }
  if (threadIdx.x == 0) keeps_keys = s.result.log_k != nullptr && before == args.sharers - 1;
  __syncthreads();
  for (unsigned u = step.warp; u < kSegments * args.rows; u += S::kWarps) step.result(u / kSegments, u % kSegments);
  if (s.result.log_decay != nullptr && threadIdx.x < args.rows)
    s.result.log_decay[threadIdx.x * gridDim.x + step.head] = decay[threadIdx.x];
  if (!keeps_keys) return;
  for (unsigned i = threadIdx.x; i < args.rows * S::kDim; i += S::kThreads) {
    const unsigned r = i / S::kDim, c = i % S::kDim;
    s.result.log_k[(r * s.in.key_heads + step.key_head) * S::kDim + c] =
        shared[args.at.k + r * S::kRow + c / kChain * kPitch + c % kChain];
  }
}

struct StepKernel {
  void (*kernel)(StepArgs) = nullptr;
  unsigned threads = 0;
};
template <unsigned kSegments>
StepKernel kernel_of() {
  return {step_kernel<kSegments>, Shape<kSegments>::kThreads};
}
StepKernel step_kernel_for(std::size_t dim) {
  if (dim == 4 * kChain) return kernel_of<4>();
  if (dim == 2 * kChain) return kernel_of<2>();
  if (dim == kChain) return kernel_of<1>();
  return {};
}

Layout layout_of(const DeviceGdnStep& step) {
  return layout(static_cast<unsigned>(step.in.dim), static_cast<unsigned>(step.in.qkv.rows),
                static_cast<unsigned>(step.in.taps.rows));
}

bool in_quads(const ConstDeviceRows& x) {
  return x.data == nullptr ||
         (reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && x.cols % 4 == 0 && (x.stride % 4 == 0 || x.rows <= 1));
}

}  // namespace

bool can_step(const DeviceGdnStep& step) {
  if (step_kernel_for(step.in.dim).kernel == nullptr || step.in.qkv.rows == 0 || step.in.qkv.rows > kStepRows ||
      step.in.taps.rows == 0 || step.in.taps.rows > kStepTaps)
    return false;
  const ConstDeviceRows quads[] = {step.in.qkv,        step.in.history,    step.in.taps,      step.result.z,
                                   step.scan.replay_k, step.scan.replay_u, {step.scan.log_u}, {step.scan.state, 1, 4}};
  return std::all_of(std::begin(quads), std::end(quads), in_quads);
}

void gdn_step(const DeviceGdnStep& step, DeviceStream stream) {
  const DeviceGdnInput& in = step.in;
  const std::size_t w = in.qkv.rows, heads = step.scan.value_heads, width = heads * in.dim;
  LAUNCH_CHECK(can_step(step) && in.key_heads > 0 && heads % in.key_heads == 0, w, in.dim, in.taps.rows, in.key_heads,
               heads);
  LAUNCH_CHECK(in.qkv.cols == 2 * in.key_heads * in.dim + width && in.qkv.rows == w && in.taps.cols == in.qkv.cols &&
                   in.history.rows + 1 == in.taps.rows && (in.history.rows == 0 || in.history.cols == in.qkv.cols),
               in.qkv.cols, in.qkv.rows, in.taps.cols, in.history.rows, in.history.cols);
  LAUNCH_CHECK(in.alpha.cols == heads && in.alpha.rows == w && in.beta.cols == heads && in.beta.rows == w,
               in.alpha.cols, in.beta.cols, in.alpha.rows, in.beta.rows);
  LAUNCH_CHECK(step.result.o.cols == width && step.result.o.rows == w && step.result.z.cols == width &&
                   step.result.z.rows == w && step.scan.replay_k.rows <= kReplay,
               step.result.o.cols, step.result.z.cols, step.scan.replay_k.rows);
  const StepKernel kernel = step_kernel_for(in.dim);
  const StepArgs args{step, layout_of(step), static_cast<unsigned>(w), static_cast<unsigned>(in.taps.rows),
                      static_cast<unsigned>(heads / in.key_heads)};
  launch_kernel(kernel.kernel, static_cast<unsigned>(heads), kernel.threads, args.at.end * sizeof(float), stream, args);
}

}  // namespace tandem::gpu
