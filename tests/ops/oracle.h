// What the operations compute, in double precision, written from the model's formulas (docs/architecture.md) and
// independent of the code under test. Values come with a bound on what binary32 rounding may add, derived step by
// step, so that a comparison needs no tolerance of its own: |got - value| <= error, element by element.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/ops.h"

namespace tandem::oracle {

// ---- tolerances, all of them ----------------------------------------------------------------------------------------
// Rounding to nearest in binary32: relative in the normal range, absolute below it.
inline constexpr double kUnit = 0x1p-24;
inline constexpr double kTiny = 0x1p-150;
// The elementary functions of runtime/exact_math.h against the mathematical ones, relative; test_exact_math.cpp holds
// them to these over every exponent and prints what it found (in brackets). One rounding is 2^-24 = 6.0e-8.
inline constexpr double kExpError = 1.2e-7;       // the last two Horner steps (8.9e-8)
inline constexpr double kLogError = 1.85e-7;      // m + 1, the quotient, the result: 1.79e-7, and the series (1.76e-7)
inline constexpr double kSoftplusError = 4.3e-7;  // exp, log, the correction's quotient and product (2.8e-7)
// exp_c(x) for x < -87 is e^-87 instead of less, and 1 / (1 + exp_c(-x)) for x < -88 is e^-88 instead of less.
inline constexpr double kExpFloor = 1.7e-38;
inline constexpr double kSigmoidFloor = 6.1e-39;
// First-order error terms are enlarged by this much to cover products of errors.
inline constexpr double kSecondOrder = 1.001;

// A real number and how far a binary32 computation of it may be off. Every operator is one correctly rounded
// binary32 operation on operands that are off by their own errors.
struct Approx {
  double value = 0;
  double error = 0;
};
inline Approx exact(float value) {
  return {static_cast<double>(value), 0};
}
inline Approx rounded(double value, double error) {
  return {value, (error + kUnit * (std::fabs(value) + error) + kTiny) * kSecondOrder};
}
inline Approx operator+(Approx a, Approx b) {
  return rounded(a.value + b.value, a.error + b.error);
}
inline Approx operator-(Approx a, Approx b) {
  return rounded(a.value - b.value, a.error + b.error);
}
double product_error(Approx a, Approx b);  // of the exact product
inline Approx operator*(Approx a, Approx b) {
  return rounded(a.value * b.value, product_error(a, b));
}
Approx operator/(Approx a, Approx b);  // REQUIRES |b.value| > b.error
Approx fma(Approx a, Approx b, Approx c);
Approx sqrt(Approx x);  // REQUIRES x.value > x.error
Approx exp(Approx x);
Approx sigmoid(Approx x);
Approx silu(Approx x);
Approx softplus(Approx x);

// sum a_i b_i where no product passes through more than `depth` roundings: error <= depth * u * sum |a_i b_i|.
Approx dot(std::span<const Approx> a, std::span<const Approx> b, int depth);
// The depth of the contract's sum of n products: `chain` fused steps, then a tree over ceil(n / segment) partial sums
// and one over `lanes` lanes.
int tree_depth(std::size_t n, std::size_t segment, int chain, std::size_t lanes);
int float_dot_depth(std::size_t n);  // R4 for floats
std::vector<Approx> exact(std::span<const float> values);

// ---- operations, one row each (spec sections as in runtime/ops.h)
// -----------------------------------------------------
using Row = std::span<const float>;
using Values = std::vector<Approx>;

// Row n of W times the quantised row, both as real numbers.
Approx block_product(const WeightView& w, std::size_t n, const QuantRows& q, std::size_t row);
Approx float_product(const WeightView& w, std::size_t n, Row x);
Values rms_norm(const Values& x, std::size_t groups, Row gamma, float eps);
Values l2_norm(const Values& x, std::size_t dim, float eps, float scale);
// Rotates the first 2 * cos.size() values.
Values rotate(Values x, Row cos, Row sin);
Values hc_mix(Row normed, Row gate, std::size_t streams);
Values hc_write(Row x, Row y, Row inject);
// One head of the delta rule over one row: advances state [dim, dim], returns the output; u is what was written.
Values delta_step(Values& state, Row q, Row k, Row v, float decay, float beta, Values& u);
// One head of attention: keys and values are the listed rows, in order.
Values attention(Row q, const std::vector<Values>& keys, const std::vector<Values>& values, float scale, Row gate);
Values ple_gate(Row key, Row query, Row value, std::size_t streams);
// R5 for one row: hidden values, and the product with `down` where quantisation moves every hidden value by up to half
// a step.
Values ffn(const ExpertWeights& w, const Activation& row);

// ---- discrete choices, from their definitions: an entry is chosen when fewer than k others go before it
// ----------------
std::vector<std::int32_t> ranking(std::span<const double> scores, std::size_t k);
std::vector<double> block_scores(Row q, std::size_t heads, ConstRows pooled, std::size_t blocks);
std::vector<std::int32_t> attended(std::span<const double> scores, std::size_t visible, std::size_t ratio,
                                   std::size_t blocks);

}  // namespace tandem::oracle
