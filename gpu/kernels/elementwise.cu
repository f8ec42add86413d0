#include "gpu/kernels/elementwise.h"

#include "gpu/kernels/elementwise.cuh"
#include "gpu/kernels/gdn_gate.cuh"
#include "runtime/exact_math.h"

namespace tandem::gpu {

namespace {

// The bodies of launch_columns: pointers and strides of the arguments, by value.
struct LowBody {
  DeviceRows lo;
  float divisor;
  __device__ void operator()(std::size_t r, unsigned j) const {
    float& v = lo.data[r * lo.stride + j];
    v = silu_c(v / divisor);
  }
};

struct MixBody {
  ConstDeviceRows normed, gate;
  unsigned streams, d;
  DeviceRows mixed;
  __device__ void operator()(std::size_t r, unsigned j) const {
    const float* n = normed.data + r * normed.stride + j;
    const float* g = gate.data + r * gate.stride + j;
    float sum = 0.0F;
#pragma unroll 4
    for (unsigned s = 0; s < streams; ++s)
      sum = __fmaf_rn(sigmoid_c(g[std::size_t{s} * d]), n[std::size_t{s} * d], sum);
    mixed.data[r * mixed.stride + j] = sum / static_cast<float>(streams);
  }
};

struct WriteBody {
  DeviceRows x;
  ConstDeviceRows y, inject;
  unsigned streams, d;
  __device__ void operator()(std::size_t r, unsigned j) const {
    const float weight = 2.0F * sigmoid_c(inject.data[r * inject.stride + j / d] / static_cast<float>(streams));
    float& v = x.data[r * x.stride + j];
    v = __fmaf_rn(weight, y.data[r * y.stride + j % d], v);
  }
};

struct GatesBody {
  DeviceRows alpha, beta;
  const float* dt_bias;
  const float* a;
  __device__ void operator()(std::size_t r, unsigned h) const {
    float& decay = alpha.data[r * alpha.stride + h];
    float& b = beta.data[r * beta.stride + h];
    decay = decay_gate(decay, dt_bias[h], a[h]);
    b = sigmoid_c(b);
  }
};

struct CombineArgs {
  const std::int32_t* expert;
  const float* weight;
  unsigned used;
  ConstDeviceRows y, shared_logit, shared;
  DeviceRows out;
  CrewRows crew;
};

constexpr unsigned kCombineAtOnce =
    10;  // values on their way together: reading one from the crew takes over a microsecond

// A thread per column; layer y of the grid is a row.
template <bool kCrew>
__global__ void __launch_bounds__(kColumnThreads) combine_kernel(const __grid_constant__ CombineArgs a) {
  begin_kernel();
  const std::size_t r = blockIdx.y;
  const unsigned j = blockIdx.x * kColumnThreads + threadIdx.x;
  if (j >= a.out.cols) return;
  const float shared_logit = a.shared_logit.data[r * a.shared_logit.stride];
  const float shared = a.shared.data[r * a.shared.stride + j];
  float sum = 0.0F;
  for (unsigned first = 0; first < a.used; first += kCombineAtOnce) {
    // In two steps, where to read and then all that is read: no load waits for one beside it.
    const std::size_t pair = r * a.used + first;
    const unsigned count = min(kCombineAtOnce, a.used - first);
    bool use[kCombineAtOnce], crew[kCombineAtOnce];
    float weight[kCombineAtOnce], value[kCombineAtOnce];
#pragma unroll
    for (unsigned i = 0; i < kCombineAtOnce; ++i) {
      use[i] = i < count && a.expert[pair + i] >= 0;
      crew[i] = kCrew && i < count && a.crew.miss[pair + i] >= 0;
      weight[i] = i < count ? a.weight[pair + i] : 0.0F;
    }
#pragma unroll
    for (unsigned i = 0; i < kCombineAtOnce; ++i) {
      if (!use[i]) continue;
      if (crew[i])
        value[i] = *static_cast<const volatile float*>(a.crew.y + (pair + i) * a.out.cols + j);
      else
        value[i] = a.y.data[(pair + i) * a.y.stride + j];
    }
#pragma unroll
    for (unsigned i = 0; i < kCombineAtOnce; ++i)
      if (use[i]) sum = __fmaf_rn(weight[i], value[i], sum);
  }
  a.out.data[r * a.out.stride + j] = __fmaf_rn(sigmoid_c(shared_logit), shared, sum);
}

struct Add2Body {
  DeviceRows x;
  ConstDeviceRows a, b;
  __device__ void operator()(std::size_t r, unsigned j) const {
    float& v = x.data[r * x.stride + j];
    v = (v + a.data[r * a.stride + j]) + b.data[r * b.stride + j];
  }
};

template <bool kAdd>
struct StreamsBody {
  ConstDeviceRows a;
  DeviceRows x;
  unsigned d;
  __device__ void operator()(std::size_t r, unsigned j) const {
    const float v = a.data[r * a.stride + j % d];
    float& to = x.data[r * x.stride + j];
    to = kAdd ? to + v : v;
  }
};

struct PairBody {
  ConstDeviceRows a, h;
  unsigned streams, d;
  DeviceRows out;
  __device__ void operator()(std::size_t i, unsigned j) const {
    const std::size_t r = i / streams, s = i % streams;
    out.data[i * out.stride + j] = j < d ? a.data[r * a.stride + j] : h.data[r * h.stride + s * d + j - d];
  }
};

struct PoolBody {
  ConstDeviceRows x;
  unsigned ratio;
  DeviceRows y;
  __device__ void operator()(std::size_t b, unsigned c) const {
    const float* in = x.data + b * ratio * x.stride + c;
    float sum = in[0];
    for (unsigned j = 1; j < ratio; ++j) sum = sum + in[j * x.stride];
    y.data[b * y.stride + c] = sum / static_cast<float>(ratio);
  }
};

unsigned width(std::size_t n) {
  return static_cast<unsigned>(n);
}

}  // namespace

void hc_low(DeviceRows lo, int streams, DeviceStream stream) {
  launch_columns(lo.rows, lo.cols, LowBody{lo, static_cast<float>(streams)}, stream);
}

void hc_mix(ConstDeviceRows normed, ConstDeviceRows gate, int streams, DeviceRows mixed, DeviceStream stream) {
  LAUNCH_CHECK(normed.cols == mixed.cols * static_cast<std::size_t>(streams) && gate.cols == normed.cols, normed.cols,
               gate.cols, mixed.cols);
  launch_columns(mixed.rows, mixed.cols,
                 MixBody{normed, gate, static_cast<unsigned>(streams), width(mixed.cols), mixed}, stream);
}

void hc_write(DeviceRows x, ConstDeviceRows y, ConstDeviceRows inject, int streams, DeviceStream stream) {
  LAUNCH_CHECK(x.cols == y.cols * static_cast<std::size_t>(streams) && inject.cols == static_cast<std::size_t>(streams),
               x.cols, y.cols, inject.cols);
  launch_columns(x.rows, x.cols, WriteBody{x, y, inject, static_cast<unsigned>(streams), width(y.cols)}, stream);
}

void gdn_gates(DeviceRows alpha, DeviceRows beta, const float* dt_bias, const float* a, DeviceStream stream) {
  LAUNCH_CHECK(alpha.rows == beta.rows && alpha.cols == beta.cols, alpha.rows, alpha.cols, beta.rows, beta.cols);
  launch_columns(alpha.rows, alpha.cols, GatesBody{alpha, beta, dt_bias, a}, stream);
}

void combine(const std::int32_t* expert, const float* weight, std::size_t used, ConstDeviceRows y,
             ConstDeviceRows shared_logit, ConstDeviceRows shared, DeviceRows out, DeviceStream stream,
             const CrewRows& crew) {
  LAUNCH_CHECK(y.rows == out.rows * used && y.cols == out.cols && shared.cols == out.cols, y.rows, used, out.rows,
               y.cols, out.cols);
  if (out.rows == 0 || out.cols == 0) return;
  LAUNCH_CHECK(out.rows <= 65535, out.rows);
  const dim3 grid(width((out.cols + kColumnThreads - 1) / kColumnThreads), width(out.rows));
  const CombineArgs args{expert, weight, width(used), y, shared_logit, shared, out, crew};
  launch_kernel(crew.miss != nullptr ? combine_kernel<true> : combine_kernel<false>, grid, kColumnThreads, 0, stream,
                args);
}

void add2(DeviceRows x, ConstDeviceRows a, ConstDeviceRows b, DeviceStream stream) {
  LAUNCH_CHECK(a.cols == x.cols && b.cols == x.cols, x.cols, a.cols, b.cols);
  launch_columns(x.rows, x.cols, Add2Body{x, a, b}, stream);
}

void tile_streams(ConstDeviceRows a, int streams, DeviceRows x, DeviceStream stream) {
  LAUNCH_CHECK(x.cols == a.cols * static_cast<std::size_t>(streams), x.cols, a.cols);
  launch_columns(x.rows, x.cols, StreamsBody<false>{a, x, width(a.cols)}, stream);
}

void add_streams(DeviceRows x, ConstDeviceRows a, int streams, DeviceStream stream) {
  LAUNCH_CHECK(x.cols == a.cols * static_cast<std::size_t>(streams), x.cols, a.cols);
  launch_columns(x.rows, x.cols, StreamsBody<true>{a, x, width(a.cols)}, stream);
}

void pair_streams(ConstDeviceRows a, ConstDeviceRows h, int streams, DeviceRows out, DeviceStream stream) {
  const auto count = static_cast<std::size_t>(streams);
  LAUNCH_CHECK(h.cols == a.cols * count && out.cols == 2 * a.cols && out.rows == a.rows * count, a.rows, a.cols, h.cols,
               out.rows, out.cols);
  launch_columns(out.rows, out.cols, PairBody{a, h, static_cast<unsigned>(streams), width(a.cols), out}, stream);
}

void mean_pool(ConstDeviceRows x, std::size_t ratio, DeviceRows y, DeviceStream stream) {
  LAUNCH_CHECK(x.rows == y.rows * ratio && x.cols == y.cols, x.rows, ratio, y.rows, x.cols, y.cols);
  launch_columns(y.rows, y.cols, PoolBody{x, width(ratio), y}, stream);
}

}  // namespace tandem::gpu
