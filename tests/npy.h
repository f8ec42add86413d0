// Reads NumPy arrays: .npy files and uncompressed .npz archives. float64 and float32 become double, integers int64.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace tandem::testing {

struct NpyArray {
  std::vector<std::size_t> shape;
  std::vector<double> values;  // any type; integers up to 2^53 are exact
  std::size_t size() const { return values.size(); }
  std::size_t cols() const { return shape.empty() ? 1 : shape.back(); }
  std::size_t rows() const { return cols() == 0 ? 0 : size() / cols(); }
  const double* row(std::size_t r) const { return values.data() + r * cols(); }
};

NpyArray load_npy(const std::filesystem::path& path);
std::map<std::string, NpyArray> load_npz(const std::filesystem::path& path);  // by member name without ".npy"

}  // namespace tandem::testing
