// The two dot products and the quantiser of the contract (R2, R3, R4), scalar.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/quant.h"

namespace tandem {

// R2 for one row; false when a value is not finite. REQUIRES n % 32 == 0.
bool quantize_row_ref(const float* x, std::size_t n, std::int8_t* q, float* d, std::int32_t* s);

// R3 and R4: one row of a block format times one quantised row.
float dot_block_ref(DType type, const std::uint8_t* row, std::size_t n, const std::int8_t* q, const float* d,
                    const std::int32_t* s);

// R4 for floats: lane l of a segment of 256 takes elements l, l + 32, ... with fma in ascending order; tree over the
// segments of each lane, then tree over the 32 lanes.
float dot_float_ref(const float* a, const float* b, std::size_t n);

}  // namespace tandem
