#include "gpu/kernels/history.h"

#include "gpu/kernels/elementwise.cuh"
#include "gpu/kernels/launch.cuh"
#include "runtime/exact_math.h"

namespace tandem::gpu {

namespace {

constexpr unsigned kMaxTaps = 8;

struct ConvBody {
  ConstDeviceRows history, x, weights;
  DeviceRows y;
  unsigned dilation;
  float* window;
  __device__ void operator()(std::size_t t, unsigned c) const {
    float w[kMaxTaps], z[kMaxTaps];
#pragma unroll
    for (unsigned k = 0; k < kMaxTaps; ++k)
      if (k < weights.rows) {
        const std::size_t at = t + std::size_t{k} * dilation;
        z[k] = at < history.rows ? history.data[at * history.stride + c] : x.data[(at - history.rows) * x.stride + c];
        w[k] = weights.data[k * weights.stride + c];
      }
    if (window != nullptr) window[t * x.cols + c] = x.data[t * x.stride + c];
    float sum = 0.0F;
#pragma unroll
    for (unsigned k = 0; k < kMaxTaps; ++k)
      if (k < weights.rows) sum = __fmaf_rn(w[k], z[k], sum);
    y.data[t * y.stride + c] = silu_c(sum);
  }
};

// Column c of the history becomes its last `depth` values followed by the first n of `rows`. Row i is written after row
// i + n was read.
__device__ void shift_column(const DeviceHistory& history, const float* rows, std::size_t stride, unsigned n,
                             unsigned c) {
  if (n == 0) return;
  const auto depth = static_cast<unsigned>(history.depth);
#pragma unroll 4
  for (unsigned i = 0; i < depth; ++i) {
    const unsigned at = i + n;
    history.rows[i * history.width + c] =
        at < depth ? history.rows[at * history.width + c] : rows[(at - depth) * stride + c];
  }
}

struct CommitBody {
  DeviceHistory history;
  ConstDeviceRows x;
  __device__ void operator()(std::size_t, unsigned c) const {
    shift_column(history, x.data, x.stride, static_cast<unsigned>(x.rows), c);
  }
};

constexpr std::size_t kHistories = 64;  // of one launch: their descriptions are its arguments

struct KeepArgs {
  DeviceHistory list[kHistories];
  DeviceCount count;
  unsigned n;
};

__global__ void keep_kernel(const __grid_constant__ KeepArgs args) {
  begin_kernel();
  const DeviceHistory& history = args.list[blockIdx.y];
  const unsigned c = blockIdx.x * kColumnThreads + threadIdx.x;
  const unsigned n = args.count != nullptr ? static_cast<unsigned>(max(*args.count, 0)) : args.n;
  if (c < history.width) shift_column(history, history.window, history.width, n, c);
}

struct LogBody {
  DeviceHistory history;
  std::size_t capacity;
  DeviceCount at;
  ConstDeviceRows x;
  __device__ void operator()(std::size_t r, unsigned c) const {
    const std::size_t to = r + (at != nullptr ? static_cast<std::size_t>(*at) : 0);
    if (to < capacity) history.window[to * history.width + c] = x.data[r * x.stride + c];
  }
};

struct CopyArgs {
  RowCopy copies[kMaxRowCopies];
};

__global__ void copy_kernel(const CopyArgs args) {
  begin_kernel();
  const RowCopy& copy = args.copies[blockIdx.z];
  const unsigned j = blockIdx.x * kColumnThreads + threadIdx.x;
  if (blockIdx.y < copy.from.rows && j < copy.from.cols)
    copy.to.data[blockIdx.y * copy.to.stride + j] = copy.from.data[blockIdx.y * copy.from.stride + j];
}

}  // namespace

void causal_conv(ConstDeviceRows history, ConstDeviceRows x, ConstDeviceRows weights, std::size_t dilation,
                 DeviceRows y, float* window, DeviceStream stream) {
  LAUNCH_CHECK(weights.rows <= kMaxTaps && history.rows == (weights.rows - 1) * dilation && x.cols == weights.cols &&
                   y.cols == x.cols && y.rows == x.rows && (history.rows == 0 || history.cols == x.cols),
               weights.rows, history.rows, dilation, x.rows, x.cols, y.rows, y.cols);
  launch_columns(x.rows, x.cols, ConvBody{history, x, weights, y, static_cast<unsigned>(dilation), window}, stream);
}

void commit_rows(const DeviceHistory& history, ConstDeviceRows x, DeviceStream stream) {
  LAUNCH_CHECK(history.width == x.cols, history.width, x.cols);
  if (history.depth > 0 && x.rows > 0) launch_columns(1, x.cols, CommitBody{history, x}, stream);
}

void keep_rows(const DeviceHistory* list, std::size_t histories, DeviceCount count, std::size_t n,
               DeviceStream stream) {
  for (std::size_t first = 0; first < histories; first += kHistories) {
    KeepArgs args{};
    args.count = count;
    args.n = static_cast<unsigned>(n);
    const std::size_t some = histories - first < kHistories ? histories - first : kHistories;
    std::size_t width = 0;
    for (std::size_t i = 0; i < some; ++i) {
      args.list[i] = list[first + i];
      width = width < args.list[i].width ? args.list[i].width : width;
    }
    if (width == 0) continue;
    const dim3 grid(static_cast<unsigned>((width + kColumnThreads - 1) / kColumnThreads), static_cast<unsigned>(some));
    launch_kernel(keep_kernel, grid, kColumnThreads, 0, stream, args);
  }
}

void log_rows(const DeviceHistory& history, std::size_t capacity, DeviceCount at, ConstDeviceRows x,
              DeviceStream stream) {
  LAUNCH_CHECK(history.width == x.cols && x.rows <= capacity, history.width, x.cols, x.rows, capacity);
  launch_columns(x.rows, x.cols, LogBody{history, capacity, at, x}, stream);
}

void copy_rows(const RowCopy* copies, std::size_t count, DeviceStream stream) {
  LAUNCH_CHECK(count <= kMaxRowCopies, count);
  CopyArgs args{};
  std::size_t rows = 0, cols = 0;
  for (std::size_t i = 0; i < count; ++i) {
    LAUNCH_CHECK(copies[i].from.cols == copies[i].to.cols && copies[i].to.rows >= copies[i].from.rows, i,
                 copies[i].from.rows, copies[i].from.cols, copies[i].to.rows, copies[i].to.cols);
    args.copies[i] = copies[i];
    rows = rows < copies[i].from.rows ? copies[i].from.rows : rows;
    cols = cols < copies[i].from.cols ? copies[i].from.cols : cols;
  }
  if (rows == 0 || cols == 0) return;
  const dim3 grid(static_cast<unsigned>((cols + kColumnThreads - 1) / kColumnThreads), static_cast<unsigned>(rows),
                  static_cast<unsigned>(count));
  launch_kernel(copy_kernel, grid, kColumnThreads, 0, stream, args);
}

}  // namespace tandem::gpu
