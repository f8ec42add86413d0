// Implements: the float dot product (R4 for floats) and Ops::matmul for float formats, AVX2.
#pragma once

#include <cstddef>

#include "runtime/tensor.h"

namespace tandem {

// The bits of dot_float_ref. REQUIRES n <= 65,536.
float dot_float(const float* a, const float* b, std::size_t n);

// y.row(r)[n] = dot(W.row(n), x.row(r)) * W.scale for weight rows first <= n < last.
void matmul_float_rows(const WeightView& w, std::size_t first, std::size_t last, ConstRows x, Rows y);

}  // namespace tandem
