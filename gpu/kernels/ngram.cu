#include "gpu/kernels/ngram.h"

#include "gpu/cuda_check.h"
#include "gpu/kernels/launch.cuh"
#include "gpu/kernels/launch_check.h"
#include "gpu/kernels/reduce.cuh"

namespace tandem::gpu {

namespace {

__global__ void gate_kernel(ConstDeviceRows key, ConstDeviceRows query, ConstDeviceRows value, DeviceRows gv) {
  begin_kernel();
  __shared__ float lanes[kMaxSegments * kWarp];
  const std::size_t r = blockIdx.y;
  const auto d = static_cast<unsigned>(value.cols);
  const std::size_t base = std::size_t{blockIdx.x} * d;
  const float root = __fsqrt_rn(static_cast<float>(d));
  const float s = block_dot(key.data + r * key.stride + base, query.data + r * query.stride + base, d, lanes) / root;
  const float least = fabsf(s) < 1e-6F ? 1e-6F : fabsf(s);
  const float magnitude = __fsqrt_rn(least);
  const float gate = sigmoid_c(s > 0.0F ? magnitude : s < 0.0F ? -magnitude : 0.0F);
  for (unsigned j = threadIdx.x; j < d; j += blockDim.x)
    gv.data[r * gv.stride + base + j] = gate * value.data[r * value.stride + j];
}

}  // namespace

void ple_gate(ConstDeviceRows key, ConstDeviceRows query, ConstDeviceRows value, int streams, DeviceRows gv,
              DeviceStream stream) {
  const std::size_t wide = value.cols * static_cast<std::size_t>(streams);
  LAUNCH_CHECK(value.cols > 0 && value.cols <= kMaxSegments * kSegment && key.cols == wide && query.cols == wide &&
                   gv.cols == wide && gv.rows == value.rows,
               value.cols, key.cols, query.cols, gv.cols, value.rows, gv.rows);
  if (value.rows == 0) return;
  const dim3 grid(static_cast<unsigned>(streams), static_cast<unsigned>(value.rows));
  launch_kernel(gate_kernel, grid, row_threads(value.cols), 0, stream, key, query, value, gv);
}

}  // namespace tandem::gpu
