// Products with packed block-format matrices (runtime/tile.h) on the card: R3 and R4 of docs/numerics.md.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "runtime/quant.h"

namespace tandem {

// Quantised activations in device memory: q [rows, cols], d [rows, cols / 32], s [rows, cols / 16] (QuantRows of
// runtime/ops.h).
struct DeviceQuant {
  const std::int8_t* q = nullptr;
  const float* d = nullptr;
  const std::int32_t* s = nullptr;
  DeviceQuant rows_from(std::size_t first, std::size_t cols) const {
    return {q + first * cols, d + first * (cols / 32), s + first * (cols / 16)};
  }
};

// The tiles of a matrix [rows, cols] in device memory: the bytes of a PackedMatrix, aligned to 16 bytes.
struct DeviceTiles {
  DType type = DType::F32;
  const std::uint8_t* data = nullptr;
  std::size_t rows = 0, cols = 0;
  float scale = 1.0F;
};

// How a block of 32 columns is multiplied; the bits are the same. kAuto takes what was measured to be faster.
enum class TileRoute {
  kAuto,
  kDot,   // dp4a: at most two activation rows; more take kMma
  kMma,   // mma.m16n8k32: sixteen weight rows by eight activation rows
  kGemm,  // the same, a weight row decoded once for up to 64 activation rows (gpu/kernels/tile_gemm.h)
};

// Loads what the kernels need on the current device; once per device, not within a pass.
void load_tile_kernels();

// y[r * y_stride + n] = (W x_r)[n] * W.scale for r < rows. Any number of rows; kMma: groups of eight read W from memory
// together. REQUIRES load_tile_kernels(), has_tile_layout(w.type), w.cols <= 32,768.
void launch_tile_matmul(const DeviceTiles& w, const DeviceQuant& x, std::size_t rows, float* y, std::size_t y_stride,
                        cudaStream_t stream, TileRoute route = TileRoute::kAuto);

// The same for several matrices of one type that have the same number of columns, in one launch. REQUIRES 1 <= count <=
// kMaxTileMatrices.
struct TileMatmul {
  DeviceTiles w;
  float* y = nullptr;
  std::size_t y_stride = 0;
};
inline constexpr std::size_t kMaxTileMatrices = 4;
void launch_tile_matmuls(const TileMatmul* products, std::size_t count, const DeviceQuant& x, std::size_t rows,
                         cudaStream_t stream, TileRoute route = TileRoute::kAuto);

}  // namespace tandem
