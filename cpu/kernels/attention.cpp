// Implements  Ops::attention for one (row, kv head), block scores, f16 stores (docs/numerics.md R6, R7).
// When        head dims that are multiples of 8; others take ReferenceOps.
// How         a key row is converted to float once and met by all query heads that share it; likewise values. Weighted
//             sums run per segment of 64 list entries, the segments of a head are then summed pairwise.
#include "cpu/kernels/attention.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/kernels/dot_float.h"
#include "runtime/exact_math.h"

namespace tandem {

namespace {

// The key or value row of one kv head as floats; `buffer` is used for halves.
inline const float* float_row(const KvView& kv, const void* base, std::size_t position, std::size_t kv_head,
                              float* buffer) {
  const std::size_t at = position * kv.width() + kv_head * kv.head_dim;
  if (kv.type == KvType::kF32) return static_cast<const float*>(base) + at;
  const auto* half = static_cast<const std::uint16_t*>(base) + at;
  for (std::size_t j = 0; j < kv.head_dim; j += 8)
    _mm256_storeu_ps(buffer + j, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(half + j))));
  return buffer;
}

// Pairwise sum of `count` vectors of n floats, `stride` apart, into the first.
void tree_rows(float* rows, std::size_t count, std::size_t stride, std::size_t n) {
  std::size_t padded = 1;
  while (padded < count) padded *= 2;
  for (std::size_t step = 1; step < padded; step *= 2)
    for (std::size_t s = 0; s < count; s += 2 * step) {
      float* a = rows + s * stride;
      if (s + step < count) {
        const float* b = rows + (s + step) * stride;
        for (std::size_t j = 0; j < n; ++j) a[j] = a[j] + b[j];
      } else {  // the padding is +0, which turns a -0 into +0
        for (std::size_t j = 0; j < n; ++j) a[j] = a[j] + 0.0F;
      }
    }
}

struct Scratch {
  std::vector<float> row, weights, totals, sums;
};

}  // namespace

void attention_row(const float* q, const KvView& kv, std::size_t kv_head, std::size_t heads_per_kv,
                   const std::int32_t* positions, std::size_t count, float scale, const float* gate,
                   std::size_t gate_stride, float* out) {
  thread_local Scratch scratch;
  const std::size_t dim = kv.head_dim, segments = (count + kKeySegment - 1) / kKeySegment;
  scratch.row.resize(dim);
  scratch.weights.resize(heads_per_kv * count);
  scratch.totals.resize(heads_per_kv * 2 * segments);
  scratch.sums.assign(segments * heads_per_kv * dim, 0.0F);
  float* const row = scratch.row.data();
  float* const weights = scratch.weights.data();

  for (std::size_t i = 0; i < count; ++i) {
    const float* key = float_row(kv, kv.k, static_cast<std::size_t>(positions[i]), kv_head, row);
    for (std::size_t h = 0; h < heads_per_kv; ++h) weights[h * count + i] = dot_float(q + h * dim, key, dim) * scale;
  }
  for (std::size_t h = 0; h < heads_per_kv; ++h) {
    float* w = weights + h * count;
    const float top = *std::max_element(w, w + count);
    for (std::size_t i = 0; i < count; ++i) w[i] = exp_c(w[i] - top);
    float* totals = scratch.totals.data() + h * 2 * segments;
    for (std::size_t s = 0; s < segments; ++s) {
      float acc = 0.0F;
      for (std::size_t i = s * kKeySegment; i < std::min(count, (s + 1) * kKeySegment); ++i) acc = acc + w[i];
      totals[s] = acc;
    }
    totals[0] = tree_sum(totals, segments);
  }
  for (std::size_t i = 0; i < count; ++i) {
    const float* value = float_row(kv, kv.v, static_cast<std::size_t>(positions[i]), kv_head, row);
    float* sums = scratch.sums.data() + i / kKeySegment * heads_per_kv * dim;
    for (std::size_t h = 0; h < heads_per_kv; ++h) {
      const __m256 weight = _mm256_set1_ps(weights[h * count + i]);
      for (std::size_t j = 0; j < dim; j += 8) {
        float* sum = sums + h * dim + j;
        _mm256_storeu_ps(sum, _mm256_fmadd_ps(weight, _mm256_loadu_ps(value + j), _mm256_loadu_ps(sum)));
      }
    }
  }
  tree_rows(scratch.sums.data(), segments, heads_per_kv * dim, heads_per_kv * dim);
  for (std::size_t h = 0; h < heads_per_kv; ++h) {
    const float total = scratch.totals[h * 2 * segments];
    for (std::size_t j = 0; j < dim; ++j)
      out[h * dim + j] = (scratch.sums[h * dim + j] / total) * sigmoid_c(gate[h * gate_stride + j]);
  }
}

void block_scores(const float* q, std::size_t heads, ConstRows pooled, float* scores) {
  const std::size_t dim = pooled.cols;
  for (std::size_t b = 0; b < pooled.rows; ++b) {
    float score = 0.0F;
    for (std::size_t h = 0; h < heads; ++h) {
      const float dot = dot_float(q + h * dim, pooled.row(b), dim);
      score = score + (dot > 0.0F ? dot : 0.0F);
      if (std::isnan(dot)) score = dot;
    }
    scores[b] = score;
  }
}

void store_half_row(const float* x, std::size_t n, std::uint16_t* out) {
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  for (; i < n; ++i) out[i] = float_to_half(x[i]);
}

}  // namespace tandem
