// The share of misses that the card reads from RAM: arithmetic only, no card is needed.
#include <gtest/gtest.h>

#include "gpu/zero_copy.h"

namespace tandem {
namespace {

constexpr double kMicro = 1e-6;

// A crew that takes 10 us and 30 us an expert; the hand-off costs 20 us beside it.
ZeroCopyShare timed(double card_us, std::size_t rows = 4) {
  ZeroCopyShare share;
  share.set_card(card_us * kMicro);
  for (int i = 0; i < 40; ++i) {
    const auto experts = static_cast<std::size_t>(1 + i % 5);
    share.crew_took(rows, experts, (10 + 30 * static_cast<double>(experts)) * kMicro);
  }
  return share;
}

TEST(ZeroCopyShare, TheLaterOfBothSidesIsLeast) {
  const ZeroCopyShare fast = timed(40);
  EXPECT_EQ(fast.takes(4, 0), 0U);
  EXPECT_EQ(fast.takes(4, 1), 1U);   // 40 against 60
  EXPECT_EQ(fast.takes(4, 2), 1U);   // max(40, 60) against 90 and 80
  EXPECT_EQ(fast.takes(4, 4), 2U);   // max(80, 90) against 120 either way
  EXPECT_EQ(fast.takes(4, 11), 5U);  // max(200, 210) against max(160, 240) and 240
  const ZeroCopyShare slow = timed(200);
  EXPECT_EQ(slow.takes(4, 1), 0U);   // 60 against 200
  EXPECT_EQ(slow.takes(4, 10), 1U);  // 300 against 330 and 400
}

TEST(ZeroCopyShare, NothingIsTakenUntilTheCrewWasTimed) {
  ZeroCopyShare share;
  share.set_card(1 * kMicro);
  EXPECT_EQ(share.takes(1, 5), 0U);
  for (int i = 0; i < 30; ++i) share.crew_took(1, 2, 100 * kMicro);
  EXPECT_EQ(share.takes(1, 5), 5U);
  EXPECT_EQ(share.takes(2, 5), 0U) << "another width has its own times";
}

TEST(ZeroCopyShare, ACardThatCannotReadTakesNothing) {
  const ZeroCopyShare share = timed(0);
  EXPECT_FALSE(share.on());
  EXPECT_EQ(share.takes(4, 5), 0U);
}

// Meetings that were all alike say nothing of the slope: some of the time is taken to be a start.
TEST(ZeroCopyShare, OneNumberOfExperts) {
  ZeroCopyShare share;
  share.set_card(30 * kMicro);
  for (int i = 0; i < 40; ++i) share.crew_took(4, 2, 75 * kMicro);  // 15 and 30 an expert
  EXPECT_EQ(share.takes(4, 1), 1U);                                 // 30 against 65
  EXPECT_EQ(share.takes(4, 4), 3U);                                 // max(90, 65) against max(60, 95)
}

TEST(ZeroCopyShare, OldTimesFade) {
  ZeroCopyShare share = timed(200);
  EXPECT_EQ(share.takes(4, 1), 0U);
  for (int i = 0; i < 3000; ++i) share.crew_took(4, 1 + static_cast<std::size_t>(i) % 5, (1 + i % 5) * 1000 * kMicro);
  EXPECT_EQ(share.takes(4, 1), 1U);
}

TEST(ZeroCopyShare, TheTableIsWhatItSays) {
  const ZeroCopyShare share = timed(40);
  const gpu::TakeTable table = share.table(4);
  for (std::size_t m = 0; m < gpu::TakeTable::kEntries; ++m) EXPECT_EQ(table.take[m], share.takes(4, m)) << m;
}

}  // namespace
}  // namespace tandem
