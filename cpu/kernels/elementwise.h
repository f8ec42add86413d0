// Implements: the elementwise operations of one row, written as flat loops that the compiler turns into vector code
// with the same bits (every step is a plain or an explicitly fused binary32 operation).
#pragma once

#include <cstddef>

namespace tandem {

// v = silu(v / divisor).
void silu_scaled(float* v, std::size_t n, float divisor);
// gate = silu(gate) * up.
void silu_mul(float* gate, const float* up, std::size_t n);
// mixed[j] = (sum_s sigmoid(gate[s*d+j]) * normed[s*d+j]) / streams for j < n.
void hc_mix_row(const float* normed, const float* gate, std::size_t streams, std::size_t d, std::size_t n,
                float* mixed);
// stream = fma(weight, y, stream).
void axpy(float weight, const float* y, std::size_t n, float* stream);
// y = (x * inverse) * gamma, and y = (x * inverse) * scale.
void scale_by(const float* x, float inverse, const float* gamma, std::size_t n, float* y);
void scale_by(const float* x, float inverse, float scale, std::size_t n, float* y);
// r = ((o * inverse) * norm) * sigmoid(z).
void gate_norm(const float* o, float inverse, const float* norm, const float* z, std::size_t n, float* r);
// acc[c] = fma(weights[c], x[c], acc[c]); finish: acc = silu(acc).
void conv_tap(const float* weights, const float* x, std::size_t n, float* acc);
void silu_inplace(float* v, std::size_t n);
// gv = gate * value.
void scale_to(float gate, const float* value, std::size_t n, float* gv);
// x = (x + a) + b.
void add_two(float* x, const float* a, const float* b, std::size_t n);
// The largest of x, and sum_i exp((x_i - top) * scale) by R4 for floats. REQUIRES n > 0, no NaN.
float largest(const float* x, std::size_t n);
float exp_sum(const float* x, std::size_t n, float top, float scale);

}  // namespace tandem
