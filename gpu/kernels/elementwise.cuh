// One thread per column of a row: the launch that all element-by-element kernels share.
#pragma once

#include <cstddef>

#include "gpu/cuda_check.h"
#include "gpu/kernels/device_rows.h"
#include "gpu/kernels/launch.cuh"
#include "gpu/kernels/launch_check.h"

namespace tandem::gpu {

inline constexpr unsigned kColumnThreads = 128;  // 80 blocks for the wide residual of one row

template <typename Body>
__global__ void each_column(unsigned cols, Body body) {
  begin_kernel();
  const unsigned j = blockIdx.x * kColumnThreads + threadIdx.x;
  if (j < cols) body(std::size_t{blockIdx.y}, j);
}

// body(row, column) for every element of a [rows, cols] array.
template <typename Body>
void launch_columns(std::size_t rows, std::size_t cols, const Body& body, DeviceStream stream) {
  if (rows == 0 || cols == 0) return;
  LAUNCH_CHECK(rows <= 65535 && cols < (std::size_t{1} << 31), rows, cols);
  const dim3 grid(static_cast<unsigned>((cols + kColumnThreads - 1) / kColumnThreads), static_cast<unsigned>(rows));
  launch_kernel(each_column<Body>, grid, kColumnThreads, 0, stream, static_cast<unsigned>(cols), body);
}

}  // namespace tandem::gpu
