// The CPU machine with every product in float: block formats are dequantised and met by unquantised activations. What
// it computes differs from an outside float32 reference by float rounding only, so it pins the structure of the model
// to goldens at 1e-5; the effect of int8 activations is then judged on its own (docs/testing.md).
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "cpu/cpu_ops.h"

namespace tandem::testing {

class FloatOps : public CpuOps {
 public:
  explicit FloatOps(int workers) : CpuOps(workers) {}
  std::string describe() const override { return "CPU, float products"; }

  void matmul(const WeightView& w, const Activation& a, Rows y) override {
    CpuOps::matmul(plain(w), Activation{a.x, {}}, y);
  }
  void ffn(const ExpertWeights& w, const Activation& a, Rows y) override {
    CpuOps::ffn({plain(w.gate), plain(w.up), plain(w.down)}, Activation{a.x, {}}, y);
  }
  void expert_ffn(const ExpertBank& bank, const Routes& routes, const Activation& a, Rows y) override {
    for (std::size_t r = 0; r < routes.rows; ++r)
      for (std::size_t k = 0; k < routes.used; ++k)
        ffn(bank.expert(routes.expert[r * routes.used + k]), a.row(r), y.slice(r * routes.used + k, 1));
  }

 private:
  WeightView plain(const WeightView& w) {
    if (dtype_info(w.type).kind == DTypeKind::kFloat) return w;
    std::vector<float>& values = cache_[w.data];
    if (values.empty()) {
      values.resize(w.rows * w.cols);
      for (std::size_t r = 0; r < w.rows; ++r) dequantize_row(w.type, w.row(r), w.cols, values.data() + r * w.cols);
    }
    WeightView view = w;
    view.type = DType::F32;
    view.data = reinterpret_cast<const std::uint8_t*>(values.data());
    return view;
  }
  std::map<const std::uint8_t*, std::vector<float>> cache_;
};

}  // namespace tandem::testing
