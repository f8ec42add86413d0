// The product of many rows with a float matrix: see float_matmul.h. A block has 16 rows of x and 32 of W, half a
// segment (128 columns) of which lies in shared memory while the next half is on its way; a warp has 8 rows by 8, a
// lane the columns that are its own by R4. So a value read from memory serves 16 or 32 products, and one from shared
// memory eight. The tree over the segments is a binary counter in local memory, touched once per segment.
#include <cuda_pipeline_primitives.h>

#include "gpu/cuda_check.h"
#include "gpu/kernels/float_matmul.h"
#include "gpu/kernels/float_types.cuh"
#include "gpu/kernels/launch.cuh"
#include "gpu/kernels/launch_check.h"
#include "gpu/kernels/reduce.cuh"

namespace tandem::gpu {

namespace {

constexpr unsigned kBlockRows = 16, kBlockOuts = 32, kTile = 8;  // of x, of W; of a warp
constexpr unsigned kThreads = 256, kOutWarps = kBlockOuts / kTile;
constexpr unsigned kSteps = 4, kColumns = kSteps * kLanes;  // of a lane and of a warp at a time: half a segment
constexpr unsigned kLevels = 6;                             // 64 segments
static_assert(kThreads / kWarp == kBlockRows / kTile * kOutWarps && 2 * kColumns == kSegment);

template <typename T>
struct GemmArgs {
  const T* weights;
  const float* x;
  float* y;
  std::size_t x_stride, y_stride;
  unsigned n, cols, rows;
  float scale;
};

template <typename T>
struct Stage {
  float x[kBlockRows][kColumns];
  T w[kBlockOuts][kColumns];
};

// Begins the copy of `count` values from column `first` on of each of kCount rows. REQUIRES whole copies of 16 bytes.
template <unsigned kCount, typename T>
__device__ __forceinline__ void copy_rows(T (&to)[kCount][kColumns], const T* from, std::size_t stride, unsigned row,
                                          unsigned rows, unsigned first, unsigned cols) {
  constexpr unsigned kPiece = 16 / sizeof(T), kPieces = kColumns / kPiece;
#pragma unroll
  for (unsigned at = threadIdx.x; at < kCount * kPieces; at += kThreads) {
    const unsigned r = at / kPieces, c = at % kPieces * kPiece;
    if (first + c < cols)
      __pipeline_memcpy_async(&to[r][c], from + std::size_t{min(row + r, rows - 1)} * stride + first + c, 16);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) gemm_kernel(const __grid_constant__ GemmArgs<T> a) {
  begin_kernel();
  __shared__ alignas(16) Stage<T> stage[2];
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const unsigned first_row = blockIdx.y * kBlockRows, first_out = blockIdx.x * kBlockOuts;
  const unsigned row = warp / kOutWarps * kTile, out = warp % kOutWarps * kTile;  // in the block
  const unsigned halves = (a.cols + kColumns - 1) / kColumns;
  const auto copy = [&](unsigned half) {
    copy_rows(stage[half % 2].x, a.x, a.x_stride, first_row, a.rows, half * kColumns, a.cols);
    copy_rows(stage[half % 2].w, a.weights, a.cols, first_out, a.n, half * kColumns, a.cols);
    __pipeline_commit();
  };
  float acc[kTile][kTile] = {};  // [row][out]
  float waiting[kLevels][kTile * kTile];
  copy(0);
  for (unsigned half = 0; half < halves; ++half) {
    if (half + 1 < halves) {
      copy(half + 1);
      __pipeline_wait_prior(1);
    } else {
      __pipeline_wait_prior(0);
    }
    __syncthreads();
    const Stage<T>& now = stage[half % 2];
    const unsigned left = a.cols - half * kColumns;
#pragma unroll
    for (unsigned k = 0; k < kSteps; ++k) {
      const unsigned c = k * kLanes + lane;
      if (c < left) {
        float x[kTile];
#pragma unroll
        for (unsigned r = 0; r < kTile; ++r) x[r] = now.x[row + r][c];
#pragma unroll
        for (unsigned o = 0; o < kTile; ++o) {
          const float w = widen(now.w[out + o][c]);
#pragma unroll
          for (unsigned r = 0; r < kTile; ++r) acc[r][o] = __fmaf_rn(w, x[r], acc[r][o]);
        }
      }
    }
    __syncthreads();
    const bool last = half + 1 == halves;
    if (half % 2 == 0 && !last) continue;
    const unsigned s = half / 2;
    unsigned level = 0;
    for (; last ? (s >> level) != 0 : (s >> level & 1U) != 0; ++level) {
      if ((s >> level & 1U) == 0) {  // the partner is padding
#pragma unroll
        for (unsigned i = 0; i < kTile * kTile; ++i) acc[i / kTile][i % kTile] = acc[i / kTile][i % kTile] + 0.0F;
        continue;
      }
#pragma unroll
      for (unsigned i = 0; i < kTile * kTile; ++i)
        acc[i / kTile][i % kTile] = waiting[level][i] + acc[i / kTile][i % kTile];
    }
    if (last) break;
#pragma unroll
    for (unsigned i = 0; i < kTile * kTile; ++i) {
      waiting[level][i] = acc[i / kTile][i % kTile];
      acc[i / kTile][i % kTile] = 0.0F;
    }
  }
#pragma unroll
  for (unsigned r = 0; r < kTile; ++r) {
    const float dot = warp_trees<kTile>(acc[r]);
    const unsigned y_row = first_row + row + r, o = first_out + out + lane_value<kTile>(lane);
    if (lane < kTile && y_row < a.rows && o < a.n) a.y[y_row * a.y_stride + o] = dot * a.scale;
  }
}

template <typename T>
bool aligned(const FloatMatmul& product, ConstDeviceRows x) {
  constexpr std::size_t kPiece = 16 / sizeof(T);
  return x.cols % kPiece == 0 && x.cols % 4 == 0 && x.stride % 4 == 0 &&
         reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 &&
         reinterpret_cast<std::uintptr_t>(product.weights) % 16 == 0;
}

}  // namespace

bool float_gemm(FloatType type, const FloatMatmul& product, ConstDeviceRows x, DeviceStream stream) {
  if (x.rows < kFloatGemmRows || product.n < kBlockOuts / 2) return false;
  LAUNCH_CHECK(
      x.cols > 0 && x.cols <= kMaxSegments * kSegment && product.y.cols == product.n && product.y.rows == x.rows,
      product.n, x.rows, x.cols, product.y.rows, product.y.cols);
  bool done = false;
  for_type(type, [&]<typename T>(T) {
    if (!aligned<T>(product, x)) return;
    const GemmArgs<T> args{static_cast<const T*>(product.weights),
                           x.data,
                           product.y.data,
                           x.stride,
                           product.y.stride,
                           static_cast<unsigned>(product.n),
                           static_cast<unsigned>(x.cols),
                           static_cast<unsigned>(x.rows),
                           product.scale};
    const dim3 grid((args.n + kBlockOuts - 1) / kBlockOuts, (args.rows + kBlockRows - 1) / kBlockRows);
    launch_kernel(gemm_kernel<T>, grid, kThreads, 0, stream, args);
    done = true;
  });
  return done;
}

}  // namespace tandem::gpu
