#include "gpu/kernels/float_matmul.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gpu/cuda_check.h"
#include "gpu/kernels/elementwise.cuh"
#include "gpu/kernels/launch_check.h"
#include "gpu/kernels/reduce.cuh"

namespace tandem::gpu {

namespace {

__device__ float widen(float v) {
  return v;
}
__device__ float widen(__half v) {
  return __half2float(v);
}
__device__ float widen(__nv_bfloat16 v) {
  return __bfloat162float(v);
}

template <typename T>
struct ProductArgs {
  const T* weights;
  unsigned n, cols;
  float scale;
  const float* x;
  std::size_t x_stride;
  unsigned rows;  // of x, at most kRows
  float* y;
  std::size_t y_stride;
};

constexpr unsigned kMaxWarps = 16;

// kRows rows of x times kOut rows of W. Dynamic shared memory: [kOut * kRows][segments][32].
template <typename T, unsigned kRows, unsigned kOut>
__global__ void __launch_bounds__(kMaxWarps* kWarp) product_kernel(const ProductArgs<T> a) {
  extern __shared__ float lanes[];
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  const unsigned segments = (a.cols + kSegment - 1) / kSegment, first_out = blockIdx.x * kOut;
  for (unsigned s = warp; s < segments; s += warps) {
    const unsigned first = s * kSegment + lane;
    T raw[kOut][kSegmentSteps];
#pragma unroll
    for (unsigned o = 0; o < kOut; ++o) {
      const T* row = a.weights + std::size_t{min(first_out + o, a.n - 1)} * a.cols;
#pragma unroll
      for (unsigned k = 0; k < kSegmentSteps; ++k)
        if (first + k * kLanes < a.cols) raw[o][k] = row[first + k * kLanes];
    }
#pragma unroll
    for (unsigned r = 0; r < kRows; ++r) {
      if (r >= a.rows) break;
      const float* x = a.x + r * a.x_stride;
      float v[kSegmentSteps];
#pragma unroll
      for (unsigned k = 0; k < kSegmentSteps; ++k) v[k] = first + k * kLanes < a.cols ? x[first + k * kLanes] : 0.0F;
#pragma unroll
      for (unsigned o = 0; o < kOut; ++o) {
        float acc = 0.0F;
#pragma unroll
        for (unsigned k = 0; k < kSegmentSteps; ++k)
          if (first + k * kLanes < a.cols) acc = __fmaf_rn(widen(raw[o][k]), v[k], acc);
        lanes[((o * kRows + r) * segments + s) * kWarp + lane] = acc;
      }
    }
  }
  __syncthreads();
  for (unsigned i = warp; i < kOut * kRows; i += warps) {
    const unsigned o = i / kRows, r = i % kRows;
    if (r >= a.rows || first_out + o >= a.n) continue;
    const float dot = warp_tree(strided_tree(lanes + i * segments * kWarp + lane, kWarp, segments));
    if (lane == 0) a.y[r * a.y_stride + first_out + o] = dot * a.scale;
  }
}

template <typename T, unsigned kRows, unsigned kOut>
void launch_product(const ProductArgs<T>& args, unsigned segments, DeviceStream stream) {
  const unsigned rounds = (segments + kMaxWarps - 1) / kMaxWarps, warps = (segments + rounds - 1) / rounds;
  const std::size_t shared = std::size_t{kOut * kRows} * segments * kWarp * sizeof(float);
  product_kernel<T, kRows, kOut><<<(args.n + kOut - 1) / kOut, warps * kWarp, shared, stream>>>(args);
  CUDA_CHECK_LAUNCH();
}

// Rows of W that share a reading of x, where there are enough of them to fill the card.
constexpr std::size_t kSharedOut = 4;
constexpr std::size_t kManyRows = 2048;
constexpr std::size_t kSharedBytes = 48 * 1024;

template <typename T>
void product(ProductArgs<T> args, std::size_t rows, DeviceStream stream) {
  const unsigned segments = (args.cols + kSegment - 1) / kSegment;
  const std::size_t fit = kSharedBytes / (segments * kWarp * sizeof(float));  // results that fit, at least 6
  while (rows > 0) {
    const std::size_t most = fit >= 16 ? 16 : fit >= 8 ? 8 : 4;
    const std::size_t group = rows < most ? rows : most;
    args.rows = static_cast<unsigned>(group);
    const bool many = args.n >= kManyRows && group <= 4 && group * kSharedOut <= fit;
    if (group == 1)
      many ? launch_product<T, 1, 4>(args, segments, stream) : launch_product<T, 1, 1>(args, segments, stream);
    else if (group == 2)
      many ? launch_product<T, 2, 4>(args, segments, stream) : launch_product<T, 2, 1>(args, segments, stream);
    else if (group <= 4)
      many&& fit >= 16 ? launch_product<T, 4, 4>(args, segments, stream)
                       : launch_product<T, 4, 1>(args, segments, stream);
    else if (group <= 8)
      launch_product<T, 8, 1>(args, segments, stream);
    else
      launch_product<T, 16, 1>(args, segments, stream);
    args.x += group * args.x_stride;
    args.y += group * args.y_stride;
    rows -= group;
  }
}

template <typename T>
struct RowsBody {
  const T* table;
  std::int32_t rows;
  float scale;
  const std::int32_t* ids;
  DeviceRows out;
  __device__ void operator()(std::size_t r, unsigned j) const {
    const std::int32_t id = min(max(ids[r], 0), rows - 1);
    const float v = widen(table[static_cast<std::size_t>(id) * out.cols + j]);
    out.data[r * out.stride + j] = scale == 1.0F ? v : v * scale;
  }
};

// body(zero of the weight's type)
template <typename Body>
void for_type(FloatType type, Body body) {
  switch (type) {
    case FloatType::kF32:
      return body(float{});
    case FloatType::kF16:
      return body(__half{});
    case FloatType::kBf16:
      return body(__nv_bfloat16{});
  }
}

}  // namespace

void float_matmul(FloatType type, const void* weights, std::size_t n, float scale, ConstDeviceRows x, DeviceRows y,
                  DeviceStream stream) {
  LAUNCH_CHECK(n > 0 && x.cols > 0 && x.cols <= kMaxSegments * kSegment && y.cols == n && y.rows == x.rows, n, x.rows,
               x.cols, y.rows, y.cols);
  for_type(type, [&]<typename T>(T) {
    product(ProductArgs<T>{static_cast<const T*>(weights), static_cast<unsigned>(n), static_cast<unsigned>(x.cols),
                           scale, x.data, x.stride, 0, y.data, y.stride},
            x.rows, stream);
  });
}

void float_rows(FloatType type, const void* table, std::size_t rows, float scale, const std::int32_t* ids,
                DeviceRows out, DeviceStream stream) {
  LAUNCH_CHECK(rows > 0 && rows < (std::size_t{1} << 31), rows);
  for_type(type, [&]<typename T>(T) {
    launch_columns(out.rows, out.cols,
                   RowsBody<T>{static_cast<const T*>(table), static_cast<std::int32_t>(rows), scale, ids, out}, stream);
  });
}

}  // namespace tandem::gpu
