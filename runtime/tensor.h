// Non-owning views of host memory. Every offset is size_t.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "placement/check.h"
#include "runtime/quant.h"

namespace tandem {

// A weight matrix [rows, cols], y = W x, as it lies in the (mapped) file: rows of row_bytes(type, cols) bytes, one
// after the other. A vector is a matrix with one row. `scale` multiplies every product and every row that is looked up
// (NVFP4 files), otherwise 1.
struct WeightView {
  const std::uint8_t* data = nullptr;
  DType type = DType::F32;
  std::size_t rows = 0;
  std::size_t cols = 0;
  float scale = 1.0F;
  std::string_view name;  // the tensor's name in the file, for messages

  explicit operator bool() const { return data != nullptr; }
  std::size_t row_size() const { return row_bytes(type, cols); }
  std::size_t bytes() const { return rows * row_size(); }
  const std::uint8_t* row(std::size_t r) const { return data + r * row_size(); }
  // Row r as floats, times the scale.
  void read_row(std::size_t r, float* out) const {
    dequantize_row(type, row(r), cols, out);
    if (scale == 1.0F) return;
    for (std::size_t i = 0; i < cols; ++i) out[i] = out[i] * scale;
  }
  // Rows first .. first + count - 1 as a matrix of their own (one expert of a bank, a half of a fused pair).
  WeightView slice(std::size_t first, std::size_t count) const {
    DCHECK(first + count <= rows);
    WeightView view = *this;
    view.data = row(first);
    view.rows = count;
    return view;
  }
};

// A [rows, cols] float array, row-major, rows `stride` floats apart.
template <typename T>
struct RowsOf {
  T* data = nullptr;
  std::size_t rows = 0;
  std::size_t cols = 0;
  std::size_t stride = 0;

  RowsOf() = default;
  RowsOf(T* data_, std::size_t rows_, std::size_t cols_) : data(data_), rows(rows_), cols(cols_), stride(cols_) {}
  RowsOf(T* data_, std::size_t rows_, std::size_t cols_, std::size_t stride_)
      : data(data_), rows(rows_), cols(cols_), stride(stride_) {}
  template <typename U>
  requires std::is_same_v<const U, T> RowsOf(const RowsOf<U>& other)
      : data(other.data), rows(other.rows), cols(other.cols), stride(other.stride) {}

  explicit operator bool() const { return data != nullptr; }
  T* row(std::size_t r) const {
    DCHECK(r < rows);
    return data + r * stride;
  }
  std::span<T> span(std::size_t r) const { return {row(r), cols}; }
  RowsOf slice(std::size_t first, std::size_t count) const {
    DCHECK(first + count <= rows);
    return RowsOf(data + first * stride, count, cols, stride);
  }
};
using Rows = RowsOf<float>;
using ConstRows = RowsOf<const float>;

}  // namespace tandem
