#include "tests/e2e/nano_prompts.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

namespace tandem::testing {

const Model& nano() {
  static const Model model = Model::open(TANDEM_SOURCE_DIR "/models/flash-next-nano-q4.gguf");
  return model;
}

// Three prompts: a tool call with special tokens, text with <|endoftext|> inside, prose that runs into sparse
// attention.
const std::vector<Prompt>& prompts() {
  static const std::vector<Prompt> all = [] {
    std::vector<Prompt> list;
    for (const char* name : {"chat_tool", "eos_inside", "prose_long"}) {
      std::ifstream file(std::string(TANDEM_SOURCE_DIR "/tests/golden/q4/") + name + ".json");
      Prompt tokens = nlohmann::json::parse(file)["tokens"].get<Prompt>();
      tokens.resize(std::min(tokens.size(), kLongest));
      list.push_back(tokens);
    }
    return list;
  }();
  return all;
}

void add_rows(LogitsHash& hash, ConstRows rows) {
  for (std::size_t r = 0; r < rows.rows; ++r) hash.add(rows.span(r));
}

// Hash of every prompt run in chunks from an empty state.
std::string chunked(Pipeline& pipeline, std::size_t chunk) {
  LogitsHash hash;
  for (const Prompt& tokens : prompts()) {
    SequenceState state(pipeline.model().shape, {kContext, KvType::kF16}, pipeline.ops().memory());
    pipeline.prefill(state, tokens, std::min(chunk, pipeline.max_rows()), LogitRows::kAll,
                     [&](std::size_t, const PassOutput& out) { add_rows(hash, out.logits); });
  }
  return hash.hex();
}

}  // namespace tandem::testing
