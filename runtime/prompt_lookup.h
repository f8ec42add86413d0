// Where in the text so far the last tokens stood before: what followed there may follow here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "runtime/tokenizer.h"

namespace tandem {

// An index over all places of a growing sequence by the kMinMatch tokens before them. Time: constant for a token more
// or less; a search looks at no more than kCandidates places.
class PromptLookup {
 public:
  static constexpr std::size_t kMinMatch = 3;
  static constexpr std::size_t kMaxMatch = 64;    // longer matches count as this long
  static constexpr std::size_t kCandidates = 64;  // the latest ones

  // Makes `tokens` the indexed sequence: what differs from the present one is forgotten, what is new is added.
  void assign(std::span<const TokenId> tokens);
  // The same for a sequence that is known to begin with the present one.
  void extend(std::span<const TokenId> tokens);

  struct Match {
    std::size_t place = 0;   // the token that followed then; 0: no match
    std::size_t length = 0;  // tokens before it that equal the last ones, at most kMaxMatch
  };
  // The longest match of the end of the sequence with an earlier place of it; of equal ones the latest.
  Match find() const;
  // The token `ahead` places into the continuation of a match; a continuation that reaches the end goes on with itself,
  // as a text does that repeats with a period.
  TokenId continuation(const Match& match, std::size_t ahead) const {
    const std::size_t period = tokens_.size() - match.place;
    return tokens_[match.place + ahead % period];
  }
  std::size_t size() const { return tokens_.size(); }

 private:
  std::uint64_t key(std::size_t place) const;  // of the kMinMatch tokens before it
  void push(TokenId token);
  void pop();

  std::vector<TokenId> tokens_;
  std::vector<std::uint32_t> previous_;                      // by place: the place before with the same key, 0: none
  std::unordered_map<std::uint64_t, std::uint32_t> latest_;  // by key
};

}  // namespace tandem
