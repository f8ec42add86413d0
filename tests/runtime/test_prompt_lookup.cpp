// The lookup index against a search by brute force, while the sequence grows, shrinks and changes.
#include "runtime/prompt_lookup.h"

#include <gtest/gtest.h>

#include <random>

namespace tandem {
namespace {

using Tokens = std::vector<TokenId>;

// The longest match of the end of `tokens` with an earlier place, of equal ones the latest, among the latest
// kCandidates places that match in kMinMatch tokens.
PromptLookup::Match brute_force(const Tokens& tokens) {
  PromptLookup::Match best;
  std::size_t candidates = 0;
  for (std::size_t place = tokens.size(); place-- > PromptLookup::kMinMatch;) {
    std::size_t length = 0;
    while (length < place && length < PromptLookup::kMaxMatch &&
           tokens[place - 1 - length] == tokens[tokens.size() - 1 - length])
      ++length;
    if (length < PromptLookup::kMinMatch || ++candidates > PromptLookup::kCandidates) continue;
    if (length > best.length) best = {place, length};
  }
  return best;
}

TEST(PromptLookup, AgreesWithBruteForce) {
  std::mt19937 random(1);
  std::size_t found = 0, long_matches = 0;
  for (int round = 0; round < 300; ++round) {
    const auto alphabet = 1 + random() % 6;
    PromptLookup lookup;
    Tokens tokens;
    for (int step = 0; step < 60; ++step) {
      const auto action = random() % 10;
      if (action == 0 && !tokens.empty()) {  // an undo, perhaps with another text after it
        tokens.resize(random() % tokens.size());
        for (auto n = random() % 20; n > 0; --n) tokens.push_back(static_cast<TokenId>(random() % alphabet));
        lookup.assign(tokens);
      } else if (action == 1 && tokens.size() > 4) {  // a repeated passage
        const auto from = static_cast<std::size_t>(random() % (tokens.size() - 3));
        const Tokens copy(tokens.begin() + static_cast<std::ptrdiff_t>(from), tokens.end());
        tokens.insert(tokens.end(), copy.begin(), copy.end());
        if (tokens.size() > 600) tokens.resize(100);
        lookup.assign(tokens);
      } else {
        for (auto n = 1 + random() % 4; n > 0; --n) tokens.push_back(static_cast<TokenId>(random() % alphabet));
        lookup.extend(tokens);
      }
      ASSERT_EQ(lookup.size(), tokens.size());
      const PromptLookup::Match match = lookup.find(), want = brute_force(tokens);
      ASSERT_EQ(match.length, want.length);
      if (want.length == 0) continue;
      // Among more than kMaxMatch equal tokens any place is as good: the latest of those that were looked at.
      ASSERT_EQ(match.place, want.place);
      ++found;
      long_matches += match.length > 10;
      Tokens grown = tokens;
      for (std::size_t i = 0; i < 15; ++i) {
        grown.push_back(grown[match.place + i]);
        ASSERT_EQ(lookup.continuation(match, i), grown.back());
      }
    }
  }
  EXPECT_GT(found, 5000U);
  EXPECT_GT(long_matches, 500U);
}

TEST(PromptLookup, LargeIdsAreToldApart) {
  PromptLookup lookup;
  lookup.assign(Tokens{248319, 5, 7, 100, 1, 2, 248319, 5, 7});
  EXPECT_EQ(lookup.find().place, 3U);
  lookup.assign(Tokens{248318, 5, 7, 100, 1, 2, 248319, 5, 7});
  EXPECT_EQ(lookup.find().length, 0U);
  lookup.assign(Tokens{5, 7});
  EXPECT_EQ(lookup.find().length, 0U);
}

}  // namespace
}  // namespace tandem
