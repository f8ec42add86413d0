// The vocabulary of a byte-level BPE file, checked and in the form that encoding and decoding need.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/bpe.h"
#include "runtime/tokenizer.h"

namespace tandem {

struct TokenTable {
  std::string bytes;                       // of all tokens, one after the other
  std::vector<std::size_t> begins;         // size() + 1 offsets into `bytes`
  std::vector<bool> special;               // control or user-defined
  std::array<TokenId, 256> byte_tokens{};  // the normal token of each single byte
  std::vector<Bpe::Merge> merges;          // by rank
  std::vector<TokenId> stop_ids;

  std::size_t size() const { return special.size(); }
  std::string_view token(std::size_t id) const {
    return std::string_view(bytes).substr(begins[id], begins[id + 1] - begins[id]);
  }
};

// Throws InputError as Tokenizer::from_gguf does.
TokenTable read_token_table(const TokenizerData& data);

}  // namespace tandem
