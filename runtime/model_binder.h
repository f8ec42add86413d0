// Binds the tensors of one file set to the fields of the table (runtime/model_tensors.h): each once, with exact shape
// and an allowed type.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/gguf.h"
#include "runtime/model_tensors.h"

namespace tandem {

class ModelBinder final : public TensorVisitor {
 public:
  // `advice` ends the message about a missing tensor: what a user can do. The directory must outlive the views.
  ModelBinder(const Gguf& gguf, std::string advice);

  bool has(std::string_view name) const override;
  // Both throw InputError: tensor missing, wrong shape (foreign layouts by name), a type that cannot be used.
  void tensor(const TensorSpec& spec, WeightView& field) override;
  void bank(const TensorSpec& spec, WeightView& expert0, std::size_t& stride, const float*& scales) override;

  struct Bound {
    TensorSpec spec;
    const GgufTensor* tensor;
  };
  const std::vector<Bound>& bound() const { return bound_; }
  void set_advice(std::string advice) { advice_ = std::move(advice); }

  // Tensors of the directory that nothing bound, without those that are known to be of no use here (activation scales)
  // and without block `skip_block` (-1: none).
  std::vector<std::string_view> unused(int skip_block) const;

 private:
  const GgufTensor& take(const TensorSpec& spec);
  void check_shape(const TensorSpec& spec, const GgufTensor& tensor) const;
  void check_type(const TensorSpec& spec, const GgufTensor& tensor) const;
  const GgufTensor* take_scale(const TensorSpec& spec);
  [[noreturn]] void fail_missing(const TensorSpec& spec) const;

  const Gguf& gguf_;
  std::string advice_;
  std::vector<Bound> bound_;
  std::vector<bool> used_;  // by index in gguf_.tensors()
};

}  // namespace tandem
