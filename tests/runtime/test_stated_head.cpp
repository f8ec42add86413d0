// A head that is right as often as stated.
#include "runtime/stated_head.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

struct CountingHead : DraftHead {
  int starts = 0, begins = 0, drafts = 0, advances = 0, ends = 0;
  void start(std::size_t, const SamplerSettings&) override { ++starts; }
  bool begin(std::span<const TokenId>) override { return ++begins > 0; }
  Draft draft(std::span<const TokenId>) override { return ++drafts, Draft{77, DraftSource::kHead, 0.25F}; }
  void advance(TokenId, bool) override { ++advances; }
  void end() override { ++ends; }
};

std::vector<TokenId> text() {
  std::vector<TokenId> tokens(4000);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(i * 7 % 50);
  return tokens;
}

int hits(double chance, std::uint64_t seed) {
  CountingHead inner;
  StatedHead head(inner, chance, seed);
  const std::vector<TokenId> tokens = text();
  head.set_text(tokens);
  int right = 0;
  for (std::size_t n = 1; n < tokens.size(); ++n) {
    const Draft draft = head.draft(std::span(tokens).first(n));
    EXPECT_GE(draft.token, 0);
    EXPECT_EQ(draft.confidence, static_cast<float>(chance));
    right += draft.token == tokens[n] ? 1 : 0;
  }
  EXPECT_EQ(inner.drafts, 3999) << "the real head has to work for its time";
  return right;
}

TEST(StatedHead, IsRightAsOftenAsStated) {
  EXPECT_EQ(hits(0.0, 1), 0);
  EXPECT_EQ(hits(1.0, 1), 3999);
  EXPECT_NEAR(hits(0.524, 1), 0.524 * 3999, 100);  // three standard deviations: 95
  EXPECT_EQ(hits(0.524, 1), hits(0.524, 1));
  EXPECT_NE(hits(0.524, 1), hits(0.524, 2));
}

TEST(StatedHead, TheInnerHeadDoesEverythingElse) {
  CountingHead inner;
  StatedHead head(inner, 0.5, 1);
  const std::vector<TokenId> tokens = text();
  head.set_text(std::span(tokens).first(3));
  head.start(0, {});
  EXPECT_TRUE(head.begin(tokens));
  head.advance(1, true);
  head.end();
  EXPECT_EQ(inner.starts + inner.begins + inner.advances + inner.ends, 4);
  EXPECT_EQ(head.draft(std::span(tokens).first(3)).token, 77) << "beyond the text the head's own guess stays";
}

}  // namespace
}  // namespace tandem
