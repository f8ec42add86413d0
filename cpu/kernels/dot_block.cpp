// Implements  Ops::matmul for block formats from the file's rows, Ops::quantize (docs/numerics.md R2, R3, R4).
// When        formats without a tile layout (TQ1_0, TQ2_0, NVFP4, Q1_0), and matrices that were not loaded.
// How         a weight row is decoded once into int8 codes, int16 multipliers and float scales (L1-resident), then met
//             by every activation row: |c| * sign(q, c) pairs (maddubs), times the half-block multiplier (madd), eight
//             blocks reduced together; the fma chain of a segment is scalar, as the contract orders it.
// Measured    bench/results, ISA "row".
#include "cpu/kernels/dot_block.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/exact_math.h"
#include "runtime/quant_decode.h"

namespace tandem {

namespace {

// A weight row in integer form, structure of arrays.
struct DecodedRow {
  std::vector<std::int8_t> c;       // [K]
  std::vector<std::int16_t> m;      // [K / 16]
  std::vector<std::int32_t> n;      // [K / 16]
  std::vector<float> d, d_high, e;  // [K / 32]
  bool has_offset = false, split_scale = false;

  void resize(std::size_t k) {
    if (c.size() >= k) return;
    c.resize(k);
    m.resize(k / 16);
    n.resize(k / 16);
    d.resize(k / 32);
    d_high.resize(k / 32);
    e.resize(k / 32);
  }
};

template <DType T>
void decode_row(const std::uint8_t* row, std::size_t k, DecodedRow& out) {
  Block32 block;
  for (std::size_t b = 0; b < k / 32; ++b) {
    decode_block32_as<T>(row, b, block);
    __builtin_memcpy(out.c.data() + 32 * b, block.c, 32);
    for (std::size_t h = 0; h < 2; ++h) {
      out.m[2 * b + h] = static_cast<std::int16_t>(block.m[h]);
      out.n[2 * b + h] = block.n[h];
    }
    out.d[b] = block.d[0];
    out.d_high[b] = block.d[1];
    out.e[b] = block.e;
  }
  out.has_offset = block.has_offset;
  out.split_scale = block.split_scale;
}

using DecodeFunction = void (*)(const std::uint8_t*, std::size_t, DecodedRow&);

DecodeFunction decoder(DType type) {
  return visit_block_type(type, []<DType T>() -> DecodeFunction { return &decode_row<T>; });
}

// Eight int32 per block: the products of block codes and activations, times the half-block multipliers, pairs summed.
// Exact: |c q| pairs stay below 2 * 128 * 127 in int16, and 32 codes times any multiplier below 2^31.
inline __m256i block_products(const std::int8_t* c, const std::int16_t* m, const std::int8_t* q) {
  const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(c));
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q));
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes));
  const __m256i multiplier = _mm256_set_m128i(_mm_set1_epi16(m[1]), _mm_set1_epi16(m[0]));
  return _mm256_madd_epi16(pairs, multiplier);
}

inline std::int32_t sum_half(__m128i v) {
  v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4E));
  v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0xB1));
  return _mm_cvtsi128_si32(v);
}

// The sums of eight blocks' products: out[i] = sum of the eight lanes of block i.
inline void reduce_blocks(const __m256i* v, std::int32_t* out) {
  const __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
  const __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
  const __m128i low = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  const __m128i high = _mm_add_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_set_m128i(high, low));
}

float dot_row(const DecodedRow& w, std::size_t k, const TileJob& job) {
  constexpr std::size_t kBlocks = kSegment / 32;
  const std::size_t blocks = k / 32;
  float segments[256];
  std::size_t count = 0;
  for (std::size_t first = 0; first < blocks; first += kBlocks) {
    const std::size_t n = std::min(kBlocks, blocks - first);
    __m256i products[kBlocks];
    for (std::size_t i = n; i < kBlocks; ++i) products[i] = _mm256_setzero_si256();
    for (std::size_t i = 0; i < n; ++i)
      products[i] =
          block_products(w.c.data() + 32 * (first + i), w.m.data() + 2 * (first + i), job.q + 32 * (first + i));
    std::int32_t sums[kBlocks];
    float acc = 0.0F;
    if (w.split_scale) {
      for (std::size_t i = 0; i < n; ++i) {
        const float da = job.d[first + i];
        acc = std::fma(w.d[first + i] * da, static_cast<float>(sum_half(_mm256_castsi256_si128(products[i]))), acc);
        acc = std::fma(w.d_high[first + i] * da, static_cast<float>(sum_half(_mm256_extracti128_si256(products[i], 1))),
                       acc);
      }
    } else {
      reduce_blocks(products, sums);
      for (std::size_t i = 0; i < n; ++i) {
        const std::size_t b = first + i;
        acc = std::fma(w.d[b] * job.d[b], static_cast<float>(sums[i]), acc);
        if (w.has_offset)
          acc = std::fma(w.e[b] * job.d[b],
                         static_cast<float>(w.n[2 * b] * job.s[2 * b] + w.n[2 * b + 1] * job.s[2 * b + 1]), acc);
      }
    }
    segments[count++] = acc;
  }
  return tree_sum(segments, count);
}

}  // namespace

void matmul_block_rows(const WeightView& w, std::size_t first, std::size_t last, const TileJob* jobs,
                       std::size_t job_count) {
  const DecodeFunction decode = decoder(w.type);
  CHECK(w.cols % 32 == 0 && w.cols <= 128 * kSegment, "{}: {} columns", w.name, w.cols);
  thread_local DecodedRow row;
  row.resize(w.cols);
  for (std::size_t n = first; n < last; ++n) {
    decode(w.row(n), w.cols, row);
    for (std::size_t j = 0; j < job_count; ++j) jobs[j].y[n] = dot_row(row, w.cols, jobs[j]) * w.scale;
  }
}

bool quantize_row(const float* x, std::size_t n, std::int8_t* q, float* d, std::int32_t* s) {
  const __m256 magnitude_mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF));
  const __m256i largest = _mm256_set1_epi32(0x7F7FFFFF);
  for (std::size_t b = 0; b < n / 32; ++b) {
    const float* in = x + 32 * b;
    __m256 v[4];
    __m256i top = _mm256_setzero_si256();  // magnitudes order like their bit patterns
    for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_loadu_ps(in + 8 * i);
      top = _mm256_max_epi32(top, _mm256_castps_si256(_mm256_and_ps(v[i], magnitude_mask)));
    }
    if (_mm256_movemask_epi8(_mm256_cmpgt_epi32(top, largest)) != 0) return false;
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1));
    float amax = _mm_cvtss_f32(_mm_castsi128_ps(m));
    float inverse = amax > 0.0F ? 127.0F / amax : 0.0F;
    if (!std::isfinite(inverse)) inverse = amax = 0.0F;
    d[b] = amax / 127.0F;
    const __m256 scale = _mm256_set1_ps(inverse);
    __m256i i32[4];
    for (int i = 0; i < 4; ++i) i32[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], scale));
    s[2 * b] = sum_half(_mm_add_epi32(_mm256_castsi256_si128(_mm256_add_epi32(i32[0], i32[1])),
                                      _mm256_extracti128_si256(_mm256_add_epi32(i32[0], i32[1]), 1)));
    s[2 * b + 1] = sum_half(_mm_add_epi32(_mm256_castsi256_si128(_mm256_add_epi32(i32[2], i32[3])),
                                          _mm256_extracti128_si256(_mm256_add_epi32(i32[2], i32[3]), 1)));
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(i32[0], i32[1]), _mm256_packs_epi32(i32[2], i32[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + 32 * b), _mm256_permutevar8x32_epi32(packed, order));
  }
  return true;
}

}  // namespace tandem
