// What the tests of the card's products share: packed matrices, quantised rows and results that can be compared.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "cpu/reference_ops.h"
#include "gpu/kernels/tile_product.h"
#include "runtime/packed_matrix.h"
#include "tests/gpu/gpu_test.h"
#include "tests/ops/cases.h"

namespace tandem::testing {

inline constexpr DType kTileTypes[] = {
    DType::Q4_0,    DType::Q4_1,   DType::Q5_0,  DType::Q5_1,    DType::Q8_0,   DType::Q2_0,   DType::Q2_K,
    DType::Q3_K,    DType::Q4_K,   DType::Q5_K,  DType::Q6_K,    DType::IQ4_NL, DType::IQ4_XS, DType::MXFP4,
    DType::IQ2_XXS, DType::IQ2_XS, DType::IQ2_S, DType::IQ3_XXS, DType::IQ3_S,  DType::IQ1_S,  DType::IQ1_M};

// Rows of activations, quantised by the reference, on both sides.
struct QuantCase {
  std::vector<float> x;
  std::vector<std::int8_t> q;
  std::vector<float> d;
  std::vector<std::int32_t> s;
  std::size_t rows, cols;
  DeviceBuffer<std::int8_t> device_q;
  DeviceBuffer<float> device_d;
  DeviceBuffer<std::int32_t> device_s;

  // values(row) says what a row is made of.
  template <typename ValuesOf>
  QuantCase(std::size_t rows_, std::size_t cols_, Random& random, ValuesOf&& values)
      : x(rows_ * cols_), q(rows_ * cols_), d(rows_ * cols_ / 32), s(rows_ * cols_ / 16), rows(rows_), cols(cols_) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = draw(random, values(i / cols));
    EXPECT_EQ(ReferenceOps().quantize(ConstRows(x.data(), rows, cols), {q.data(), d.data(), s.data(), rows, cols}), -1);
    device_q = on_device(q);
    device_d = on_device(d);
    device_s = on_device(s);
  }
  Activation host() { return {ConstRows(x.data(), rows, cols), QuantRows{q.data(), d.data(), s.data(), rows, cols}}; }
  DeviceQuant device() const { return {device_q.get(), device_d.get(), device_s.get()}; }
};

inline std::vector<float> drawn(Random& random, std::size_t n, Values values = Values::kNormal) {
  std::vector<float> x(n);
  for (float& v : x) v = draw(random, values);
  return x;
}

inline bool same_bits(float a, float b) {
  return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b));
}

// "" or the first difference between rows of `cols` values, `stride` apart, with both values in hexadecimal; also that
// nothing was written between the rows, where found holds `guard`.
inline std::string first_difference(const float* expected, std::size_t rows, std::size_t cols, const float* found,
                                    std::size_t stride, float guard) {
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < cols; ++c) {
      const float e = expected[r * cols + c], f = found[r * stride + c];
      if (!same_bits(e, f)) {
        std::uint32_t e_bits, f_bits;
        std::memcpy(&e_bits, &e, 4);
        std::memcpy(&f_bits, &f, 4);
        return fmt::format("row {} column {}: {} ({:08x}) for {} ({:08x})", r, c, f, f_bits, e, e_bits);
      }
    }
    for (std::size_t c = cols; c < stride; ++c)
      if (!same_bits(found[r * stride + c], guard)) return fmt::format("row {}: written past its end", r);
  }
  return "";
}

inline ParallelFor in_order() {
  return [](std::size_t n, const std::function<void(std::size_t)>& body) {
    for (std::size_t i = 0; i < n; ++i) body(i);
  };
}

inline constexpr float kGuard = 12345.0F;  // behind results

// An array that a launch changes: on both sides, with a guard behind it on the card.
struct Changed {
  std::vector<float> host;
  DeviceBuffer<float> card;

  explicit Changed(std::vector<float> start) : host(std::move(start)), card(host.size() + 7) {
    std::vector<float> guarded = host;
    guarded.resize(card.size(), kGuard);
    card.upload(guarded.data());
  }
  std::string difference(std::size_t cols) const {
    std::vector<float> found(card.size());
    card.download(found.data());
    for (std::size_t i = host.size(); i < found.size(); ++i)
      if (found[i] != kGuard) return "written past the end";
    return first_difference(host.data(), host.size() / cols, cols, found.data(), cols, kGuard);
  }
};

}  // namespace tandem::testing
