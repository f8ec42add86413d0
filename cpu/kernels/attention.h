// Implements: Ops::attention and the block scores of Ops::select_positions, AVX2.
#pragma once

#include "runtime/ops.h"

namespace tandem {

// All query heads of one kv head for one row.
void attention_row(const float* q, const KvView& kv, std::size_t kv_head, std::size_t heads_per_kv,
                   const std::int32_t* positions, std::size_t count, float scale, const float* gate,
                   std::size_t gate_stride, float* out);

// scores[b] = sum over heads of relu(q_h . pooled_b). q [heads * dim].
void block_scores(const float* q, std::size_t heads, ConstRows pooled, float* scores);

void store_half_row(const float* x, std::size_t n, std::uint16_t* out);

}  // namespace tandem
