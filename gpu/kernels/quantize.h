// R2 of docs/numerics.md on the card: activations to blocks of 32 integers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace tandem {

// *first_bad before a launch: any value of at least the number of rows. A memset of bytes 0x7F makes this one.
inline constexpr std::int32_t kNoBadRow = 0x7F7F7F7F;

// q [rows, cols], d [rows, cols / 32], s [rows, cols / 16]: the bits of quantize_row_ref. Rows of x are `stride` floats
// apart. If a row holds a value that is not finite, *first_bad becomes the smaller of itself and the first such row,
// and what is written for that row means nothing. REQUIRES cols % 32 == 0; x aligned to 16 bytes, stride % 4 == 0; all
// pointers in device memory.
void launch_quantize(const float* x, std::size_t stride, std::size_t rows, std::size_t cols, std::int8_t* q, float* d,
                     std::int32_t* s, std::int32_t* first_bad, cudaStream_t stream);

}  // namespace tandem
