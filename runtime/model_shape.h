// Metadata of a qwen4exp file -> ModelShape. Every number comes from the file; nothing is assumed about the model's
// size.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "placement/model_shape.h"
#include "runtime/gguf.h"

namespace tandem {

inline constexpr std::string_view kArchitecture = "qwen4exp";

// True when general.architecture says qwen4exp.
bool is_qwen4exp(const Gguf& gguf);

// Reads and checks the shape. Integers are accepted in any integer type. Throws InputError that names file and key for:
// another architecture, a missing key, a value out of range, an array of the wrong length, relations that do not hold
// (ssm.inner_size, compress_ratios against the layer kinds, PLE constants against the table, ...), and for settings of
// the architecture family that this runtime does not implement. Things that a user should know but that do not stop
// the model are appended to `warnings`.
// ple_rows is the row count of per_layer_token_embd.weight; the least that the hash constants need when the file lacks
// the tensor.
ModelShape read_model_shape(const Gguf& gguf, std::vector<std::string>& warnings);

// True when the file has nextn.* tensors in one block and no tensor of any other block: a separate MTP file. Decided by
// the tensors alone, since such files differ in what their metadata says.
bool is_mtp_only(const Gguf& gguf);

// The N of "blk.N." in a tensor name, or -1.
int block_of(std::string_view tensor_name);

// The block that holds the nextn.* tensors, or -1 when there is none.
int find_mtp_block(const Gguf& gguf);

// A separate MTP file must agree with the trunk in every key that both have and that shapes the draft block. Throws
// InputError naming the key and both values.
void check_mtp_metadata(const ModelShape& trunk, const Gguf& mtp);

}  // namespace tandem
