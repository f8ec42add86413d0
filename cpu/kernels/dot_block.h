// Implements: Ops::matmul for block formats (R3, R4), AVX2.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/kernels/tile_kernels.h"
#include "runtime/tensor.h"

namespace tandem {

// jobs[j].y[n] = (W x)[n] * W.scale for weight rows first <= n < last and every job. REQUIRES at most 32,768 columns.
void matmul_block_rows(const WeightView& w, std::size_t first, std::size_t last, const TileJob* jobs,
                       std::size_t job_count);

// R2 for one row, the bits of quantize_row_ref.
bool quantize_row(const float* x, std::size_t n, std::int8_t* q, float* d, std::int32_t* s);

}  // namespace tandem
