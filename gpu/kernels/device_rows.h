// Arguments of the launch functions: arrays in the card's memory. Plain C++, and nothing but the standard library, so
// that both compilers read it (nvcc does not compile {fmt}, which runtime/tensor.h brings).
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

struct CUstream_st;

namespace tandem {

// A [rows, cols] array on the card, row-major, rows `stride` elements apart. Made from runtime/tensor.h's RowsOf as it
// is: the same fields, the same meaning.
template <typename T>
struct DeviceRowsOf {
  T* data = nullptr;
  std::size_t rows = 0;
  std::size_t cols = 0;
  std::size_t stride = 0;

  DeviceRowsOf() = default;
  DeviceRowsOf(T* data_, std::size_t rows_, std::size_t cols_) : data(data_), rows(rows_), cols(cols_), stride(cols_) {}
  DeviceRowsOf(T* data_, std::size_t rows_, std::size_t cols_, std::size_t stride_)
      : data(data_), rows(rows_), cols(cols_), stride(stride_) {}
  template <typename Other>
  requires(std::is_convertible_v<decltype(Other::data), T*>)
      DeviceRowsOf(const Other& other)  // NOLINT: a view of the same rows
      : data(other.data), rows(other.rows), cols(other.cols), stride(other.stride) {}

  explicit operator bool() const { return data != nullptr; }
};
using DeviceRows = DeviceRowsOf<float>;
using ConstDeviceRows = DeviceRowsOf<const float>;

// cudaStream_t, without its header.
using DeviceStream = CUstream_st*;

// A scalar that changes from round to round, in the card's memory, so that a captured graph stays valid.
using DeviceCount = const std::int32_t*;

// The positions that each row attends to, as runtime/ops.h has them, on the card.
struct DeviceLists {
  std::int32_t* positions = nullptr;  // [rows, stride]
  std::int32_t* count = nullptr;      // [rows]
  std::size_t rows = 0;
  std::size_t stride = 0;
};

}  // namespace tandem
