// Products of many activation rows with packed block-format matrices on the card (R3, R4 of docs/numerics.md), and the
// expert FFN (R5) of a long pass: experts by batches, the pairs of a pass sorted by expert.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "gpu/kernels/tile_product.h"
#include "runtime/expert_blob.h"

namespace tandem {

// Rows of a block's group of activations. From kGemmMinRows rows on launch_tile_matmul takes this way.
inline constexpr int kGemmRows = 64;
inline constexpr std::size_t kGemmMinRows = 17;

// Several matrices of one type and number of columns that meet the same rows of x: as launch_tile_matmuls. A product
// that has too few blocks to fill a card shares out the segments of a row too, if there is `memory` for it.
inline constexpr std::size_t kGemmSplitBytes = std::size_t{32} << 20;
void launch_tile_gemm(const TileMatmul* products, std::size_t count, const DeviceQuant& x, std::size_t rows,
                      cudaStream_t stream, float* memory = nullptr, std::size_t memory_bytes = 0);

// The pairs (row * used + rank) of a pass by expert: order[first[e]] .. order[first[e + 1] - 1] are those of expert e,
// in no order that means anything. Pairs with a negative expert are left out.
struct SortedPairs {
  std::int32_t* first = nullptr;  // [experts + 1]
  std::int32_t* order = nullptr;  // [pairs]
};
inline constexpr std::size_t kMostSortedExperts = 1024;
// REQUIRES experts <= kMostSortedExperts, pairs < 2^31.
void launch_sort_pairs(const std::int32_t* expert, std::size_t pairs, std::size_t experts, const SortedPairs& out,
                       cudaStream_t stream);

// Experts whose blobs are on the card, anywhere.
inline constexpr int kBatchExperts = 64;
struct ExpertBatch {
  int count = 0;
  std::int32_t expert[kBatchExperts];
  const std::uint8_t* blob[kBatchExperts];
};

// Work memory of a long pass: hidden rows of all pairs, and their order. `memory`: aligned to 256 bytes.
struct GemmScratch {
  SortedPairs sorted;
  std::int8_t* q = nullptr;     // [pairs, ff]
  float* d = nullptr;           // [pairs, ff / 32]
  std::int32_t* s = nullptr;    // [pairs, ff / 16]
  std::int32_t* bad = nullptr;  // [pairs] 1 where a hidden value is not finite
  std::size_t pairs = 0;
};
std::size_t gemm_scratch_bytes(std::size_t pairs, std::size_t ff, std::size_t experts);
GemmScratch make_gemm_scratch(void* memory, std::size_t pairs, std::size_t ff, std::size_t experts);

// Whether there is a kernel for such experts: gate and up of one type.
bool can_gemm_experts(const ExpertBlobLayout& layout);
// y[pair * y_stride ..] = FFN of the pair's expert on row pair / used of x, for the pairs of the batch's experts; other
// rows of y are left alone. A row with a hidden value that is not finite becomes NaN. scale: WeightView::scale of gate,
// up and down. expected: about how many pairs the batch has; any value gives the same result. REQUIRES
// load_tile_kernels(), can_gemm_experts(layout), scratch.sorted filled and scratch.bad zeroed for the pairs.
struct GemmExperts {
  const ExpertBlobLayout* layout = nullptr;
  float scale[3] = {1.0F, 1.0F, 1.0F};
  DeviceQuant x;
  std::size_t used = 1;
  float* y = nullptr;
  std::size_t y_stride = 0;
};
void launch_gemm_experts(const GemmExperts& experts, const ExpertBatch& batch, std::size_t expected,
                         const GemmScratch& scratch, cudaStream_t stream);

// launch_ffn (gpu/kernels/expert_ffn.h) for any number of rows; the scratch has room for all of them.
void launch_gemm_ffn(const DeviceTiles& gate, const DeviceTiles& up, const DeviceTiles& down, const DeviceQuant& x,
                     std::size_t rows, float* y, std::size_t y_stride, std::int8_t* hidden_q, float* hidden_d,
                     std::int32_t* hidden_s, std::int32_t* bad, cudaStream_t stream);

}  // namespace tandem
