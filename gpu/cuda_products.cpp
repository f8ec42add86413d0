// CudaOps: products, and the quantised rows that they take.
#include <algorithm>
#include <array>

#include "gpu/cuda_ops.h"
#include "gpu/kernels/float_matmul.h"
#include "gpu/kernels/quantize.h"
#include "gpu/kernels/tile_gemm.h"

namespace tandem {

std::int64_t CudaOps::quantize(ConstRows x, QuantRows q) {
  const Quantized done = quantized_;
  quantized_ = {};
  if (done.x == x.data && done.q == q.q && done.rows == x.rows && done.cols == x.cols && x.stride == x.cols) {
    now_.flags[done.flag] = {stage_, layer_, part_first_};
    return -1;
  }
  launch_quantize(x.data, x.stride, x.rows, x.cols, q.q, q.d, q.s, next_flag(), stream_);
  return -1;
}

DeviceTiles CudaOps::tiles(const WeightView& w) const {
  return {w.type, weights_.data(w), w.rows, w.cols, w.scale};
}

void CudaOps::matmul(const WeightView& w, const Activation& a, Rows y) {
  CHECK(y.cols == w.rows && y.rows == a.x.rows && w.cols == a.x.cols, "{}: [{}, {}] times [{}, {}] into [{}, {}]",
        w.name, w.rows, w.cols, a.x.rows, a.x.cols, y.rows, y.cols);
  if (dtype_info(w.type).kind == DTypeKind::kFloat)
    return gpu::float_matmul(float_type(w.type), weights_.data(w), w.rows, w.scale, a.x, y, stream_);
  const TileMatmul product{tiles(w), y.data, y.stride};
  if (y.rows >= kGemmMinRows)
    return launch_tile_gemm(&product, 1, {a.q.q, a.q.d, a.q.s}, y.rows, stream_,
                            static_cast<float*>(scratch(kGemmSplitBytes)), kGemmSplitBytes);
  launch_tile_matmuls(&product, 1, {a.q.q, a.q.d, a.q.s}, y.rows, stream_);
}

// Products of one type and kind.
void CudaOps::product_group(std::span<const Product> group, const Activation& a, DeviceStream stream) {
  for (const Product& product : group)
    CHECK(product.y.cols == product.w.rows && product.y.rows == a.x.rows && product.w.cols == a.x.cols,
          "{}: [{}, {}] times [{}, {}] into [{}, {}]", product.w.name, product.w.rows, product.w.cols, a.x.rows,
          a.x.cols, product.y.rows, product.y.cols);
  const DType type = group[0].w.type;
  if (dtype_info(type).kind == DTypeKind::kFloat) {
    std::array<gpu::FloatMatmul, gpu::kMaxFloatMatrices> list;
    for (std::size_t i = 0; i < group.size(); ++i)
      list[i] = {weights_.data(group[i].w), group[i].w.rows, group[i].w.scale, group[i].y};
    return gpu::float_matmuls(float_type(type), list.data(), group.size(), a.x, stream);
  }
  std::array<TileMatmul, kMaxTileMatrices> list;
  for (std::size_t i = 0; i < group.size(); ++i) list[i] = {tiles(group[i].w), group[i].y.data, group[i].y.stride};
  launch_tile_matmuls(list.data(), group.size(), {a.q.q, a.q.d, a.q.s}, a.x.rows, stream);
}

// One launch for the matrices of a type; the largest on the main stream, the others beside it.
void CudaOps::matmuls(std::span<const Product> products, const Activation& a) {
  static_assert(kMaxTileMatrices == gpu::kMaxFloatMatrices);
  struct Group {
    std::vector<Product> list;
    std::size_t bytes = 0;
  };
  std::vector<Group> groups;
  for (const Product& product : products) {
    const auto fits = [&](const Group& group) {
      return group.list[0].w.type == product.w.type && group.list.size() < kMaxTileMatrices;
    };
    auto found = std::find_if(groups.begin(), groups.end(), fits);
    if (found == groups.end()) found = groups.emplace(groups.end());
    found->list.push_back(product);
    found->bytes += product.w.bytes();
  }
  std::stable_sort(groups.begin(), groups.end(), [](const Group& x, const Group& y) { return x.bytes > y.bytes; });
  const bool beside = groups.size() > 1;
  const DeviceStream side = beside ? sides_.fork(kProducts) : stream_;
  for (std::size_t i = 0; i < groups.size(); ++i) product_group(groups[i].list, a, i == 0 ? stream_ : side);
  if (beside) sides_.join(kProducts);
}

}  // namespace tandem
