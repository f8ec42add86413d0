// Implements  Ops::gdn_scan, one value head (docs/numerics.md R7: a sequential scan in every mode), for the vector type
//             that the including file is compiled for.
// When        head dims that are multiples of 8, up to 1024; others take ReferenceOps.
// How         A lane is a value column j, and columns do not depend on each other: a strip of N vectors of columns is
//             taken through all rows. The key axis i runs in ascending order with one accumulator per segment of 32.
//             Row t's decay and prediction need row t - 1's write only, cell by cell, so a window of w rows is w + 1
//             passes over the strip. The first of them also folds in the replayed rows, and reads the kept state; in a
//             window the others work on a copy that stays in the cache, so memory sees the state once.
// Measured    docs/performance.md, "Delta rule".
#pragma once

#include <immintrin.h>

#include <algorithm>

#include "cpu/kernels/gdn_scan.h"

namespace tandem {
namespace {  // one copy per instruction set, see tile_isa.h

struct Vector8 {
  using F = __m256;
  static constexpr std::size_t kLanes = 8;
  static F zero() { return _mm256_setzero_ps(); }
  static F set1(float x) { return _mm256_set1_ps(x); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
};

constexpr std::size_t kMaxSegments = 32;

// Sums of a strip, segment by segment of the key axis.
template <typename V, std::size_t N>
struct SegmentSums {
  typename V::F of[kMaxSegments][N];
  std::size_t count;

  void tree() {
    std::size_t padded = 1;
    while (padded < count) padded *= 2;
    for (std::size_t s = count; s < padded; ++s)
      for (std::size_t n = 0; n < N; ++n) of[s][n] = V::zero();
    for (std::size_t stride = 1; stride < padded; stride *= 2)
      for (std::size_t s = 0; s < padded; s += 2 * stride)
        for (std::size_t n = 0; n < N; ++n) of[s][n] = V::add(of[s][n], of[s + stride][n]);
  }
};

// A strip of N vectors of columns of one head, on its way through the rows.
template <typename V, std::size_t N>
struct Strip {
  const GdnScan& scan;
  std::size_t head, key, first;  // value head; first column of its key head's and of its own part of a row
  float* kept;                   // [dim, dim] at the strip's first column
  float* work;                   // the same for the copy; kept itself where the state advances

  // One pass: S += k u of row `write` (if any) and its read-out; then the decay of row `predict` (if any) and its
  // prediction. `replay`: fold the accepted rows in first.
  template <bool kReplay, bool kWrite, bool kPredict>
  void pass(const float* from, float* to, std::size_t row, const typename V::F* u, SegmentSums<V, N>& read,
            SegmentSums<V, N>& predicted) const {
    const std::size_t dim = scan.dim;
    const float* k_write = kWrite ? scan.k.row(row - 1) + key : nullptr;
    const float* q_write = kWrite ? scan.q.row(row - 1) + key : nullptr;
    const float* k_next = kPredict ? scan.k.row(row) + key : nullptr;
    const typename V::F decay = kPredict ? V::set1(scan.decay.row(row)[head]) : V::zero();
    for (std::size_t s = 0; s < read.count; ++s) {
      typename V::F out[N], guess[N];
      for (std::size_t n = 0; n < N; ++n) out[n] = guess[n] = V::zero();
      for (std::size_t i = s * 32; i < std::min(dim, s * 32 + 32); ++i) {
        typename V::F cells[N];
        for (std::size_t n = 0; n < N; ++n) cells[n] = V::load(from + i * dim + n * V::kLanes);
        if constexpr (kReplay) {
          // A cell waits for its last row; the N cells side by side fill the time.
          for (std::size_t t = 0; t < scan.replay_k.rows; ++t) {
            const typename V::F k = V::set1(scan.replay_k.row(t)[key + i]);
            const typename V::F kept_share = V::set1(scan.replay_decay.row(t)[head]);
            const float* u_row = scan.replay_u.row(t) + first;
            for (std::size_t n = 0; n < N; ++n)
              cells[n] = V::fma(k, V::load(u_row + n * V::kLanes), V::mul(kept_share, cells[n]));
          }
          if (!kPredict || to != kept)
            for (std::size_t n = 0; n < N; ++n) V::store(kept + i * dim + n * V::kLanes, cells[n]);
        }
        for (std::size_t n = 0; n < N; ++n) {
          typename V::F cell = cells[n];
          if constexpr (kWrite) {
            cell = V::fma(V::set1(k_write[i]), u[n], cell);
            out[n] = V::fma(cell, V::set1(q_write[i]), out[n]);
          }
          if constexpr (kPredict) {
            cell = V::mul(decay, cell);
            guess[n] = V::fma(cell, V::set1(k_next[i]), guess[n]);
          }
          if (to != nullptr) V::store(to + i * dim + n * V::kLanes, cell);
        }
      }
      for (std::size_t n = 0; n < N; ++n) {
        if constexpr (kWrite) read.of[s][n] = out[n];
        if constexpr (kPredict) predicted.of[s][n] = guess[n];
      }
    }
  }

  void run() const {
    const std::size_t rows = scan.q.rows, segments = (scan.dim + 31) / 32;
    const bool replay = scan.replay_k.rows > 0, logged = static_cast<bool>(scan.log_u);
    SegmentSums<V, N> read, predicted;
    read.count = predicted.count = segments;
    typename V::F u[N] = {};
    if (rows == 0) {
      if (replay) pass<true, false, false>(kept, nullptr, 0, u, read, predicted);
      return;
    }
    if (replay)
      pass<true, false, true>(kept, work, 0, u, read, predicted);
    else
      pass<false, false, true>(kept, work, 0, u, read, predicted);
    for (std::size_t t = 0; t < rows; ++t) {
      predicted.tree();
      const typename V::F beta = V::set1(scan.beta.row(t)[head]);
      for (std::size_t n = 0; n < N; ++n) {
        u[n] = V::mul(beta, V::sub(V::load(scan.v.row(t) + first + n * V::kLanes), predicted.of[0][n]));
        if (logged) V::store(scan.log_u.row(t) + first + n * V::kLanes, u[n]);
      }
      if (t + 1 < rows)
        pass<false, true, true>(work, work, t + 1, u, read, predicted);
      else
        pass<false, true, false>(work, logged ? nullptr : work, rows, u, read, predicted);
      read.tree();
      for (std::size_t n = 0; n < N; ++n) V::store(scan.out.row(t) + first + n * V::kLanes, read.of[0][n]);
    }
  }
};

// Strips of N vectors from `column` on; returns the first column that did not fit.
template <typename V, std::size_t N>
std::size_t scan_strips(const GdnScan& scan, std::size_t head, float* work, std::size_t column) {
  const std::size_t dim = scan.dim;
  float* kept = scan.state + head * dim * dim;
  for (; column + N * V::kLanes <= dim; column += N * V::kLanes)
    Strip<V, N>{scan,
                head,
                head % scan.key_heads * dim,
                head * dim + column,
                kept + column,
                (scan.log_u ? work : kept) + column}
        .run();
  return column;
}

}  // namespace
}  // namespace tandem
