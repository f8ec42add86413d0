#include "gpu/kernels/float_matmul.h"

#include "gpu/cuda_check.h"
#include "gpu/kernels/elementwise.cuh"
#include "gpu/kernels/float_types.cuh"
#include "gpu/kernels/launch.cuh"
#include "gpu/kernels/launch_check.h"
#include "gpu/kernels/reduce.cuh"

namespace tandem::gpu {

namespace {

// One or more matrices: layer z of the grid has matrix z.
template <typename T>
struct ProductArgs {
  struct Part {
    const T* weights;
    float* y;
    std::size_t y_stride;
    unsigned n;
    float scale;
  };
  Part part[kMaxFloatMatrices];
  unsigned parts;
  unsigned n, cols;  // of all parts
  const float* x;
  std::size_t x_stride;
  unsigned rows;  // of x
};

constexpr unsigned kMaxWarps = 16;

// A block: kRows rows of x (those of group blockIdx.y) times kOut rows of W. Where there are fewer, the last one is
// computed again and not written. Dynamic shared memory: [kOut * kRows][segments][32].
template <typename T, unsigned kRows, unsigned kOut>
__global__ void __launch_bounds__(kMaxWarps* kWarp) product_kernel(const __grid_constant__ ProductArgs<T> a) {
  extern __shared__ float lanes[];
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  const unsigned segments = (a.cols + kSegment - 1) / kSegment;
  const typename ProductArgs<T>::Part& part = a.part[blockIdx.z];
  const unsigned first_out = blockIdx.x * kOut, first_row = blockIdx.y * kRows;
  // With four rows of W there is no register left to hold them over the wait.
  constexpr bool kWeightsFirst = kOut < 4;
  if (!kWeightsFirst || first_out >= part.n || warp >= segments) begin_kernel();
  if (first_out >= part.n) return;  // there is a taller matrix
  for (unsigned s = warp; s < segments; s += warps) {
    const unsigned first = s * kSegment + lane;
    T raw[kOut][kSegmentSteps];
#pragma unroll
    for (unsigned o = 0; o < kOut; ++o) {
      const T* row = part.weights + std::size_t{min(first_out + o, part.n - 1)} * a.cols;
#pragma unroll
      for (unsigned k = 0; k < kSegmentSteps; ++k)
        if (first + k * kLanes < a.cols) raw[o][k] = row[first + k * kLanes];
    }
    if (kWeightsFirst && s == warp) begin_kernel();  // the first weights are on their way
#pragma unroll
    for (unsigned r = 0; r < kRows; ++r) {
      // With four rows of W in registers, those of x come one by one: together they would cost loads in flight.
      if (kOut == 4 && first_row + r >= a.rows) break;
      const float* x = a.x + min(first_row + r, a.rows - 1) * a.x_stride;
      float v[kSegmentSteps];
#pragma unroll
      for (unsigned k = 0; k < kSegmentSteps; ++k)
        if (first + k * kLanes < a.cols) v[k] = x[first + k * kLanes];
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
    const unsigned out = first_out + i / kRows, row = first_row + i % kRows;
    if (row >= a.rows || out >= part.n) continue;
    const float dot = warp_tree(strided_tree(lanes + i * segments * kWarp + lane, kWarp, segments));
    if (lane == 0) part.y[row * part.y_stride + out] = dot * part.scale;
  }
}

template <typename T, unsigned kRows, unsigned kOut>
void launch_product(const ProductArgs<T>& args, DeviceStream stream) {
  const unsigned segments = (args.cols + kSegment - 1) / kSegment;
  const unsigned rounds = (segments + kMaxWarps - 1) / kMaxWarps, warps = (segments + rounds - 1) / rounds;
  const std::size_t shared = std::size_t{kOut * kRows} * segments * kWarp * sizeof(float);
  unsigned tallest = 0;
  for (unsigned i = 0; i < args.parts; ++i) tallest = tallest < args.part[i].n ? args.part[i].n : tallest;
  const dim3 grid((tallest + kOut - 1) / kOut, (args.rows + kRows - 1) / kRows, args.parts);
  launch_kernel(product_kernel<T, kRows, kOut>, grid, warps * kWarp, shared, stream, args);
}

constexpr std::size_t kSharedBytes = 48 * 1024;
constexpr std::size_t kManyRows = 2048;  // of W: enough for blocks of four
constexpr std::size_t kFullCard = 512;   // blocks that keep a card busy

// Rows of x per block: up to four, so that W is read rarely, but not so many that the card is half empty; W comes from
// the L2 cache when it is read again. Eight would take the registers that keep loads in flight (2.4 times the time).
template <typename T>
void product(const ProductArgs<T>& args, DeviceStream stream) {
  const std::size_t segments = (args.cols + kSegment - 1) / kSegment, rows = args.rows;
  const std::size_t fit = kSharedBytes / (segments * kWarp * sizeof(float));  // results that fit, at least 6
  const auto suits = [&](std::size_t group) {
    return group < 2 * rows && args.n * ((rows + group - 1) / group) >= kFullCard;
  };
  const bool many = args.n >= kManyRows;
  if (suits(4) && many && fit >= 16)
    launch_product<T, 4, 4>(args, stream);
  else if (suits(4) && rows > 4 && fit >= 8)
    launch_product<T, 4, 2>(args, stream);
  else if (suits(4))
    launch_product<T, 4, 1>(args, stream);
  else if (suits(2))
    many&& fit >= 8 ? launch_product<T, 2, 4>(args, stream) : launch_product<T, 2, 1>(args, stream);
  else
    many ? launch_product<T, 1, 4>(args, stream) : launch_product<T, 1, 1>(args, stream);
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

}  // namespace

void float_matmuls(FloatType type, const FloatMatmul* products, std::size_t count, ConstDeviceRows x,
                   DeviceStream stream) {
  LAUNCH_CHECK(count >= 1 && count <= kMaxFloatMatrices, count);
  if (x.rows == 0) return;
  for_type(type, [&]<typename T>(T) {
    ProductArgs<T> args{};
    args.cols = static_cast<unsigned>(x.cols);
    args.x = x.data, args.x_stride = x.stride, args.rows = static_cast<unsigned>(x.rows);
    for (std::size_t i = 0; i < count; ++i) {
      const auto& [weights, n, scale, y] = products[i];
      LAUNCH_CHECK(n > 0 && x.cols > 0 && x.cols <= kMaxSegments * kSegment && y.cols == n && y.rows == x.rows, n,
                   x.rows, x.cols, y.rows, y.cols);
      if (float_gemm(type, products[i], x, stream)) continue;
      args.part[args.parts++] = {static_cast<const T*>(weights), y.data, y.stride, static_cast<unsigned>(n), scale};
      args.n += static_cast<unsigned>(n);
    }
    if (args.parts > 0) product(args, stream);
  });
}

void float_matmul(FloatType type, const void* weights, std::size_t n, float scale, ConstDeviceRows x, DeviceRows y,
                  DeviceStream stream) {
  const FloatMatmul one{weights, n, scale, y};
  float_matmuls(type, &one, 1, x, stream);
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
