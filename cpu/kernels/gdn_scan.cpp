// Implements  Ops::gdn_scan, one value head (docs/numerics.md R7: a sequential scan in every mode).
// When        head dims that are multiples of 8; others take ReferenceOps.
// How         a lane is a value column j; the key axis i runs in ascending order with one accumulator per segment of
//             32, so decay + prediction and write + read-out are one pass over the state each.
#include "cpu/kernels/gdn_scan.h"

#include <immintrin.h>

#include <algorithm>

#include "runtime/exact_math.h"

namespace tandem {

namespace {

constexpr std::size_t kMaxSegments = 32;

inline __m256 segment_tree(__m256* v, std::size_t count) {
  std::size_t padded = 1;
  while (padded < count) padded *= 2;
  for (std::size_t s = count; s < padded; ++s) v[s] = _mm256_setzero_ps();
  for (std::size_t stride = 1; stride < padded; stride *= 2)
    for (std::size_t s = 0; s < padded; s += 2 * stride) v[s] = _mm256_add_ps(v[s], v[s + stride]);
  return v[0];
}

// S = decay * S for eight columns; returns sum_i S[i] k[i].
inline __m256 decay_and_predict(float* state, std::size_t dim, float decay, const float* k) {
  const __m256 factor = _mm256_set1_ps(decay);
  __m256 segments[kMaxSegments];
  const std::size_t count = (dim + 31) / 32;
  for (std::size_t s = 0; s < count; ++s) {
    __m256 acc = _mm256_setzero_ps();
    for (std::size_t i = s * 32; i < std::min(dim, s * 32 + 32); ++i) {
      const __m256 cell = _mm256_mul_ps(factor, _mm256_loadu_ps(state + i * dim));
      _mm256_storeu_ps(state + i * dim, cell);
      acc = _mm256_fmadd_ps(cell, _mm256_set1_ps(k[i]), acc);
    }
    segments[s] = acc;
  }
  return segment_tree(segments, count);
}

// S = fma(k, u, S) for eight columns; returns sum_i S[i] q[i].
inline __m256 write_and_read(float* state, std::size_t dim, const float* k, __m256 u, const float* q) {
  __m256 segments[kMaxSegments];
  const std::size_t count = (dim + 31) / 32;
  for (std::size_t s = 0; s < count; ++s) {
    __m256 acc = _mm256_setzero_ps();
    for (std::size_t i = s * 32; i < std::min(dim, s * 32 + 32); ++i) {
      const __m256 cell = _mm256_fmadd_ps(_mm256_set1_ps(k[i]), u, _mm256_loadu_ps(state + i * dim));
      _mm256_storeu_ps(state + i * dim, cell);
      acc = _mm256_fmadd_ps(cell, _mm256_set1_ps(q[i]), acc);
    }
    segments[s] = acc;
  }
  return segment_tree(segments, count);
}

inline void replay_row(float* state, std::size_t dim, float decay, const float* k, const float* u) {
  const __m256 factor = _mm256_set1_ps(decay);
  for (std::size_t i = 0; i < dim; ++i)
    for (std::size_t j = 0; j < dim; j += 8) {
      const __m256 cell = _mm256_mul_ps(factor, _mm256_loadu_ps(state + i * dim + j));
      _mm256_storeu_ps(state + i * dim + j, _mm256_fmadd_ps(_mm256_set1_ps(k[i]), _mm256_loadu_ps(u + j), cell));
    }
}

}  // namespace

void gdn_scan_head(const GdnScan& scan, std::size_t head, float* work) {
  const std::size_t dim = scan.dim, at = head * dim, key = head % scan.key_heads * dim;
  float* kept = scan.state + head * dim * dim;
  for (std::size_t t = 0; t < scan.replay_k.rows; ++t)
    replay_row(kept, dim, scan.replay_decay.row(t)[head], scan.replay_k.row(t) + key, scan.replay_u.row(t) + at);
  float* state = kept;
  if (scan.log_u) {
    std::copy_n(kept, dim * dim, work);
    state = work;
  }
  for (std::size_t t = 0; t < scan.q.rows; ++t) {
    const float* q = scan.q.row(t) + key;
    const float* k = scan.k.row(t) + key;
    const __m256 beta = _mm256_set1_ps(scan.beta.row(t)[head]);
    for (std::size_t j = 0; j < dim; j += 8) {
      const __m256 predicted = decay_and_predict(state + j, dim, scan.decay.row(t)[head], k);
      const __m256 u = _mm256_mul_ps(beta, _mm256_sub_ps(_mm256_loadu_ps(scan.v.row(t) + at + j), predicted));
      _mm256_storeu_ps(scan.out.row(t) + at + j, write_and_read(state + j, dim, k, u, q));
      if (scan.log_u) _mm256_storeu_ps(scan.log_u.row(t) + at + j, u);
    }
  }
}

}  // namespace tandem
