#include "runtime/inspect_report.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "placement/check.h"
#include "runtime/chat_template.h"
#include "runtime/model.h"
#include "runtime/model_shape.h"

namespace tandem {
namespace {

void add(TypeTotal& total, const GgufTensor& tensor) {
  total.count += 1;
  total.elements += tensor.ne[0] * tensor.ne[1] * tensor.ne[2] * tensor.ne[3];
  total.bytes += static_cast<std::int64_t>(tensor.bytes);
}

// Rows of the role table, in display order. Norms are one row of their own, and the draft block is split only into its
// routed experts and the rest, since that decides where its bytes live.
constexpr int kNormRow = kTensorRoles;
constexpr int kMtpExpertRow = kNormRow + 1;
constexpr int kMtpRow = kMtpExpertRow + 1;
constexpr int kUnusedRow = kMtpRow + 1;
constexpr int kRows = kUnusedRow + 1;

int row_of(const SortedTensor& entry) {
  if (!entry.spec) return kUnusedRow;
  const TensorRole role = entry.spec->role;
  if (entry.spec->mtp) {
    const bool expert =
        role == TensorRole::kExpertGate || role == TensorRole::kExpertUp || role == TensorRole::kExpertDown;
    return expert ? kMtpExpertRow : kMtpRow;
  }
  return entry.spec->form == TensorForm::kNorm ? kNormRow : static_cast<int>(role);
}

std::string row_label(int row, bool supported) {
  switch (row) {
    case kNormRow:
      return "norms";
    case kMtpExpertRow:
      return "MTP routed experts";
    case kMtpRow:
      return "MTP other";
    case kUnusedRow:
      return supported ? "not used" : "tensors";
    default:
      return std::string(role_name(static_cast<TensorRole>(row)));
  }
}

void add_roles(InspectReport& report) {
  std::array<RoleTotal, kRows> rows;
  for (const SortedTensor& entry : report.tensors) {
    RoleTotal& row = rows[static_cast<std::size_t>(row_of(entry))];
    add(row.types[entry.tensor->type], *entry.tensor);
    add(row.sum, *entry.tensor);
    add(report.total, *entry.tensor);
  }
  for (int i = 0; i < kRows; ++i) {
    RoleTotal& row = rows[static_cast<std::size_t>(i)];
    if (row.sum.count == 0) continue;
    row.label = row_label(i, report.supported);
    report.roles.push_back(std::move(row));
  }
}

std::string short_name(std::string_view name) {
  const std::size_t dot = name.find('.', 4);  // after "blk.N"
  name.remove_prefix(dot == std::string_view::npos ? 0 : dot + 1);
  if (name.ends_with(".weight")) name.remove_suffix(7);
  return std::string(name);
}

// Within each kind of tensor, the type that most trunk layers use is the usual one (the smaller id of equals).
void add_exceptions(InspectReport& report) {
  std::map<std::string, std::map<int, DType>> kinds;
  for (const SortedTensor& entry : report.tensors) {
    if (entry.spec && !entry.spec->mtp && entry.spec->block >= 0) {
      kinds[short_name(entry.tensor->name)][entry.spec->block] = entry.tensor->type;
    }
  }
  std::map<std::tuple<int, DType, DType>, std::vector<std::string>> found;
  for (const auto& [name, layers] : kinds) {
    std::map<DType, int> counts;
    for (const auto& [layer, type] : layers) ++counts[type];
    const DType usual = std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) {
                          return a.second < b.second;
                        })->first;
    for (const auto& [layer, type] : layers) {
      if (type != usual) found[{layer, type, usual}].push_back(name);
    }
  }
  for (auto& [key, names] : found) {
    report.exceptions.push_back({std::get<0>(key), std::move(names), std::get<1>(key), std::get<2>(key)});
  }
}

std::string template_summary(const Gguf& gguf) {
  if (gguf.find("tokenizer.chat_template") == nullptr) return "none in the file";
  const ChatTemplate chat = ChatTemplate::from_gguf(gguf);
  return chat.warning().empty() ? fmt::format("known ({})", chat.variant())
                                : fmt::format("unknown: {}", chat.warning());
}

std::optional<TokenizerSummary> tokenizer_summary(const Gguf& gguf) {
  if (gguf.find("tokenizer.ggml.model") == nullptr) return std::nullopt;
  TokenizerSummary summary;
  summary.model = gguf.require_string("tokenizer.ggml.model");
  summary.pre = gguf.string("tokenizer.ggml.pre").value_or("");
  const std::vector<std::string_view> tokens =
      gguf.strings("tokenizer.ggml.tokens").value_or(std::vector<std::string_view>{});
  summary.tokens = tokens.size();
  if (const auto merges = gguf.strings("tokenizer.ggml.merges")) summary.merges = merges->size();
  if (const auto types = gguf.integers("tokenizer.ggml.token_type")) {
    // 3 is control, 4 user-defined: the ones that are matched as a whole
    summary.control = static_cast<std::size_t>(
        std::count_if(types->begin(), types->end(), [](std::int64_t type) { return type == 3 || type == 4; }));
  }
  for (const std::string_view key : {"bos", "eos", "padding"}) {
    const std::optional<std::int64_t> id = gguf.integer(fmt::format("tokenizer.ggml.{}_token_id", key));
    if (!id) continue;
    const bool inside = *id >= 0 && static_cast<std::size_t>(*id) < tokens.size();
    summary.special.push_back(
        {std::string(key), *id,
         inside ? std::string(tokens[static_cast<std::size_t>(*id)]) : "(outside the vocabulary)"});
  }
  summary.chat_template = template_summary(gguf);
  return summary;
}

// A separate MTP file: its shape is shown when its metadata is complete, which it need not be.
void try_mtp_file(InspectReport& report) {
  report.mtp_only = true;
  report.mtp_note = fmt::format("this file holds only the MTP block blk.{}; give it to a model with --mtp",
                                find_mtp_block(report.gguf));
  try {
    report.shape = read_model_shape(report.gguf, report.warnings);
  } catch (const InputError& error) {
    report.warnings.emplace_back(error.what());
  }
}

// Reads the shape and tries the real binding, so that what inspect calls usable is what the runtime accepts.
void try_model(const std::filesystem::path& path, InspectReport& report) {
  try {
    report.shape = read_model_shape(report.gguf, report.warnings);
    const Model model = Model::open(path);
    report.shape = model.shape;
    report.warnings = model.warnings;
    report.mtp_note = model.mtp_note;
  } catch (const InputError& error) {
    report.problem = error.what();
  }
}

}  // namespace

InspectReport make_inspect_report(const std::filesystem::path& path) {
  InspectReport report(Gguf::open(path));
  if (const GgufValue* value = report.gguf.find("general.architecture")) {
    if (const auto* text = std::get_if<std::string_view>(value)) report.architecture = *text;
  }
  report.supported = is_qwen4exp(report.gguf);
  if (report.supported && is_mtp_only(report.gguf)) {
    try_mtp_file(report);
  } else if (report.supported) {
    try_model(path, report);
  }
  if (report.shape) {
    report.tensors = sort_tensors(report.gguf, *report.shape);
    report.weights = weight_bytes(report.tensors);
  } else {
    for (const GgufTensor& tensor : report.gguf.tensors()) report.tensors.push_back({&tensor, std::nullopt});
  }
  add_roles(report);
  add_exceptions(report);
  try {
    report.tokenizer = tokenizer_summary(report.gguf);
  } catch (const InputError& error) {
    report.warnings.emplace_back(error.what());
  }
  return report;
}

}  // namespace tandem
