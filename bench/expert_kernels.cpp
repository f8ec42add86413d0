#include "bench/expert_kernels.h"

#include <algorithm>
#include <cstring>

#include "bench/noise.h"
#include "cpu/kernels/dot_block.h"
#include "cpu/reference_dot.h"
#include "placement/check.h"
#include "runtime/tile.h"

namespace tandem::bench {

ActivationRows::ActivationRows(std::size_t count_, std::size_t cols_, std::uint64_t seed)
    : count(count_), cols(cols_), q(count * cols), d(count * cols / 32), s(count * cols / 16) {
  Draws draws(seed);
  std::vector<float> x(cols);
  for (std::size_t r = 0; r < count; ++r) {
    for (float& v : x) v = static_cast<float>(draws.normal());
    CHECK(
        quantize_row_ref(x.data(), cols, q.data() + r * cols, d.data() + r * (cols / 32), s.data() + r * (cols / 16)));
  }
}

std::vector<ExpertKernel> ExpertKernel::all() {
  std::vector<ExpertKernel> kernels{ExpertKernel("row", std::nullopt)};
  for (const TileIsa isa : kAllTileIsas)
    if (tile_isa_supported(isa)) kernels.push_back(ExpertKernel(std::string(tile_isa_name(isa)), isa));
  return kernels;
}

bool ExpertKernel::supports(DType type) const {
  if (dtype_info(type).kind != DTypeKind::kBlock) return false;
  return !isa_ || (has_tile_layout(type) && tile_function(*isa_, type) != nullptr);
}

std::size_t ExpertKernel::bytes(const MatrixShape& shape) const {
  return isa_ ? packed_bytes(shape.type, shape.rows, shape.cols) : shape.file_bytes();
}

void ExpertKernel::pack(const MatrixShape& shape, const std::uint8_t* file, std::uint8_t* out) const {
  if (!isa_) {
    std::memcpy(out, file, shape.file_bytes());
    return;
  }
  const std::size_t row = row_bytes(shape.type, shape.cols), tile = tile_bytes(shape.type, shape.cols);
  for (std::size_t first = 0; first < shape.rows; first += kTileRows)
    pack_tile(shape.type, file + first * row, std::min(kTileRows, shape.rows - first), shape.cols,
              out + first / kTileRows * tile);
}

void ExpertKernel::multiply(const MatrixShape& shape, const std::uint8_t* matrix, const ActivationRows& x,
                            std::size_t width, float* y) const {
  constexpr std::size_t kMostRows = 16;
  CHECK(width > 0 && width <= std::min(kMostRows, x.count) && x.cols == shape.cols, "{} rows of {}", width, x.cols);
  TileJob jobs[kMostRows];
  const auto set_jobs = [&](std::size_t first) {
    for (std::size_t r = 0; r < width; ++r)
      jobs[r] = {&x.q[r * x.cols], &x.d[r * (x.cols / 32)], &x.s[r * (x.cols / 16)], y + r * shape.rows + first};
  };
  if (!isa_) {
    WeightView view;
    view.data = matrix;
    view.type = shape.type;
    view.rows = shape.rows;
    view.cols = shape.cols;
    set_jobs(0);
    matmul_block_rows(view, 0, shape.rows, jobs, width);
    return;
  }
  const TileFunction function = tile_function(*isa_, shape.type);
  const std::size_t tile = tile_bytes(shape.type, shape.cols);
  for (std::size_t first = 0; first < shape.rows; first += kTileRows) {
    set_jobs(first);
    function(matrix + first / kTileRows * tile, shape.cols, jobs, width, std::min(kTileRows, shape.rows - first), 1.0F);
  }
}

std::optional<std::string> find_wrong_row(const MatrixShape& shape, const std::uint8_t* file, const ActivationRows& x,
                                          std::size_t width, const float* y) {
  constexpr std::size_t kSample = 40;
  // Steps of an odd number reach every position of a tile.
  const std::size_t step = std::max<std::size_t>(1, shape.rows / kSample) | 1U;
  std::vector<std::size_t> rows;
  for (std::size_t n = 0; n < shape.rows; n += step) rows.push_back(n);
  rows.push_back(shape.rows - 1);
  for (const std::size_t n : rows)
    for (std::size_t r = 0; r < width; ++r) {
      const float expected = dot_block_ref(shape.type, file + n * row_bytes(shape.type, shape.cols), shape.cols,
                                           &x.q[r * x.cols], &x.d[r * (x.cols / 32)], &x.s[r * (x.cols / 16)]);
      const float found = y[r * shape.rows + n];
      if (std::memcmp(&expected, &found, sizeof found) != 0)
        return fmt::format("weight row {}, activation row {}: expected {}, found {}", n, r, expected, found);
    }
  return std::nullopt;
}

}  // namespace tandem::bench
