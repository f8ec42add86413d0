#include "runtime/token_table.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>

#include "placement/check.h"
#include "runtime/utf8.h"

namespace tandem {
namespace {

constexpr const char* kFix = "Fix: use an unmodified file of this model";

// Texts to token ids, for loading only: the texts stay where the file has them.
class TextIndex {
 public:
  explicit TextIndex(const TokenizerData& data)
      : tokens_(data.tokens), slots_(std::bit_ceil(data.tokens.size() * 2 + 2), kFree) {}

  // Adds token `id`; returns the one with the same text if there is one already.
  std::optional<TokenId> insert(TokenId id) {
    TokenId& slot = slots_[probe(tokens_[static_cast<std::size_t>(id)])];
    if (slot != kFree) return slot;
    slot = id;
    return std::nullopt;
  }

  std::optional<TokenId> find(std::string_view text) const {
    const TokenId id = slots_[probe(text)];
    return id == kFree ? std::nullopt : std::optional(id);
  }

 private:
  static constexpr TokenId kFree = -1;

  std::size_t probe(std::string_view text) const {
    std::size_t at = XXH3_64bits(text.data(), text.size()) & (slots_.size() - 1);
    while (slots_[at] != kFree && tokens_[static_cast<std::size_t>(slots_[at])] != text) {
      at = (at + 1) & (slots_.size() - 1);
    }
    return at;
  }

  const std::vector<std::string_view>& tokens_;
  std::vector<TokenId> slots_;
};

// The alphabet writes a byte that is a printable, visible Latin-1 character as that character and the n-th of the other
// bytes as U+0100 + n, so every code point is below U+0144.
constexpr std::size_t kAlphabetEnd = 0x144;
constexpr std::int16_t kNotInAlphabet = -1;

std::array<std::int16_t, kAlphabetEnd> byte_of_code_point() {
  std::array<std::int16_t, kAlphabetEnd> table;
  table.fill(kNotInAlphabet);
  std::size_t others = 0x100;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    table[itself ? byte : others++] = static_cast<std::int16_t>(byte);
  }
  return table;
}

// Appends the bytes that `text` stands for; false, with `out` unchanged, when it is not written in the alphabet.
bool append_decoded(std::string_view text, std::string& out) {
  static const std::array<std::int16_t, kAlphabetEnd> kBytes = byte_of_code_point();
  const std::size_t before = out.size();
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    std::size_t code_point = static_cast<std::uint8_t>(text[0]);
    if (step.length == 2) code_point = (code_point & 0x1F) << 6 | (static_cast<std::uint8_t>(text[1]) & 0x3F);
    const bool known = step.kind == Utf8Step::Kind::kCharacter && step.length <= 2 && code_point < kAlphabetEnd &&
                       kBytes[code_point] != kNotInAlphabet;
    if (!known) {
      out.resize(before);
      return false;
    }
    out.push_back(static_cast<char>(kBytes[code_point]));
    text.remove_prefix(step.length);
  }
  return true;
}

bool mergeable(TokenType type) {
  return type == TokenType::kNormal || type == TokenType::kByte;
}
bool is_special_type(TokenType type) {
  return type == TokenType::kControl || type == TokenType::kUserDefined;
}

void check_header(const TokenizerData& data) {
  if (data.model != "gpt2") {
    fail_input(
        "{}: tokenizer.ggml.model: expected gpt2, found {}. Fix: use a GGUF file with a byte-level BPE tokenizer",
        data.source, data.model);
  }
  if (data.pre != "qwen35") {
    fail_input("{}: tokenizer.ggml.pre: expected qwen35, found {}. Fix: use a GGUF file that names this pre-tokenizer",
               data.source, data.pre);
  }
  const std::size_t limit = static_cast<std::size_t>(std::numeric_limits<TokenId>::max());
  if (data.tokens.empty() || data.tokens.size() > limit) {
    fail_input("{}: tokenizer.ggml.tokens: expected 1 to {} tokens, found {}. {}", data.source, limit,
               data.tokens.size(), kFix);
  }
  if (data.types.size() != data.tokens.size()) {
    fail_input("{}: tokenizer.ggml.token_type: expected {} entries as in tokenizer.ggml.tokens, found {}. {}",
               data.source, data.tokens.size(), data.types.size(), kFix);
  }
  if (data.eos && (*data.eos < 0 || static_cast<std::size_t>(*data.eos) >= data.tokens.size())) {
    fail_input("{}: tokenizer.ggml.eos_token_id: expected 0 to {}, found {}. {}", data.source, data.tokens.size() - 1,
               *data.eos, kFix);
  }
}

// The two indices keep mergeable tokens and special tokens apart: a special token may be spelled like a normal one.
struct Indices {
  TextIndex mergeable, special;
};

void read_tokens(const TokenizerData& data, TokenTable& table, Indices& indices) {
  table.begins.push_back(0);
  for (std::size_t id = 0; id < data.tokens.size(); ++id) {
    const std::string_view text = data.tokens[id];
    const auto type = static_cast<TokenType>(data.types[id]);
    const bool special = is_special_type(type);
    if (special && text.empty()) {
      fail_input("{}: tokenizer.ggml.tokens[{}]: expected the text of a special token, found nothing. {}", data.source,
                 id, kFix);
    }
    if (special || mergeable(type)) {
      const auto twin = (special ? indices.special : indices.mergeable).insert(static_cast<TokenId>(id));
      if (twin) {
        fail_input("{}: tokenizer.ggml.tokens[{}]: expected a text of its own, found \"{}\" as in token {}. {}",
                   data.source, id, text, *twin, kFix);
      }
    }
    // A normal token outside the alphabet is one that no merge can make (some tools leave padding tokens so).
    if (!mergeable(type) || !append_decoded(text, table.bytes)) table.bytes += text;
    table.begins.push_back(table.bytes.size());
    table.special.push_back(special);
  }
}

void find_byte_tokens(const TokenizerData& data, TokenTable& table) {
  constexpr TokenId kMissing = -1;
  table.byte_tokens.fill(kMissing);
  std::string decoded;
  for (std::size_t id = 0; id < table.size(); ++id) {
    if (!mergeable(static_cast<TokenType>(data.types[id])) || table.token(id).size() != 1) continue;
    decoded.clear();
    if (append_decoded(data.tokens[id], decoded)) {
      table.byte_tokens[static_cast<std::uint8_t>(decoded[0])] = static_cast<TokenId>(id);
    }
  }
  const auto* missing = std::find(table.byte_tokens.begin(), table.byte_tokens.end(), kMissing);
  if (missing != table.byte_tokens.end()) {
    fail_input(
        "{}: tokenizer.ggml.tokens: expected a normal token for each of the 256 bytes, found none for {:#04x}. {}",
        data.source, missing - table.byte_tokens.begin(), kFix);
  }
}

void read_merges(const TokenizerData& data, const TextIndex& index, TokenTable& table) {
  table.merges.reserve(data.merges.size());
  std::string joined;
  for (std::size_t rank = 0; rank < data.merges.size(); ++rank) {
    const std::string_view text = data.merges[rank];
    const std::size_t space = text.find(' ');
    if (space == std::string_view::npos || space == 0 || space + 1 == text.size() ||
        text.find(' ', space + 1) != std::string_view::npos) {
      fail_input("{}: tokenizer.ggml.merges[{}]: expected two tokens with one space between, found \"{}\". {}",
                 data.source, rank, text, kFix);
    }
    joined.assign(text.substr(0, space)).append(text.substr(space + 1));
    const auto find = [&](std::string_view part) {
      const auto id = index.find(part);
      if (!id) {
        fail_input("{}: tokenizer.ggml.merges[{}]: expected normal tokens, found \"{}\", of which \"{}\" is none. {}",
                   data.source, rank, text, part, kFix);
      }
      return *id;
    };
    table.merges.push_back({find(text.substr(0, space)), find(text.substr(space + 1)), find(joined)});
  }
}

}  // namespace

TokenTable read_token_table(const TokenizerData& data) {
  check_header(data);
  TokenTable table;
  Indices indices{TextIndex(data), TextIndex(data)};
  read_tokens(data, table, indices);
  find_byte_tokens(data, table);
  read_merges(data, indices.mergeable, table);

  const auto add_stop = [&](std::optional<TokenId> id) {
    if (id && std::find(table.stop_ids.begin(), table.stop_ids.end(), *id) == table.stop_ids.end()) {
      table.stop_ids.push_back(*id);
    }
  };
  add_stop(indices.special.find("<|im_end|>"));
  add_stop(indices.special.find("<|endoftext|>"));
  if (data.eos) add_stop(static_cast<TokenId>(*data.eos));
  return table;
}

}  // namespace tandem
