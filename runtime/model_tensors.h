// The one table of a qwen4exp model's tensors: name, shape, kind and role per field. A visitor walks it to bind a file,
// to list what a shape needs (census, tests) or to sort the tensors of a file by role (inspect, planning).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "placement/footprint.h"
#include "placement/model_shape.h"
#include "runtime/gguf.h"
#include "runtime/model.h"

namespace tandem {

// The part of the model that a tensor belongs to (the components of docs/formats.md).
enum class TensorRole : std::uint8_t {
  kEmbedding,
  kHead,
  kHyperConnection,
  kGdn,
  kAttention,
  kIndexer,
  kRouter,
  kExpertGate,
  kExpertUp,
  kExpertDown,
  kSharedExpert,
  kPleDense,
  kNgramTable,
  kMtpFusion,  // the draft block's own projections, norms and mixer
};
inline constexpr int kTensorRoles = 14;
std::string_view role_name(TensorRole role);

enum class TensorForm : std::uint8_t {
  kNorm,    // a vector of gammas: F32, F16 or BF16
  kVector,  // another vector: F32, F16 or BF16
  kConv,    // convolution taps: F32, F16 or BF16
  kMatrix,  // any float or block type
  kBank,    // one matrix per expert: any float or block type
};

struct TensorSpec {
  std::string name;
  std::array<std::int64_t, 4> ne{1, 1, 1, 1};  // GGUF order: ne[0] is contiguous
  int n_dims = 0;                              // as the converter writes it; trailing ones do not matter
  TensorRole role = TensorRole::kEmbedding;
  TensorForm form = TensorForm::kMatrix;
  int block = -1;    // N of "blk.N.", -1 for the global tensors
  bool mtp = false;  // belongs to the draft block
  std::int64_t elements() const { return ne[0] * ne[1] * ne[2] * ne[3]; }
};

class TensorVisitor {
 public:
  virtual ~TensorVisitor() = default;
  // Whether the file has this tensor: picks between the variants of one field (fused banks, aliases, optional copies).
  virtual bool has(std::string_view name) const = 0;
  // A tensor that fills one view: vectors as one row, matrices as [ne[1], ne[0]].
  virtual void tensor(const TensorSpec& spec, WeightView& field) = 0;
  // A bank: `expert0` becomes the matrix of expert 0, `stride` the bytes to the next expert, `scales` the per-expert
  // scales or nullptr.
  virtual void bank(const TensorSpec& spec, WeightView& expert0, std::size_t& stride, const float*& scales) = 0;
};

// Where the trunk's tensors go. `layers` is resized to shape.layers.
struct TrunkFields {
  WeightView& token_embd;
  WeightView& output;
  HcWeights& output_hc;
  WeightView& ple_table;
  std::vector<LayerWeights>& layers;
};
void visit_trunk(const ModelShape& shape, TrunkFields fields, TensorVisitor& visitor);

// The draft block `block`. In a separate MTP file (mtp_only) the other names of its projections and mixer are accepted
// too, and token_embd and output at top level are its own; they stay empty when the file has none.
void visit_mtp(const ModelShape& shape, int block, bool mtp_only, MtpWeights& fields, TensorVisitor& visitor);

// Every tensor that a model of this shape needs, by its usual name, in table order.
struct TensorList {
  std::vector<TensorSpec> trunk;
  std::vector<TensorSpec> mtp;  // the block shape.layers; empty embedding and head: shared with the trunk
};
TensorList expected_tensors(const ModelShape& shape);

// Tensors of a file by role, whether or not the file is complete.
struct SortedTensor {
  const GgufTensor* tensor = nullptr;
  std::optional<TensorSpec> spec;  // nullopt: not used by this runtime
};
std::vector<SortedTensor> sort_tensors(const Gguf& gguf, const ModelShape& shape);

// Bytes by role in the planner's terms.
WeightBytes weight_bytes(std::span<const SortedTensor> tensors);

// The names under which a file may keep the scale of a quantised tensor NAME.weight (NVFP4 files).
std::array<std::string, 2> scale_names(std::string_view tensor_name);

// A shape in GGUF order, "[2560, 640, 512]".
std::string shape_text(std::span<const std::int64_t> ne, int n_dims);

}  // namespace tandem
