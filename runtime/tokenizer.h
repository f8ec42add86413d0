// Byte-level BPE (gpt2 with the qwen35 pre-tokenizer) between text and token ids. Any byte string, valid UTF-8 or not,
// is encoded and decoded back to the same bytes; how bytes that are not UTF-8 are cut is in runtime/pretokenizer.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/gguf.h"
#include "runtime/utf8.h"

namespace tandem {

using TokenId = std::int32_t;

// The values of TokenizerData::types.
enum class TokenType : std::int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

// What a file says about its tokenizer, unchecked. Normal and byte tokens are written in the byte-level alphabet (one
// printable character per byte), the others as they are. The texts have to live until from_data returns.
struct TokenizerData {
  std::string source;  // the file's name, for messages
  std::string_view model, pre;
  std::vector<std::string_view> tokens;  // by id
  std::vector<std::int64_t> types;       // by id
  std::vector<std::string_view> merges;  // "left right", by rank
  std::optional<std::int64_t> eos;
};

// A part of a text: parse_special as in Tokenizer::encode, for this part only.
struct TextSpan {
  std::string_view text;
  bool parse_special;
};

class Tokenizer {
 public:
  // Reads tokenizer.ggml.*. Throws InputError for another tokenizer model or pre-tokenizer, missing or inconsistent
  // tables (a merge of unknown tokens, a missing byte token, wrong array lengths, a merge that makes a special token).
  static Tokenizer from_gguf(const Gguf& gguf);
  static Tokenizer from_data(const TokenizerData& data);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Special tokens (types control and user-defined; the longest first) are recognised only where parse_special is true:
  // in template text, never in what a user typed. With parse_special false no special id comes out of any text.
  // Thread safe. Time is O(n log n) for any text.
  std::vector<TokenId> encode(std::string_view text, bool parse_special) const;
  void encode_append(std::string_view text, bool parse_special, std::vector<TokenId>& out) const;

  // The same for a text in parts: special tokens are recognised inside the parts that allow it (never across two), and
  // everything between two of them is encoded as one text. So where to put the borders of the parts does not change the
  // tokens: ".\n" is the token that the model knows even if the line feed belongs to the template.
  void encode_append(std::span<const TextSpan> spans, std::vector<TokenId>& out) const;

  std::string_view bytes(TokenId id) const;                          // the token's bytes; REQUIRES 0 <= id < size()
  std::string decode(std::span<const TokenId> ids) const;            // REQUIRES the same of each
  std::optional<TokenId> find_special(std::string_view text) const;  // a control or user-defined token by its text
  bool is_special(TokenId id) const;                                 // REQUIRES 0 <= id < size()
  std::size_t size() const;                                          // vocabulary size, padding tokens included

  // End of generation, by string: <|im_end|> and <|endoftext|> (and the file's eos_token_id), those that exist.
  std::span<const TokenId> stop_ids() const;
  bool is_stop(TokenId id) const;

  // Every token once, in the order in which training the tokenizer found them worth having: those that end generation,
  // the other special ones by id, the 256 bytes, then by the rank of the first merge that makes them (a merge of lower
  // rank was more frequent in the text that the tokenizer was made from), and at last those that nothing makes, by id.
  std::vector<TokenId> by_rank() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
