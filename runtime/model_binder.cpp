#include "runtime/model_binder.h"

#include <algorithm>
#include <cstdint>

#include "placement/check.h"
#include "runtime/model_shape.h"

namespace tandem {
namespace {

float read_float(const GgufTensor& tensor) {
  float value = 0.0F;
  dequantize_row(tensor.type, tensor.data, 1, &value);
  return value;
}

std::int64_t elements(const GgufTensor& tensor) {
  return tensor.ne[0] * tensor.ne[1] * tensor.ne[2] * tensor.ne[3];
}

// Files of one other runtime pad the rows of the down matrices to a whole number of 256-blocks.
bool is_padded_down(const TensorSpec& spec, const GgufTensor& tensor) {
  const std::int64_t padded = (spec.ne[0] + 255) / 256 * 256;
  return spec.role == TensorRole::kExpertDown && padded != spec.ne[0] && tensor.ne[0] == padded;
}

}  // namespace

ModelBinder::ModelBinder(const Gguf& gguf, std::string advice)
    : gguf_(gguf), advice_(std::move(advice)), used_(gguf.tensors().size(), false) {}

bool ModelBinder::has(std::string_view name) const {
  return gguf_.find_tensor(name) != nullptr;
}

void ModelBinder::fail_missing(const TensorSpec& spec) const {
  const bool other_names = spec.mtp && std::any_of(gguf_.tensors().begin(), gguf_.tensors().end(),
                                                   [](const GgufTensor& t) { return t.name.starts_with("mtp."); });
  fail_input("{}: {}: expected a tensor of shape {}, found no tensor of this name{}. Fix: {}.", gguf_.name(), spec.name,
             shape_text(spec.ne, spec.n_dims),
             other_names ? " (the draft tensors are named mtp.*, a layout that is not supported)" : "", advice_);
}

void ModelBinder::check_shape(const TensorSpec& spec, const GgufTensor& tensor) const {
  if (tensor.ne == spec.ne) return;
  const std::string expected = shape_text(spec.ne, spec.n_dims);
  const std::string found = shape_text(tensor.ne, tensor.n_dims);
  if (is_padded_down(spec, tensor)) {
    fail_input(
        "{}: {}: expected shape {}, found {}: rows padded from {} to {} are the ds4 layout, which other runtimes "
        "cannot read. Fix: use a GGUF in the llama.cpp layout.",
        gguf_.name(), spec.name, expected, found, spec.ne[0], tensor.ne[0]);
  }
  fail_input("{}: {}: expected shape {}, found {}. Fix: {}.", gguf_.name(), spec.name, expected, found,
             spec.mtp ? advice_ : "the metadata and the tensors do not belong together; use another conversion");
}

void ModelBinder::check_type(const TensorSpec& spec, const GgufTensor& tensor) const {
  const DTypeKind kind = dtype_info(tensor.type).kind;
  const bool any = spec.form == TensorForm::kMatrix || spec.form == TensorForm::kBank;
  if (kind == DTypeKind::kStorage || (!any && kind != DTypeKind::kFloat)) {
    fail_input("{}: {}: expected {}, found type {}. Fix: use a conversion that keeps this tensor in {}.", gguf_.name(),
               spec.name, any ? "a float or block-quantised type" : "a float type (F32, F16 or BF16)",
               dtype_name(tensor.type), any ? "such a type" : "F32");
  }
  const std::size_t align = kind == DTypeKind::kFloat ? dtype_info(tensor.type).block_bytes : 1;
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % align != 0) {
    fail_input(
        "{}: {}: expected data aligned to {} bytes, found offset {} (general.alignment is too small). Fix: "
        "convert the file again with the default alignment of 32.",
        gguf_.name(), spec.name, align, tensor.offset);
  }
}

const GgufTensor& ModelBinder::take(const TensorSpec& spec) {
  const GgufTensor* tensor = gguf_.find_tensor(spec.name);
  if (tensor == nullptr) fail_missing(spec);
  check_shape(spec, *tensor);
  check_type(spec, *tensor);
  const auto index = static_cast<std::size_t>(tensor - gguf_.tensors().data());
  CHECK(index < used_.size() && !used_[index], "{} is bound twice", spec.name);
  used_[index] = true;
  bound_.push_back({spec, tensor});
  return *tensor;
}

// The scale of a quantised matrix that is kept beside it: one float, or one per expert of a bank.
const GgufTensor* ModelBinder::take_scale(const TensorSpec& spec) {
  for (const std::string& name : scale_names(spec.name)) {
    const GgufTensor* scale = gguf_.find_tensor(name);
    if (scale == nullptr) continue;
    const std::int64_t n = elements(*scale);
    const bool per_expert = spec.form == TensorForm::kBank && n == spec.ne[2] && n == scale->ne[0];
    const bool usable =
        n == 1 ? dtype_info(scale->type).kind == DTypeKind::kFloat : per_expert && scale->type == DType::F32;
    if (!usable) {
      fail_input("{}: {}: expected 1 float{}, found shape {} of type {}. Fix: use another conversion.", gguf_.name(),
                 name, spec.form == TensorForm::kBank ? fmt::format(" or {} F32 values", spec.ne[2]) : "",
                 shape_text(scale->ne, scale->n_dims), dtype_name(scale->type));
    }
    TensorSpec scale_spec = spec;
    scale_spec.name = name;
    scale_spec.ne = {n, 1, 1, 1};
    scale_spec.n_dims = 1;
    scale_spec.form = TensorForm::kVector;
    return &take(scale_spec);
  }
  return nullptr;
}

void ModelBinder::tensor(const TensorSpec& spec, WeightView& field) {
  const GgufTensor& tensor = take(spec);
  field.data = tensor.data;
  field.type = tensor.type;
  field.rows = static_cast<std::size_t>(spec.ne[1]);
  field.cols = static_cast<std::size_t>(spec.ne[0]);
  field.name = tensor.name;
  if (spec.form == TensorForm::kMatrix) {
    if (const GgufTensor* scale = take_scale(spec)) field.scale = read_float(*scale);
  }
}

void ModelBinder::bank(const TensorSpec& spec, WeightView& expert0, std::size_t& stride, const float*& scales) {
  const GgufTensor& tensor = take(spec);
  expert0.data = tensor.data;
  expert0.type = tensor.type;
  expert0.rows = static_cast<std::size_t>(spec.ne[1]);
  expert0.cols = static_cast<std::size_t>(spec.ne[0]);
  expert0.name = tensor.name;
  stride = expert0.bytes();
  const GgufTensor* scale = take_scale(spec);
  if (scale == nullptr) return;
  if (elements(*scale) == 1) {
    expert0.scale = read_float(*scale);
  } else {
    scales = reinterpret_cast<const float*>(scale->data);
  }
}

std::vector<std::string_view> ModelBinder::unused(int skip_block) const {
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < used_.size(); ++i) {
    const std::string& name = gguf_.tensors()[i].name;
    const bool ignorable = name.ends_with(".input_scale");  // activation scales of NVFP4 files
    if (!used_[i] && !ignorable && (skip_block < 0 || block_of(name) != skip_block)) names.push_back(name);
  }
  return names;
}

}  // namespace tandem
