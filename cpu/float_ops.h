// The reference machine of `tandem eval --reference`: the fast CPU machine with every product in unquantised float32.
#pragma once

#include <memory>
#include <string>

#include "cpu/cpu_ops.h"

namespace tandem {

// Activations stay float (R2 is not applied), weights are dequantised exactly as dequantize_row does, and OpenBLAS
// multiplies. What comes out differs from an outside float32 implementation by rounding only, so it tells what the
// integer products cost. It is no twin of the other machines: OpenBLAS chooses its order of summation by processor and
// shape, so neither R4 nor row purity holds, and results of different chunk sizes or machines agree to rounding only.
//
// Nothing is kept between calls: a strip of weight rows is dequantised into a buffer of the worker (2 MiB), multiplied
// and overwritten. Everything but the products is CpuOps.
class FloatOps : public CpuOps {
 public:
  // Workers as in CpuOps. Throws InputError for an OpenBLAS that they cannot share.
  explicit FloatOps(int workers);
  std::string describe() const override;

  LoadedModel load(const Model& model, const LoadOptions& options) override;  // packs nothing
  // The quantised half of an Activation is not read and may be empty.
  void matmul(const WeightView& w, const Activation& a, Rows y) override;
  void matmuls(std::span<const Product> products, const Activation& a) override { Ops::matmuls(products, a); }
  void expert_ffn(const ExpertBank& bank, const Routes& routes, const Activation& a, Rows y) override;
  void ffn(const ExpertWeights& weights, const Activation& a, Rows y) override;
};

std::unique_ptr<Ops> make_float_ops(int workers);

// Throws InputError when several workers would call the sequential variant of OpenBLAS. openblas_parallel: what
// openblas_get_parallel() says of the library that was loaded.
void require_concurrent_blas(int openblas_parallel, int workers);

}  // namespace tandem
