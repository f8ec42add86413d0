#include "gpu/kernels/float_matmul.h"

#include "gpu/cuda_check.h"
#include "gpu/kernels/elementwise.cuh"
#include "gpu/kernels/float_product.cuh"
#include "gpu/kernels/launch_check.h"

namespace tandem::gpu {

namespace {

// A block of the grid: layer z has matrix z, y a group of rows of x, x one of rows of W.
template <typename T, unsigned kRows, unsigned kOut>
__global__ void __launch_bounds__(kProductWarps* kWarp) product_kernel(const __grid_constant__ ProductArgs<T> a) {
  extern __shared__ float lanes[];
  const ProductPart<T>& part = a.part[blockIdx.z];
  const unsigned first_out = blockIdx.x * kOut;
  if (first_out >= part.n) return begin_kernel();  // there is a taller matrix
  product_block<T, kRows, kOut>(a, part, first_out, blockIdx.y * kRows, lanes);
}

template <typename T, unsigned kRows, unsigned kOut>
void launch_product(const ProductArgs<T>& args, DeviceStream stream) {
  unsigned tallest = 0;
  for (unsigned i = 0; i < args.parts; ++i) tallest = tallest < args.part[i].n ? args.part[i].n : tallest;
  const dim3 grid((tallest + kOut - 1) / kOut, (args.rows + kRows - 1) / kRows, args.parts);
  launch_kernel(product_kernel<T, kRows, kOut>, grid, product_warps(args.cols) * kWarp,
                product_shared_bytes(args.cols, kOut * kRows), stream, args);
}

constexpr std::size_t kManyRows = 2048;  // of W: enough for blocks of four
constexpr std::size_t kFullCard = 512;   // blocks that keep a card busy

// Rows of x per block: up to four, so that W is read rarely, but not so many that the card is half empty; W comes from
// the L2 cache when it is read again. Eight would take the registers that keep loads in flight (2.4 times the time).
template <typename T>
void product(const ProductArgs<T>& args, DeviceStream stream) {
  const std::size_t segments = (args.cols + kSegment - 1) / kSegment, rows = args.rows;
  const std::size_t fit = kProductSharedBytes / (segments * kWarp * sizeof(float));  // results that fit, at least 6
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
