#include <nlohmann/json.hpp>

#include "placement/check.h"
#include "runtime/cmd_inspect.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

// Long arrays (vocabulary, merges) are given by their length only.
constexpr std::size_t kArrayShown = 64;

Json array_json(const GgufArray& array) {
  if (array.size() > kArrayShown) return Json{{"length", array.size()}};
  return std::visit(
      [](const auto& values) {
        Json list = Json::array();
        for (const auto& value : values) list.push_back(value);
        return list;
      },
      array.values);
}

Json metadata_json(const Gguf& gguf) {
  Json metadata = Json::object();
  for (const GgufKeyValue& entry : gguf.metadata()) {
    metadata[entry.key] = std::visit(
        [](const auto& value) -> Json {
          if constexpr (std::is_same_v<std::decay_t<decltype(value)>, GgufArray>) {
            return array_json(value);
          } else {
            return value;
          }
        },
        entry.value);
  }
  return metadata;
}

Json shape_json(const ModelShape& s) {
  return {{"layers", s.layers},
          {"mtp_layers", s.mtp_layers},
          {"hidden", s.hidden},
          {"vocab", s.vocab},
          {"max_positions", s.max_positions},
          {"gdn_layers", s.is_gdn},
          {"streams", s.streams},
          {"hc_rank", s.hc_rank},
          {"heads", s.heads},
          {"kv_heads", s.kv_heads},
          {"head_dim", s.head_dim},
          {"rope_dims", s.rope_dims},
          {"rope_theta", s.rope_theta},
          {"indexer_heads", s.indexer_heads},
          {"indexer_dim", s.indexer_dim},
          {"indexer_ratio", s.indexer_ratio},
          {"indexer_budget", s.indexer_budget},
          {"gdn_key_heads", s.gdn_key_heads},
          {"gdn_value_heads", s.gdn_value_heads},
          {"gdn_dim", s.gdn_dim},
          {"gdn_conv", s.gdn_conv},
          {"experts", s.experts},
          {"experts_used", s.experts_used},
          {"expert_ff", s.expert_ff},
          {"shared_expert_ff", s.shared_expert_ff},
          {"ple_layer", s.ple_layer},
          {"ngram_size", s.ngram_size},
          {"ple_heads", s.ple_heads()},
          {"ple_row_width", s.ple_row_width},
          {"ple_rows", s.ple_rows},
          {"ple_eos", s.ple_eos},
          {"image_token", s.image_token}};
}

Json tokenizer_json(const TokenizerSummary& tokenizer) {
  Json special = Json::object();
  for (const SpecialToken& token : tokenizer.special) special[token.key] = {{"id", token.id}, {"text", token.text}};
  return {{"model", tokenizer.model},
          {"pre", tokenizer.pre},
          {"tokens", tokenizer.tokens},
          {"merges", tokenizer.merges},
          {"special_tokens", tokenizer.control},
          {"ids", std::move(special)},
          {"chat_template", tokenizer.chat_template}};
}

Json total_json(const TypeTotal& total) {
  return {{"count", total.count}, {"weights", total.elements}, {"bytes", total.bytes}};
}

Json roles_json(const InspectReport& report) {
  Json roles = Json::array();
  for (const RoleTotal& role : report.roles) {
    Json entry = {{"role", role.label}};
    entry.update(total_json(role.sum));
    entry["types"] = Json::object();
    for (const auto& [type, total] : role.types) entry["types"][std::string(dtype_name(type))] = total_json(total);
    roles.push_back(std::move(entry));
  }
  return roles;
}

Json exceptions_json(const InspectReport& report) {
  Json list = Json::array();
  for (const TypeException& exception : report.exceptions) {
    list.push_back({{"layer", exception.layer},
                    {"tensors", exception.tensors},
                    {"type", dtype_name(exception.type)},
                    {"usual", dtype_name(exception.usual)}});
  }
  return list;
}

Json memory_json(const InspectReport& report, const InspectMemory& memory) {
  const WeightBytes& w = report.weights;
  const StateBytes& s = memory.state;
  const Footprint& p = memory.place;
  return {{"context", memory.layout.context},
          {"kv_bits", memory.layout.kv_bits},
          {"weights",
           {{"dense", w.dense},
            {"head", w.head},
            {"embedding", w.embedding},
            {"experts", w.experts},
            {"ngram_table", w.ngram_table},
            {"mtp_dense", w.mtp_dense},
            {"mtp_experts", w.mtp_experts},
            {"unused", w.unused}}},
          {"state",
           {{"kv", s.kv},
            {"indexer_pooled", s.pooled},
            {"indexer_raw", s.raw},
            {"gdn_state", s.gdn_state},
            {"gdn_conv", s.gdn_conv},
            {"ple_conv", s.ple_conv},
            {"replay", s.replay},
            {"mtp_kv", s.mtp_kv},
            {"mtp_indexer_pooled", s.mtp_pooled},
            {"mtp_indexer_raw", s.mtp_raw}}},
          {"card", p.card()},
          {"ram", p.ram()},
          {"disk_or_ram", p.disk_or_ram},
          {"expert_count", p.expert_count},
          {"expert_bytes", p.expert_bytes()}};
}

Json tensors_json(const InspectReport& report) {
  Json list = Json::array();
  for (const SortedTensor& entry : report.tensors) {
    const GgufTensor& tensor = *entry.tensor;
    list.push_back(
        {{"name", tensor.name},
         {"type", dtype_name(tensor.type)},
         {"shape", std::vector<std::int64_t>(tensor.ne.begin(), tensor.ne.begin() + std::max(tensor.n_dims, 1))},
         {"bytes", tensor.bytes},
         {"shard", tensor.shard},
         {"offset", tensor.offset},
         {"role", entry.spec ? Json(role_name(entry.spec->role)) : Json()},
         {"mtp", entry.spec && entry.spec->mtp}});
  }
  return list;
}

}  // namespace

std::string inspect_json(const InspectReport& report, const std::optional<InspectMemory>& memory,
                         const CheckResult& check) {
  const Gguf& gguf = report.gguf;
  Json root;
  root["file"] = gguf.name();
  root["gguf_version"] = gguf.version();
  root["shards"] = Json::array();
  for (const GgufShard& shard : gguf.shards()) {
    root["shards"].push_back({{"path", shard.path.string()}, {"bytes", shard.file_bytes}, {"tensors", shard.tensors}});
  }
  root["architecture"] = report.architecture;
  root["supported"] = report.supported;
  root["runnable"] = report.supported && !report.mtp_only && report.problem.empty();
  root["problem"] = report.problem;
  root["warnings"] = report.warnings;
  root["mtp"] = {{"present", report.mtp_only || (report.shape && report.shape->mtp_layers > 0)},
                 {"only", report.mtp_only},
                 {"note", report.mtp_note}};
  root["shape"] = report.shape ? shape_json(*report.shape) : Json();
  root["tokenizer"] = report.tokenizer ? tokenizer_json(*report.tokenizer) : Json();
  root["total"] = total_json(report.total);
  root["roles"] = roles_json(report);
  root["exceptions"] = exceptions_json(report);
  root["memory"] = memory ? memory_json(report, *memory) : Json();
  root["check"] = check ? Json(*check) : Json();
  root["metadata"] = metadata_json(gguf);
  root["tensors"] = tensors_json(report);
  // Names and strings of a file may hold any bytes.
  return root.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tandem
