#include "cpu/reference_dot.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "placement/check.h"
#include "runtime/exact_math.h"

namespace tandem {

bool quantize_row_ref(const float* x, std::size_t n, std::int8_t* q, float* d, std::int32_t* s) {
  for (std::size_t b = 0; b < n / 32; ++b) {
    float amax = 0.0F;
    for (std::size_t i = 0; i < 32; ++i) {
      const float magnitude = std::fabs(x[b * 32 + i]);
      if (!std::isfinite(magnitude)) return false;
      amax = std::max(amax, magnitude);
    }
    float inverse = amax > 0.0F ? 127.0F / amax : 0.0F;
    if (!std::isfinite(inverse)) inverse = amax = 0.0F;  // amax below 3.8e-37: the block counts as zero
    d[b] = amax / 127.0F;
    for (std::size_t half = 0; half < 2; ++half) {
      std::int32_t sum = 0;
      for (std::size_t i = 0; i < 16; ++i) {
        const std::size_t at = b * 32 + half * 16 + i;
        q[at] = static_cast<std::int8_t>(std::rint(x[at] * inverse));
        sum += q[at];
      }
      s[2 * b + half] = sum;
    }
  }
  return true;
}

float dot_block_ref(DType type, const std::uint8_t* row, std::size_t n, const std::int8_t* q, const float* d,
                    const std::int32_t* s) {
  const std::size_t blocks = n / 32, per_segment = kSegment / 32;
  std::vector<float> segments(2 * ((blocks + per_segment - 1) / per_segment));
  std::size_t count = 0;
  for (std::size_t first = 0; first < blocks; first += per_segment) {
    float acc = 0.0F;
    for (std::size_t b = first; b < std::min(blocks, first + per_segment); ++b) {
      Block32 w;
      decode_block32(type, row, b, w);
      std::int32_t p[2] = {0, 0};
      for (std::size_t i = 0; i < 32; ++i) p[i / 16] += std::int32_t{w.c[i]} * std::int32_t{q[b * 32 + i]};
      if (w.split_scale) {
        acc = std::fma(w.d[0] * d[b], static_cast<float>(w.m[0] * p[0]), acc);
        acc = std::fma(w.d[1] * d[b], static_cast<float>(w.m[1] * p[1]), acc);
      } else {
        acc = std::fma(w.d[0] * d[b], static_cast<float>(w.m[0] * p[0] + w.m[1] * p[1]), acc);
      }
      if (w.has_offset) acc = std::fma(w.e * d[b], static_cast<float>(w.n[0] * s[2 * b] + w.n[1] * s[2 * b + 1]), acc);
    }
    segments[count++] = acc;
  }
  return tree_sum(segments.data(), count);
}

float dot_float_ref(const float* a, const float* b, std::size_t n) {
  const std::size_t segments = (n + kSegment - 1) / kSegment;
  std::vector<float> sums(2 * segments);
  float lanes[kLanes];
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    for (std::size_t s = 0; s < segments; ++s) {
      float acc = 0.0F;
      for (std::size_t i = s * kSegment + lane; i < std::min(n, (s + 1) * kSegment); i += kLanes)
        acc = std::fma(a[i], b[i], acc);
      sums[s] = acc;
    }
    lanes[lane] = tree_sum(sums.data(), segments);
  }
  return tree_sum(lanes, kLanes);
}

}  // namespace tandem
