// Implements  dot_float: 32 lanes by index mod 32, fma in ascending order in a segment of 256, tree over segments, tree
//             over lanes.
// When        every float matrix, norm and attention score.
// How         four registers of eight lanes per segment; the segment tree runs on whole registers, the lane tree is two
//             levels of hadd, which pairs neighbours exactly as the contract does.
#include "cpu/kernels/dot_float.h"

#include <immintrin.h>

#include <vector>

#include "runtime/exact_math.h"

namespace tandem {

namespace {

struct Lanes {
  __m256 v[4];
};

inline Lanes segment(const float* a, const float* b, std::size_t n) {
  Lanes acc{{_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()}};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (std::size_t j = 0; j < 4; ++j)
      acc.v[j] = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 8 * j), _mm256_loadu_ps(b + i + 8 * j), acc.v[j]);
  if (i < n) {  // the missing elements count as +0 * -0, which leaves a lane as it is, -0 too
    float ta[kLanes] = {}, tb[kLanes];
    for (float& missing : tb) missing = -0.0F;
    for (std::size_t j = 0; i + j < n; ++j) {
      ta[j] = a[i + j];
      tb[j] = b[i + j];
    }
    for (std::size_t j = 0; j < 4 && i + 8 * j < n; ++j)
      acc.v[j] = _mm256_fmadd_ps(_mm256_loadu_ps(ta + 8 * j), _mm256_loadu_ps(tb + 8 * j), acc.v[j]);
  }
  return acc;
}

inline Lanes add(const Lanes& a, const Lanes& b) {
  Lanes sum;
  for (std::size_t j = 0; j < 4; ++j) sum.v[j] = _mm256_add_ps(a.v[j], b.v[j]);
  return sum;
}

inline float lane_tree(const Lanes& x) {
  const __m256 h = _mm256_hadd_ps(_mm256_hadd_ps(x.v[0], x.v[1]), _mm256_hadd_ps(x.v[2], x.v[3]));
  const __m128 eights = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  const __m128 pairs = _mm_hadd_ps(eights, eights);
  return _mm_cvtss_f32(_mm_add_ss(pairs, _mm_shuffle_ps(pairs, pairs, 1)));
}

}  // namespace

float dot_float(const float* a, const float* b, std::size_t n) {
  if (n <= kSegment) return lane_tree(segment(a, b, n));
  const std::size_t count = (n + kSegment - 1) / kSegment;
  CHECK(count <= 256, "{} elements", n);
  Lanes segments[256];
  for (std::size_t s = 0; s < count; ++s)
    segments[s] =
        segment(a + s * kSegment, b + s * kSegment, n - s * kSegment < kSegment ? n - s * kSegment : kSegment);
  std::size_t padded = 1;
  while (padded < count) padded *= 2;
  const __m256 zero = _mm256_setzero_ps();
  for (std::size_t s = count; s < padded; ++s) segments[s] = Lanes{{zero, zero, zero, zero}};
  for (std::size_t stride = 1; stride < padded; stride *= 2)
    for (std::size_t s = 0; s < padded; s += 2 * stride) segments[s] = add(segments[s], segments[s + stride]);
  return lane_tree(segments[0]);
}

namespace {
// A weight row as floats; conversions of halves and bfloat16 are exact.
const float* float_row(const WeightView& w, std::size_t n, std::vector<float>& buffer) {
  const std::uint8_t* row = w.row(n);
  if (w.type == DType::F32 && reinterpret_cast<std::uintptr_t>(row) % alignof(float) == 0)
    return reinterpret_cast<const float*>(row);
  buffer.resize(w.cols);
  std::size_t i = 0;
  if (w.type == DType::F16)
    for (; i + 8 <= w.cols; i += 8)
      _mm256_storeu_ps(buffer.data() + i,
                       _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 2 * i))));
  if (w.type == DType::BF16)
    for (; i + 8 <= w.cols; i += 8) {
      const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 2 * i));
      _mm256_storeu_ps(buffer.data() + i, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16)));
    }
  if (i < w.cols) dequantize_row(w.type, row + row_bytes(w.type, i), w.cols - i, buffer.data() + i);
  return buffer.data();
}
}  // namespace

void matmul_float_rows(const WeightView& w, std::size_t first, std::size_t last, ConstRows x, Rows y) {
  thread_local std::vector<float> buffer;
  for (std::size_t n = first; n < last; ++n) {
    const float* row = float_row(w, n, buffer);
    for (std::size_t r = 0; r < x.rows; ++r) y.row(r)[n] = dot_float(row, x.row(r), w.cols) * w.scale;
  }
}

}  // namespace tandem
