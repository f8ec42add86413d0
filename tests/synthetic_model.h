// Complete small qwen4exp models for tests: any shape, any type per tensor, bundled or separate MTP block, with a
// tokenizer. Weights are random and sane (activations stay of order one), and the same for one seed.
//
//   SyntheticOptions options;
//   options.type = [](const tandem::TensorSpec& spec) { return spec.role == TensorRole::kRouter ? DType::F32 : ...; };
//   const auto image = synthetic_model(options).build();
//   Model model = Model::bind(Gguf::parse(image));
//
// The builder can be changed before build(): other keys, tensors removed, renamed or broken.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "placement/model_shape.h"
#include "runtime/model_tensors.h"
#include "runtime/quant.h"
#include "tests/gguf_builder.h"

namespace tandem::testing {

// Ids of the synthetic vocabulary: 256 byte tokens, these, some merged tokens, then unused ones up to shape.vocab.
inline constexpr std::int32_t kEndOfText = 256;  // <|endoftext|>
inline constexpr std::int32_t kImStart = 257;    // <|im_start|>
inline constexpr std::int32_t kImEnd = 258;      // <|im_end|>
inline constexpr std::int32_t kImagePad = 259;   // <|image_pad|>
inline constexpr std::int64_t kMinVocab = 300;

// 4 layers (0, 1, 2 GDN with PLE on 1; 3 attention) and an MTP block, hidden 64 x 4 streams, 8 experts, 320 tokens.
ModelShape tiny_shape();

struct SyntheticOptions {
  ModelShape shape = tiny_shape();
  std::uint32_t seed = 1;
  // Type of each tensor; empty: F32 for vectors and convolutions, Q8_0 for matrices and banks. Where the rows are no
  // whole number of blocks, Q8_0 and then F32 is taken instead.
  std::function<DType(const tandem::TensorSpec&)> type;
  bool tokenizer = true;  // false: vocab_size as a key instead
  bool zeros = false;     // no data at all: builders of the real size, to be written as sparse files
};

// The model; with its MTP block when shape.mtp_layers is 1. REQUIRES shape.vocab >= kMinVocab with a tokenizer.
GgufBuilder synthetic_model(const SyntheticOptions& options = {});

// A separate MTP file: block shape.layers, no trunk tensors, no ple keys. With own_embedding it has token_embd and
// output of its own, and the tokenizer; else neither.
GgufBuilder synthetic_mtp(const SyntheticOptions& options, bool own_embedding);

// Metadata of a shape, without the tokenizer.
void add_shape_keys(GgufBuilder& builder, const ModelShape& shape);

// Replaces ffn_gate_exps and ffn_up_exps of a block by ffn_gate_up_exps with the same values. REQUIRES equal types.
void fuse_gate_up(GgufBuilder& builder, int block);

// Renames a tensor.
void rename_tensor(GgufBuilder& builder, std::string_view from, std::string_view to);

// Rounds values to the nearest of a float type, Q8_0 or Q4_0.
std::vector<std::uint8_t> quantise(DType type, const std::vector<float>& values);

}  // namespace tandem::testing
