#include "runtime/prompt_lookup.h"

#include <algorithm>

#include "placement/check.h"

namespace tandem {

// Three ids of 21 bits name the tokens exactly: the largest vocabulary of this architecture has 248,320 entries.
std::uint64_t PromptLookup::key(std::size_t place) const {
  static_assert(kMinMatch == 3);
  std::uint64_t value = 0;
  for (std::size_t i = place - kMinMatch; i < place; ++i) value = value << 21 | static_cast<std::uint64_t>(tokens_[i]);
  return value;
}

void PromptLookup::assign(std::span<const TokenId> tokens) {
  const std::size_t shorter = std::min(tokens.size(), tokens_.size());
  const auto [mine, theirs] =
      std::mismatch(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(shorter), tokens.begin());
  const auto common = static_cast<std::size_t>(mine - tokens_.begin());
  while (tokens_.size() > common) pop();
  extend(tokens);
}

void PromptLookup::extend(std::span<const TokenId> tokens) {
  CHECK(tokens.size() >= tokens_.size(), "{} {}", tokens.size(), tokens_.size());
  for (std::size_t i = tokens_.size(); i < tokens.size(); ++i) push(tokens[i]);
}

// The place after the last token is not indexed before a token stands there: find() asks for earlier places only.
void PromptLookup::push(TokenId token) {
  CHECK(token >= 0 && token < 1 << 21, "token {}", token);
  const std::size_t place = tokens_.size();
  std::uint32_t before = 0;
  if (place >= kMinMatch) {
    std::uint32_t& latest = latest_[key(place)];
    before = latest;
    latest = static_cast<std::uint32_t>(place);
  }
  previous_.push_back(before);
  tokens_.push_back(token);
}

void PromptLookup::pop() {
  const std::size_t place = tokens_.size() - 1;
  if (place >= kMinMatch) {
    if (previous_[place] == 0)
      latest_.erase(key(place));
    else
      latest_[key(place)] = previous_[place];
  }
  tokens_.pop_back();
  previous_.pop_back();
}

PromptLookup::Match PromptLookup::find() const {
  const std::size_t end = tokens_.size();
  Match best;
  if (end < kMinMatch) return best;
  const auto found = latest_.find(key(end));
  std::size_t place = found == latest_.end() ? 0 : found->second;
  for (std::size_t looked = 0; place != 0 && looked < kCandidates; ++looked, place = previous_[place]) {
    const std::size_t most = std::min(place, kMaxMatch);
    std::size_t length = kMinMatch;
    while (length < most && tokens_[place - 1 - length] == tokens_[end - 1 - length]) ++length;
    if (length > best.length) best = {place, length};
    if (length == kMaxMatch) break;
  }
  return best;
}

}  // namespace tandem
