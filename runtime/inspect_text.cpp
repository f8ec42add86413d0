#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "placement/check.h"
#include "placement/units.h"
#include "runtime/cmd_inspect.h"

namespace tandem {
namespace {

constexpr std::size_t kColumns = 100;

// Collects lines; long values continue under their own column.
class Text {
 public:
  void heading(std::string_view title) { text_ += fmt::format("{}{}\n", text_.empty() ? "" : "\n", title); }
  void field(std::string_view name, std::string_view value) { wrapped(fmt::format("  {:<18}", name), value); }
  void line(std::string_view line) { text_ += fmt::format("{}\n", line); }
  void wrapped(std::string_view head, std::string_view value) {
    std::string current(head);
    bool first = true;
    for (std::size_t at = 0; at < value.size();) {
      const std::size_t end = std::min(value.find(' ', at), value.size());
      const std::string_view word = value.substr(at, end - at);
      if (!first && current.size() + 1 + word.size() > kColumns) {
        line(current);
        current.assign(head.size(), ' ');
        first = true;
      }
      current += fmt::format("{}{}", first ? "" : " ", word);
      first = false;
      at = end + 1;
    }
    line(current);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

double bits_per_weight(const TypeTotal& total) {
  return total.elements == 0 ? 0.0 : 8.0 * static_cast<double>(total.bytes) / static_cast<double>(total.elements);
}

void add_files(Text& text, const InspectReport& report) {
  const Gguf& gguf = report.gguf;
  std::int64_t bytes = 0;
  for (const GgufShard& shard : gguf.shards()) bytes += static_cast<std::int64_t>(shard.file_bytes);
  text.line(gguf.name());
  text.field("format", fmt::format("GGUF version {}, {} file{}, {}, {} tensors", gguf.version(), gguf.shards().size(),
                                   gguf.shards().size() == 1 ? "" : "s", human_bytes(bytes),
                                   grouped(static_cast<std::int64_t>(gguf.tensors().size()))));
  if (gguf.shards().size() < 2) return;
  for (const GgufShard& shard : gguf.shards()) {
    text.line(fmt::format("  {:<52} {:>6} tensors {:>12}", shard.path.filename().string(), shard.tensors,
                          human_bytes(static_cast<std::int64_t>(shard.file_bytes))));
  }
}

std::string layer_list(const ModelShape& shape, bool gdn) {
  std::string list;
  for (std::size_t i = 0; i < shape.is_gdn.size(); ++i) {
    if (shape.is_gdn[i] == gdn) list += fmt::format("{}{}", list.empty() ? "" : ", ", i);
  }
  return list;
}

void add_shape(Text& text, const InspectReport& report) {
  const ModelShape& s = *report.shape;
  const auto attention = std::count(s.is_gdn.begin(), s.is_gdn.end(), false);
  text.field("layers", fmt::format("{}: {} Gated DeltaNet, {} attention ({})", s.layers, s.layers - attention,
                                   attention, layer_list(s, false)));
  text.field("hidden", fmt::format("{} x {} streams, hyper-connection rank {}", s.hidden, s.streams, s.hc_rank));
  text.field("attention", fmt::format("{} heads of {}, {} KV heads, RoPE on {} dims, theta {}", s.heads, s.head_dim,
                                      s.kv_heads, s.rope_dims, s.rope_theta));
  text.field("indexer", fmt::format("{} heads of {}, blocks of {}, budget {} tokens", s.indexer_heads, s.indexer_dim,
                                    s.indexer_ratio, s.indexer_budget));
  text.field("Gated DeltaNet", fmt::format("{} key and {} value heads of {}, convolution over {}", s.gdn_key_heads,
                                           s.gdn_value_heads, s.gdn_dim, s.gdn_conv));
  text.field("experts", fmt::format("{} of width {}, {} used; shared expert of width {}", s.experts, s.expert_ff,
                                    s.experts_used, s.shared_expert_ff));
  if (s.ple_layer >= 0) {
    text.field("n-gram embedding",
               fmt::format("layer {}, {} rows of {}, {} heads, n-grams of 2 to {} tokens", s.ple_layer,
                           grouped(s.ple_rows), s.ple_row_width, s.ple_heads(), s.ngram_size));
  } else if (!report.mtp_only) {
    text.field("n-gram embedding", "none");
  }
  text.field("vocabulary", fmt::format("{} tokens", grouped(s.vocab)));
  text.field("trained context", fmt::format("{} tokens", grouped(s.max_positions)));
}

void add_model(Text& text, const InspectReport& report) {
  text.heading("Model");
  if (const GgufValue* name = report.gguf.find("general.name")) {
    if (const auto* value = std::get_if<std::string_view>(name)) text.field("name", *value);
  }
  const std::string_view shown = report.architecture.empty() ? "(not stated)" : std::string_view(report.architecture);
  if (!report.supported) {
    text.field("architecture", fmt::format("{}: not supported, only the directory is shown", shown));
    return;
  }
  text.field("architecture", shown);
  if (report.shape) add_shape(text, report);
  text.field("MTP", report.mtp_note.empty() ? "unknown, see the problem below" : report.mtp_note);
}

void add_tokenizer(Text& text, const TokenizerSummary& tokenizer) {
  text.heading("Tokenizer");
  text.field("model", fmt::format("{}, pre-tokenizer {}", tokenizer.model,
                                  tokenizer.pre.empty() ? "(not stated)" : tokenizer.pre));
  text.field("tables",
             fmt::format("{} tokens ({} special), {} merges", grouped(static_cast<std::int64_t>(tokenizer.tokens)),
                         tokenizer.control, grouped(static_cast<std::int64_t>(tokenizer.merges))));
  std::string special;
  for (const SpecialToken& token : tokenizer.special) {
    special += fmt::format("{}{} {} {}", special.empty() ? "" : ", ", token.key, token.id, token.text);
  }
  text.field("special ids", special.empty() ? "none stated" : special);
  text.field("chat template", tokenizer.chat_template);
}

void add_roles(Text& text, const InspectReport& report) {
  text.heading("Tensors by role");
  text.line(fmt::format("  {:<22}{:<9}{:>7}{:>19}{:>13}{:>9}", "role", "type", "count", "weights", "bytes", "bits"));
  const auto row = [&](std::string_view label, std::string_view type, const TypeTotal& total) {
    text.line(fmt::format("  {:<22}{:<9}{:>7}{:>19}{:>13}{:>9.2f}", label, type, grouped(total.count),
                          grouped(total.elements), human_bytes(total.bytes), bits_per_weight(total)));
  };
  for (const RoleTotal& role : report.roles) {
    const bool one_type = role.types.size() == 1;
    row(role.label, one_type ? dtype_name(role.types.begin()->first) : "", role.sum);
    if (one_type) continue;
    for (const auto& [type, total] : role.types) row("", dtype_name(type), total);
  }
  row("total", "", report.total);
}

void add_exceptions(Text& text, const InspectReport& report) {
  if (report.exceptions.empty()) return;
  text.heading("Layers with other types");
  for (const TypeException& exception : report.exceptions) {
    text.wrapped(fmt::format("  layer {:>3}: ", exception.layer),
                 fmt::format("{} {} instead of {}", fmt::join(exception.tensors, ", "), dtype_name(exception.type),
                             dtype_name(exception.usual)));
  }
}

void add_memory(Text& text, const InspectReport& report, const InspectMemory& memory) {
  const StateBytes& state = memory.state;
  const Footprint& place = memory.place;
  text.heading(fmt::format("Where it would live, one conversation of {} tokens", grouped(memory.layout.context)));
  const auto row = [&](std::string_view place_name, std::string_view what, std::int64_t bytes) {
    if (bytes > 0) text.line(fmt::format("  {:<13}{:<58}{:>12}", place_name, what, human_bytes(bytes)));
  };
  row("card", "dense weights", report.weights.dense);
  row("", "output head", report.weights.head);
  row("", "MTP block without its experts", report.weights.mtp_dense);
  row("", fmt::format("keys and values, {} bits", memory.layout.kv_bits), state.kv + state.mtp_kv);
  row("", "indexer keys", state.pooled + state.raw + state.mtp_pooled + state.mtp_raw);
  row("", "Gated DeltaNet states, histories, draft log",
      state.gdn_state + state.gdn_conv + state.ple_conv + state.replay);
  row("", "together, before work memory and experts", place.card());
  row("RAM",
      fmt::format("routed experts: {}, {} each on average", grouped(place.expert_count),
                  human_bytes(place.expert_bytes())),
      place.ram_experts);
  row("", "token embedding", place.ram_embedding);
  row("", "together; experts that fit on the card leave RAM", place.ram());
  row("disk or RAM", "n-gram table", place.disk_or_ram);
}

void add_tensor_list(Text& text, const InspectReport& report) {
  text.heading("Tensors");
  text.line(
      fmt::format("  {:<40} {:<8} {:<24} {:>14} {:>5} {:>14}", "name", "type", "shape", "bytes", "file", "offset"));
  for (const SortedTensor& entry : report.tensors) {
    const GgufTensor& tensor = *entry.tensor;
    text.line(fmt::format("  {:<40} {:<8} {:<24} {:>14} {:>5} {:>14}", tensor.name, dtype_name(tensor.type),
                          shape_text(tensor.ne, tensor.n_dims), tensor.bytes, tensor.shard + 1, tensor.offset));
  }
}

}  // namespace

std::string human_bytes(std::int64_t bytes) {
  constexpr std::array<std::string_view, 5> kUnits{"B", "kB", "MB", "GB", "TB"};
  if (bytes < 1000) return fmt::format("{} B", bytes);
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000.0;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, kUnits[unit]);
}

std::string inspect_text(const InspectReport& report, const std::optional<InspectMemory>& memory,
                         const CheckResult& check, bool list_tensors) {
  Text text;
  add_files(text, report);
  add_model(text, report);
  if (report.tokenizer) add_tokenizer(text, *report.tokenizer);
  add_roles(text, report);
  add_exceptions(text, report);
  if (memory) add_memory(text, report, *memory);
  if (list_tensors) add_tensor_list(text, report);
  if (!report.warnings.empty()) {
    text.heading("Warnings");
    for (const std::string& warning : report.warnings) text.wrapped("  ", warning);
  }
  if (check) {
    text.heading("Check of all values");
    if (check->empty()) text.line("  no bad values");
    for (const std::string& finding : *check) text.wrapped("  ", finding);
  }
  if (!report.problem.empty()) {
    text.heading("This file cannot be run");
    text.wrapped("  ", report.problem);
  }
  return text.take();
}

}  // namespace tandem
