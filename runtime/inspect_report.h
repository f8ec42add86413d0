// What `tandem inspect` shows, as data: gathered once, printed as text or JSON (runtime/cmd_inspect.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "placement/footprint.h"
#include "runtime/gguf.h"
#include "runtime/model_tensors.h"

namespace tandem {

struct TypeTotal {
  std::int64_t count = 0;
  std::int64_t elements = 0;
  std::int64_t bytes = 0;
};

// All tensors of one role, by type.
struct RoleTotal {
  std::string label;
  std::map<DType, TypeTotal> types;
  TypeTotal sum;
};

// Tensors of one trunk layer whose type is not the one that most layers use.
struct TypeException {
  int layer = 0;
  std::vector<std::string> tensors;  // without "blk.N." and ".weight"
  DType type = DType::F32;
  DType usual = DType::F32;
};

struct SpecialToken {
  std::string key;  // bos, eos, padding
  std::int64_t id = 0;
  std::string text;
};

struct TokenizerSummary {
  std::string model, pre;
  std::size_t tokens = 0, merges = 0, control = 0;
  std::vector<SpecialToken> special;
  std::string chat_template;  // "known (NAME)", "unknown: ...", "none"
};

struct InspectReport {
  explicit InspectReport(Gguf file) : gguf(std::move(file)) {}
  Gguf gguf;
  std::string architecture;         // empty when the file does not say
  bool supported = false;           // qwen4exp
  bool mtp_only = false;            // a separate MTP file
  std::optional<ModelShape> shape;  // absent when the metadata cannot be read, see problem
  std::string problem;              // why the file cannot be run, empty when it can
  std::vector<std::string> warnings;
  std::string mtp_note;
  std::vector<SortedTensor> tensors;
  std::vector<RoleTotal> roles;  // display order, only those with tensors
  TypeTotal total;
  std::vector<TypeException> exceptions;
  std::optional<TokenizerSummary> tokenizer;
  WeightBytes weights;
};

// Throws InputError when the directory itself cannot be read; anything else that is wrong is reported in `problem`.
InspectReport make_inspect_report(const std::filesystem::path& path);

}  // namespace tandem
