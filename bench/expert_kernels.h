// The CPU kernels that stream expert matrices, under one interface: one entry per instruction set of the tile kernels,
// and the row-decoding kernel that runs on the file's own layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cpu/kernels/tile_kernels.h"
#include "runtime/quant.h"

namespace tandem::bench {

// A weight matrix [rows, cols] of one type, in the layout of a kernel.
struct MatrixShape {
  DType type = DType::F32;
  std::size_t rows = 0, cols = 0;
  std::size_t file_bytes() const { return rows * row_bytes(type, cols); }
};

// Quantised activation rows [count, cols], the same for one seed.
struct ActivationRows {
  ActivationRows(std::size_t count, std::size_t cols, std::uint64_t seed);
  std::size_t count, cols;
  std::vector<std::int8_t> q;
  std::vector<float> d;
  std::vector<std::int32_t> s;
};

class ExpertKernel {
 public:
  // All kernels that this processor can run: "row", then the tile instruction sets by name.
  static std::vector<ExpertKernel> all();

  const std::string& name() const { return name_; }
  bool supports(DType type) const;
  bool packs() const { return isa_.has_value(); }  // its matrices are packed tiles, else those of the file

  std::size_t bytes(const MatrixShape& shape) const;  // of one matrix in the kernel's layout
  void pack(const MatrixShape& shape, const std::uint8_t* file, std::uint8_t* out) const;

  // y[r][n] = row n of the matrix times activation row r, for r < width; y is [width, rows].
  // REQUIRES supports(shape.type), width <= x.count, x.cols == shape.cols.
  void multiply(const MatrixShape& shape, const std::uint8_t* matrix, const ActivationRows& x, std::size_t width,
                float* y) const;

 private:
  ExpertKernel(std::string name, std::optional<TileIsa> isa) : name_(std::move(name)), isa_(isa) {}
  std::string name_;
  std::optional<TileIsa> isa_;
};

// Compares y of multiply() with the scalar reference, bit for bit, on some 40 rows that include the first and the last
// and one of every position in a tile. Returns what is wrong, or nothing.
std::optional<std::string> find_wrong_row(const MatrixShape& shape, const std::uint8_t* file, const ActivationRows& x,
                                          std::size_t width, const float* y);

}  // namespace tandem::bench
