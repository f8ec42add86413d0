#include "runtime/tokenizer.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>

#include "placement/check.h"
#include "runtime/bpe.h"
#include "runtime/pair_table.h"
#include "runtime/pretokenizer.h"
#include "runtime/token_table.h"

namespace tandem {
namespace {

// The texts of the special tokens as a trie: PairTable (node, byte) -> (child, token id + 1, or 0 inside a text).
class SpecialTrie {
 public:
  struct Found {
    TokenId id;
    std::size_t length;
  };

  SpecialTrie() = default;
  explicit SpecialTrie(const TokenTable& table) {
    std::size_t bytes = 0;
    for (std::size_t id = 0; id < table.size(); ++id) bytes += table.special[id] ? table.token(id).size() : 0;
    children_ = PairTable(bytes);
    std::vector<std::uint32_t> order;
    for (std::size_t id = 0; id < table.size(); ++id) {
      if (table.special[id]) order.push_back(static_cast<std::uint32_t>(id));
    }
    // Short texts first: a node is then made by the text that ends there, if there is one.
    std::stable_sort(order.begin(), order.end(),
                     [&](auto a, auto b) { return table.token(a).size() < table.token(b).size(); });
    std::uint32_t nodes = 1;
    for (const std::uint32_t id : order) {
      const std::string_view text = table.token(id);
      first_[static_cast<std::uint8_t>(text[0])] = true;
      std::uint32_t node = 0;
      for (std::size_t i = 0; i < text.size(); ++i) {
        const std::uint32_t end = i + 1 == text.size() ? id + 1 : 0;
        if (children_.insert(node, static_cast<std::uint8_t>(text[i]), {nodes, end})) ++nodes;
        node = children_.find(node, static_cast<std::uint8_t>(text[i]))->first;
      }
    }
  }

  // The longest special text at the beginning of `text`.
  std::optional<Found> match(std::string_view text) const {
    if (text.empty() || !first_[static_cast<std::uint8_t>(text[0])]) return std::nullopt;
    std::optional<Found> best;
    std::uint32_t node = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const PairTable::Value* child = children_.find(node, static_cast<std::uint8_t>(text[i]));
      if (child == nullptr) break;
      node = child->first;
      if (child->second != 0) best = Found{static_cast<TokenId>(child->second - 1), i + 1};
    }
    return best;
  }

 private:
  PairTable children_;
  std::array<bool, 256> first_{};
};

// Remembers where a piece was encoded before, so that a word that comes again is copied and not merged again. It lives
// as long as one call, holds positions in that call's text and output only, and forgets by overwriting.
class PieceCache {
 public:
  PieceCache(std::string_view text, const std::vector<TokenId>& out) : text_(text), out_(out) {
    if (text.size() < kSmallestText) return;
    entries_.resize(std::min<std::size_t>(std::bit_ceil(text.size() / 16), kMostEntries));
  }

  // Appends the tokens of `piece` (a view into the text) to `out`, which is the vector that the cache was made with.
  void encode(const Bpe& bpe, std::string_view piece, std::vector<TokenId>& out) {
    if (entries_.empty() || piece.size() > kLongestPiece) return bpe.encode(piece, out);
    Entry& entry = entries_[XXH3_64bits(piece.data(), piece.size()) & (entries_.size() - 1)];
    if (text_.substr(entry.text_begin, entry.text_length) == piece) {
      for (std::size_t i = 0; i < entry.out_length; ++i) out.push_back(out_[entry.out_begin + i]);
      return;
    }
    const std::size_t before = out.size();
    bpe.encode(piece, out);
    entry = {static_cast<std::size_t>(piece.data() - text_.data()), piece.size(), before, out.size() - before};
  }

 private:
  static constexpr std::size_t kSmallestText = 1024;  // below, filling the cache costs more than it saves
  static constexpr std::size_t kMostEntries = 1 << 15;
  static constexpr std::size_t kLongestPiece = 48;
  struct Entry {
    std::size_t text_begin = 0, text_length = 0, out_begin = 0, out_length = 0;
  };

  std::string_view text_;
  const std::vector<TokenId>& out_;
  std::vector<Entry> entries_;
};

}  // namespace

struct Tokenizer::Impl {
  TokenTable table;
  SpecialTrie specials;
  Bpe bpe;
  Pretokenizer pretokenizer;

  // One text without special tokens.
  void encode_plain(std::string_view text, std::vector<TokenId>& out) const {
    PieceCache cache(text, out);
    pretokenizer.split(text, [&](std::string_view piece) { cache.encode(bpe, piece, out); });
  }
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::from_gguf(const Gguf& gguf) {
  const auto required = [&](const auto& value, std::string_view key) {
    if (!value) {
      fail_input("{}: {}: expected the tokenizer's table, found no such key. Fix: use a GGUF file with its tokenizer",
                 gguf.name(), key);
    }
    return *value;
  };
  TokenizerData data;
  data.source = gguf.name();
  data.model = gguf.require_string("tokenizer.ggml.model");
  data.pre = gguf.require_string("tokenizer.ggml.pre");
  data.tokens = required(gguf.strings("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens");
  data.types = required(gguf.integers("tokenizer.ggml.token_type"), "tokenizer.ggml.token_type");
  data.merges = required(gguf.strings("tokenizer.ggml.merges"), "tokenizer.ggml.merges");
  data.eos = gguf.integer("tokenizer.ggml.eos_token_id");
  return from_data(data);
}

Tokenizer Tokenizer::from_data(const TokenizerData& data) {
  auto impl = std::make_unique<Impl>();
  impl->table = read_token_table(data);
  impl->specials = SpecialTrie(impl->table);
  impl->bpe = Bpe(impl->table.byte_tokens, impl->table.merges);
  impl->table.merges = {};
  return Tokenizer(std::move(impl));
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool parse_special) const {
  std::vector<TokenId> out;
  encode_append(text, parse_special, out);
  return out;
}

void Tokenizer::encode_append(std::string_view text, bool parse_special, std::vector<TokenId>& out) const {
  const TextSpan span{text, parse_special};
  encode_append(std::span(&span, 1), out);
}

void Tokenizer::encode_append(std::span<const TextSpan> spans, std::vector<TokenId>& out) const {
  std::string plain;  // the text since the last special token
  const auto finish_plain = [&] {
    impl_->encode_plain(plain, out);
    plain.clear();
  };
  for (const TextSpan& span : spans) {
    std::size_t begin = 0;
    for (std::size_t at = 0; span.parse_special && at < span.text.size();) {
      const auto found = impl_->specials.match(span.text.substr(at));
      if (!found) {
        ++at;
        continue;
      }
      plain += span.text.substr(begin, at - begin);
      finish_plain();
      out.push_back(found->id);
      at += found->length;
      begin = at;
    }
    plain += span.text.substr(begin);
  }
  finish_plain();
}

std::string_view Tokenizer::bytes(TokenId id) const {
  CHECK(id >= 0 && static_cast<std::size_t>(id) < size(), "token {} of {}", id, size());
  return impl_->table.token(static_cast<std::size_t>(id));
}

std::string Tokenizer::decode(std::span<const TokenId> ids) const {
  std::string text;
  for (const TokenId id : ids) text += bytes(id);
  return text;
}

std::optional<TokenId> Tokenizer::find_special(std::string_view text) const {
  const auto found = impl_->specials.match(text);
  return found && found->length == text.size() ? std::optional(found->id) : std::nullopt;
}

bool Tokenizer::is_special(TokenId id) const {
  CHECK(id >= 0 && static_cast<std::size_t>(id) < size(), "token {} of {}", id, size());
  return impl_->table.special[static_cast<std::size_t>(id)];
}

std::vector<TokenId> Tokenizer::by_rank() const {
  const TokenTable& table = impl_->table;
  std::vector<TokenId> order;
  order.reserve(table.size());
  std::vector<bool> listed(table.size());
  const auto add = [&](std::size_t id) {
    if (listed[id]) return;
    listed[id] = true;
    order.push_back(static_cast<TokenId>(id));
  };
  for (const TokenId id : table.stop_ids) add(static_cast<std::size_t>(id));
  for (std::size_t id = 0; id < table.size(); ++id)
    if (table.special[id]) add(id);
  for (const TokenId id : table.byte_tokens) add(static_cast<std::size_t>(id));
  for (const std::uint32_t id : impl_->bpe.merged()) add(id);
  for (std::size_t id = 0; id < table.size(); ++id) add(id);
  return order;
}

std::size_t Tokenizer::size() const {
  return impl_->table.size();
}
std::span<const TokenId> Tokenizer::stop_ids() const {
  return impl_->table.stop_ids;
}

bool Tokenizer::is_stop(TokenId id) const {
  return std::find(impl_->table.stop_ids.begin(), impl_->table.stop_ids.end(), id) != impl_->table.stop_ids.end();
}

}  // namespace tandem
