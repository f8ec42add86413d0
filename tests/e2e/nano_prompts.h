// Three prompts for the trained model and the hash of their logits, for the tests that must all find the same one.
#pragma once

#include <string>
#include <vector>

#include "runtime/logits_hash.h"
#include "runtime/pipeline.h"

namespace tandem::testing {

inline constexpr std::size_t kContext = 600, kLongest = 540;  // tokens; a chunk of 511 must leave some of the prompt
using Prompt = std::vector<TokenId>;

const Model& nano();
// A tool call with special tokens, text with <|endoftext|> inside, prose that runs into sparse attention.
const std::vector<Prompt>& prompts();
void add_rows(LogitsHash& hash, ConstRows rows);
// Hash of every prompt run in chunks from an empty state.
std::string chunked(Pipeline& pipeline, std::size_t chunk);

}  // namespace tandem::testing
