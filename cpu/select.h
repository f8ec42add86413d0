// Discrete choices (R9), shared by the CPU machines: which entries are kept, ties to the lower index.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem {

// Indices of the k largest of scores[0..n), in falling order of score, ties to the lower index. REQUIRES k <= n and no
// NaN. `out` holds k entries.
void top_k_sorted(const float* scores, std::size_t n, std::size_t k, std::int32_t* out);

// Writes the positions that a row attends to (see Ops::select_positions), given the scores of its `complete` blocks,
// or everything visible when complete <= blocks. Returns the count.
std::int32_t write_positions(const float* scores, std::size_t complete, std::size_t visible, std::size_t ratio,
                             std::size_t blocks, std::int32_t* out);

}  // namespace tandem
