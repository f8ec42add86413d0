// Arrays that notice what a kernel should not do: write outside its rows, read outside them (the guards are NaN, so a
// stray read shows in the result), leave an element unwritten, or change an input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "runtime/ops.h"

namespace tandem::testing {

class GuardedArray {
 public:
  virtual ~GuardedArray() = default;
  virtual std::size_t rows() const = 0;
  virtual std::span<const std::uint8_t> row_bytes(std::size_t r) const = 0;
  virtual bool guards_intact() const = 0;
  virtual bool holds_nan() const = 0;
};

// [rows, cols] with `gap` guard elements between the rows and an odd number of them before the first.
template <typename T>
class Guarded final : public GuardedArray {
 public:
  Guarded(std::size_t rows, std::size_t cols, std::size_t gap = 0)
      : rows_(rows), cols_(cols), stride_(cols + gap), cells_(2 * kEdge + rows * stride_, guard()) {}

  T* data() { return cells_.data() + kEdge; }
  const T* data() const { return cells_.data() + kEdge; }
  T* row(std::size_t r) { return data() + r * stride_; }
  const T* row(std::size_t r) const { return data() + r * stride_; }
  std::size_t cols() const { return cols_; }
  std::size_t stride() const { return stride_; }

  template <typename Make>
  Guarded& fill(Make make) {
    for (std::size_t r = 0; r < rows_; ++r)
      for (std::size_t c = 0; c < cols_; ++c) row(r)[c] = static_cast<T>(make());
    return *this;
  }

  std::size_t rows() const override { return rows_; }
  std::span<const std::uint8_t> row_bytes(std::size_t r) const override {
    return {reinterpret_cast<const std::uint8_t*>(row(r)), cols_ * sizeof(T)};
  }
  bool guards_intact() const override {
    const T expected = guard();
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      const bool inside = i >= kEdge && i < kEdge + rows_ * stride_ && (i - kEdge) % stride_ < cols_;
      if (!inside && std::memcmp(&cells_[i], &expected, sizeof(T)) != 0) return false;
    }
    return true;
  }
  bool holds_nan() const override {
    if constexpr (std::is_same_v<T, float>) {
      for (std::size_t r = 0; r < rows_; ++r)
        for (std::size_t c = 0; c < cols_; ++c)
          if (row(r)[c] != row(r)[c]) return true;
    }
    return false;
  }

 private:
  // Odd, so that rows are aligned to their element and to nothing more.
  static constexpr std::size_t kEdge = 33;

  // NaN as a float and as a half; a value that no operation writes as an integer.
  static T guard() {
    if constexpr (std::is_same_v<T, float>) {
      const std::uint32_t bits = 0x7FE5A5A5;
      float value;
      std::memcpy(&value, &bits, sizeof value);
      return value;
    } else {
      constexpr std::uint32_t kBits = sizeof(T) == 1 ? 0x80 : sizeof(T) == 2 ? 0x7EA5 : 0xA5A5A5A5;
      return static_cast<T>(kBits);
    }
  }

  std::size_t rows_, cols_, stride_;
  std::vector<T> cells_;
};

using Floats = Guarded<float>;

inline Rows rows_of(Floats& array) {
  return {array.data(), array.rows(), array.cols(), array.stride()};
}
inline ConstRows rows_of(const Floats& array) {
  return {array.data(), array.rows(), array.cols(), array.stride()};
}
inline ConstRows rows_of(const Floats& array, std::size_t first, std::size_t count) {
  return rows_of(array).slice(first, count);
}

// The three arrays of quantised rows.
struct QuantArrays {
  Guarded<std::int8_t>& q;
  Guarded<float>& d;
  Guarded<std::int32_t>& s;
  QuantRows rows() const { return {q.data(), d.data(), s.data(), q.rows(), q.cols()}; }
};

// Quantised rows of their own.
struct OwnedQuant {
  OwnedQuant(std::size_t rows, std::size_t cols) : q(rows, cols), d(rows, cols / 32), s(rows, cols / 16) {}
  QuantRows rows() { return {q.data(), d.data(), s.data(), q.rows(), q.cols()}; }

  Guarded<std::int8_t> q;
  Guarded<float> d;
  Guarded<std::int32_t> s;
};

}  // namespace tandem::testing
