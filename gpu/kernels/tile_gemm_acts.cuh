// Activations of a block of tile_gemm.cuh: one segment of up to 64 rows in shared memory.
#pragma once

#include "gpu/kernels/tile_common.cuh"
#include "gpu/kernels/tile_gemm_table.h"
#include "gpu/kernels/tile_types.cuh"

namespace tandem {
namespace {

template <class T>
struct GemmActs {
  static constexpr int kRowBytes = T::kOctets ? 288 : 272;  // the eight rows of a load meet different banks
  static constexpr int kPitch = kGemmRows + 4;              // of scales and sums, words
  static constexpr int kScaleAt = kGemmRows * kRowBytes;
  static constexpr int kSumAt = kScaleAt + 4 * kSegmentBlocks * kPitch;
  static constexpr int kBytes = kSumAt + (T::kOffset ? 2 * 4 * kSegmentBlocks * kPitch : 0);

  // Where row a of 16 lies: such that the four results of a lane belong to neighbouring rows.
  static __device__ __forceinline__ int slot(int row) {
    const int a = row % 16;
    return row - a + 8 * (a / 2 % 2) + 2 * (a / 4) + a % 2;
  }

  // Begins the copy of a segment of nb blocks, by all threads of the block. Rows that do not exist are not copied.
  // Addresses are worked out once for several copies: there are as many as a fifth of the products.
  static __device__ __forceinline__ void issue(std::uint8_t* shared, const TileGemm& p, const std::int32_t* act_row,
                                               int count, int segment, int nb) {
    const auto blocks = static_cast<std::size_t>(p.blocks), first = kSegmentBlocks * static_cast<std::size_t>(segment);
    const int threads = static_cast<int>(blockDim.x);
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < 4 * count; i += threads) {  // four threads a row
      const int row = i / 4, piece = i % 4;
      const std::int8_t* const from =
          p.x.q + 32 * (static_cast<std::size_t>(act_row[row]) * blocks + first) + 16 * piece;
      std::uint8_t* const to = shared + slot(row) * kRowBytes + 16 * piece;
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (T::kBlockCols == 256 || piece + 4 * j < 2 * nb) copy16(to + 64 * j, from + 64 * j);
    }
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kSegmentBlocks * count; i += threads) {
      const int row = i / kSegmentBlocks, k = i % kSegmentBlocks;
      if (T::kBlockCols != 256 && k >= nb) continue;
      const std::size_t at = static_cast<std::size_t>(act_row[row]) * blocks + first + static_cast<std::size_t>(k);
      copy_small<4>(shared + kScaleAt + 4 * (k * kPitch + row), p.x.d + at);
      if constexpr (T::kOffset) {
        copy_small<4>(shared + kSumAt + 4 * (2 * k * kPitch + row), p.x.s + 2 * at);
        copy_small<4>(shared + kSumAt + 4 * ((2 * k + 1) * kPitch + row), p.x.s + 2 * at + 1);
      }
    }
  }

  // The B fragments of rows 16 j .. 16 j + 15 in block k: b[0], b[1] of the first mma, b[2], b[3] of the second.
  static __device__ __forceinline__ void columns(const std::uint8_t* shared, int j, int k, int lane, std::uint32_t* b) {
    if constexpr (T::kOctets) {
      const std::uint8_t* at = shared + (16 * j + lane / 4) * kRowBytes + 32 * k + 8 * (lane % 4);
      const uint2 first = words(at), second = words(at + 8 * kRowBytes);
      b[0] = first.x, b[1] = first.y, b[2] = second.x, b[3] = second.y;
    } else {
      const std::uint8_t* at =
          shared + (16 * j + 8 * (lane / 16) + lane % 8) * kRowBytes + 32 * k + 16 * (lane / 8 % 2);
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                   : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                   : "r"(static_cast<unsigned>(__cvta_generic_to_shared(at)))
                   : "memory");
    }
  }
  // Of the rows 16 j + 4 t ... + 3.
  static __device__ __forceinline__ float4 scales(const std::uint8_t* shared, int j, int k, int t) {
    return *reinterpret_cast<const float4*>(shared + kScaleAt + 4 * (k * kPitch + 16 * j + 4 * t));
  }
  static __device__ __forceinline__ int4 sums(const std::uint8_t* shared, int j, int k, int half, int t) {
    return *reinterpret_cast<const int4*>(shared + kSumAt + 4 * ((2 * k + half) * kPitch + 16 * j + 4 * t));
  }
};

}  // namespace
}  // namespace tandem
