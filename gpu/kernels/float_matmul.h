// Ops::matmul for float weights on the card, bit for bit that of ReferenceOps (R4 for floats).
//
// When: the matrices that a file keeps in F32, F16 or BF16: router, indexer, GDN gates, inject; all of them in a BF16
// file. How: a block owns one to four rows of W and of x; each of its warps takes segments of 256 columns,
// lane l the elements l mod 32, and the lanes meet in shared memory, where segments and lanes are summed by the tree.
// More rows of x go in groups that read W again, from the L2 cache. Measured: docs/performance.md.
#pragma once

#include "gpu/kernels/device_rows.h"

namespace tandem::gpu {

enum class FloatType : std::uint8_t { kF32, kF16, kBf16 };

// y = (W x) * scale; W [n, x.cols] of `type`, rows one after the other. REQUIRES x.cols <= 16384.
void float_matmul(FloatType type, const void* weights, std::size_t n, float scale, ConstDeviceRows x, DeviceRows y,
                  DeviceStream stream);

// The same for several matrices of one type that meet the same x, in one launch. REQUIRES 1 <= count <=
// kMaxFloatMatrices.
struct FloatMatmul {
  const void* weights = nullptr;
  std::size_t n = 0;
  float scale = 1.0F;
  DeviceRows y;
};
inline constexpr std::size_t kMaxFloatMatrices = 4;
void float_matmuls(FloatType type, const FloatMatmul* products, std::size_t count, ConstDeviceRows x,
                   DeviceStream stream);

// float_matmul of at least kFloatGemmRows rows, in a way that pays then. False, and nothing is done, where there are
// fewer, W has less than 16 rows, or something is not aligned to 16 bytes. float_matmuls asks it first.
inline constexpr std::size_t kFloatGemmRows = 64;
bool float_gemm(FloatType type, const FloatMatmul& product, ConstDeviceRows x, DeviceStream stream);

// out[i] = row ids[i] of the table [rows, out.cols] of `type`, times scale (no product where it is 1). The ids are read
// from the card's memory; an id outside the table takes the nearest row. out.rows ids.
void float_rows(FloatType type, const void* table, std::size_t rows, float scale, const std::int32_t* ids,
                DeviceRows out, DeviceStream stream);

}  // namespace tandem::gpu
