// Implements  the elementwise operations of runtime/ops.h. How: see the header. When: always.
#include "cpu/kernels/elementwise.h"

#include <algorithm>
#include <vector>

#include "runtime/exact_math.h"

namespace tandem {

void silu_scaled(float* __restrict v, std::size_t n, float divisor) {
  for (std::size_t i = 0; i < n; ++i) v[i] = silu_c(v[i] / divisor);
}

void silu_mul(float* __restrict gate, const float* __restrict up, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) gate[i] = silu_c(gate[i]) * up[i];
}

void hc_mix_row(const float* __restrict normed, const float* __restrict gate, std::size_t streams, std::size_t d,
                std::size_t n, float* __restrict mixed) {
  for (std::size_t j = 0; j < n; ++j) mixed[j] = 0.0F;
  for (std::size_t s = 0; s < streams; ++s)
    for (std::size_t j = 0; j < n; ++j)
      mixed[j] = __builtin_fmaf(sigmoid_c(gate[s * d + j]), normed[s * d + j], mixed[j]);
  const auto divisor = static_cast<float>(streams);
  for (std::size_t j = 0; j < n; ++j) mixed[j] = mixed[j] / divisor;
}

void axpy(float weight, const float* __restrict y, std::size_t n, float* __restrict stream) {
  for (std::size_t j = 0; j < n; ++j) stream[j] = __builtin_fmaf(weight, y[j], stream[j]);
}

void scale_by(const float* x, float inverse, const float* gamma, std::size_t n, float* y) {
  for (std::size_t j = 0; j < n; ++j) y[j] = (x[j] * inverse) * gamma[j];
}

void scale_by(const float* x, float inverse, float scale, std::size_t n, float* y) {
  for (std::size_t j = 0; j < n; ++j) y[j] = (x[j] * inverse) * scale;
}

void gate_norm(const float* o, float inverse, const float* norm, const float* z, std::size_t n, float* r) {
  for (std::size_t j = 0; j < n; ++j) r[j] = ((o[j] * inverse) * norm[j]) * sigmoid_c(z[j]);
}

void conv_tap(const float* __restrict weights, const float* __restrict x, std::size_t n, float* __restrict acc) {
  for (std::size_t c = 0; c < n; ++c) acc[c] = __builtin_fmaf(weights[c], x[c], acc[c]);
}

void silu_inplace(float* __restrict v, std::size_t n) {
  for (std::size_t c = 0; c < n; ++c) v[c] = silu_c(v[c]);
}

void scale_to(float gate, const float* __restrict value, std::size_t n, float* __restrict gv) {
  for (std::size_t j = 0; j < n; ++j) gv[j] = gate * value[j];
}

void add_two(float* __restrict x, const float* __restrict a, const float* __restrict b, std::size_t n) {
  for (std::size_t j = 0; j < n; ++j) x[j] = (x[j] + a[j]) + b[j];
}

float largest(const float* x, std::size_t n) {
  if (n < kLanes) return *std::max_element(x, x + n);
  float top[kLanes];
  std::copy_n(x, kLanes, top);
  const std::size_t whole = n / kLanes * kLanes;
  for (std::size_t i = kLanes; i < whole; i += kLanes)
    for (std::size_t l = 0; l < kLanes; ++l) top[l] = x[i + l] > top[l] ? x[i + l] : top[l];
  for (std::size_t i = whole; i < n; ++i) top[0] = std::max(top[0], x[i]);
  return *std::max_element(top, top + kLanes);
}

float exp_sum(const float* x, std::size_t n, float top, float scale) {
  const std::size_t segments = (n + kSegment - 1) / kSegment;
  std::vector<float> sums(segments * kLanes, 0.0F);
  for (std::size_t s = 0; s < segments; ++s) {
    float* const acc = sums.data() + s * kLanes;
    const float* const from = x + s * kSegment;
    const std::size_t count = std::min(kSegment, n - s * kSegment), whole = count / kLanes * kLanes;
    for (std::size_t i = 0; i < whole; i += kLanes)
      for (std::size_t l = 0; l < kLanes; ++l) acc[l] = acc[l] + exp_c((from[i + l] - top) * scale);
    for (std::size_t i = whole; i < count; ++i) acc[i - whole] = acc[i - whole] + exp_c((from[i] - top) * scale);
  }
  // Trees of all lanes at once. No sum is -0, so one that has no partner may stay as it is.
  for (std::size_t stride = 1; stride < segments; stride *= 2)
    for (std::size_t s = 0; s + stride < segments; s += 2 * stride)
      for (std::size_t l = 0; l < kLanes; ++l)
        sums[s * kLanes + l] = sums[s * kLanes + l] + sums[(s + stride) * kLanes + l];
  return tree_sum(sums.data(), kLanes);
}

}  // namespace tandem
