// What the scheduler believes about drafts and passes, from made-up observations.
#include "runtime/draft_costs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace tandem {
namespace {

Draft head_draft(float confidence) {
  return {1, DraftSource::kHead, confidence};
}
Draft lookup_draft(std::size_t match) {
  return {1, DraftSource::kLookup, 0, match};
}

TEST(AcceptanceTable, BeginsWithAGuessThatConfidenceRaises) {
  const AcceptanceTable table;
  EXPECT_NEAR(table.chance(head_draft(0.999F), 0), 0.95, 1e-6);
  EXPECT_NEAR(table.chance(head_draft(1.0F), 0), 0.95, 1e-6);
  EXPECT_NEAR(table.chance(head_draft(0.0F), 7), 0.05, 1e-6);
  EXPECT_LT(table.chance(lookup_draft(3), 0), table.chance(lookup_draft(40), 0));
  EXPECT_NEAR(table.head_chance(0), 0.7, 1e-9);
  EXPECT_NEAR(table.head_chance(1), 0.595, 1e-9);
}

TEST(AcceptanceTable, LearnsEachBucketByItself) {
  AcceptanceTable table;
  std::mt19937 random(1);
  std::uniform_real_distribution<double> draw(0, 1);
  // True chances that no guess made beforehand knows: small for sure drafts, large for later ones.
  const auto truth = [](float confidence, std::size_t chain) {
    return 0.3 * (1 - static_cast<double>(confidence)) + 0.15 * static_cast<double>(std::min<std::size_t>(chain, 3));
  };
  for (int i = 0; i < 20000; ++i) {
    const auto confidence = static_cast<float>(0.05 + 0.1 * static_cast<double>(random() % 10));
    const std::size_t chain = random() % 4;
    table.made(head_draft(confidence), chain);
    table.observe(head_draft(confidence), chain, draw(random) < truth(confidence, chain));
    const std::size_t match = random() % 2 == 0 ? 3 : 20;
    table.observe(lookup_draft(match), 0, draw(random) < (match == 3 ? 0.9 : 0.2));
  }
  // A bucket remembers about fifty observations.
  double error = 0;
  for (int c = 0; c < 10; ++c)
    for (std::size_t chain = 0; chain < 4; ++chain) {
      const auto confidence = static_cast<float>(0.05 + 0.1 * c);
      EXPECT_NEAR(table.chance(head_draft(confidence), chain), truth(confidence, chain), 0.25);
      error += table.chance(head_draft(confidence), chain) - truth(confidence, chain);
    }
  EXPECT_NEAR(error / 40, 0.0, 0.05);
  EXPECT_NEAR(table.chance(lookup_draft(3), 0), 0.9, 0.15);
  EXPECT_NEAR(table.chance(lookup_draft(20), 0), 0.2, 0.15);
  EXPECT_NEAR(table.chance(lookup_draft(60), 0), 0.95, 1e-6);  // nothing was seen of those
  EXPECT_LT(table.head_chance(0), table.head_chance(3));
  // Places that were never reached follow from the last one that was.
  EXPECT_NEAR(table.head_chance(5), table.head_chance(3) * 0.85 * 0.85, 1e-9);
}

TEST(AcceptanceTable, TheWorthOfSeeingADraftIsThatOfTheSureOnes) {
  AcceptanceTable table;
  EXPECT_NEAR(table.head_worth(0, 1.0, 0.2), 0.5, 1e-9);  // by the first guess, 0.7
  for (int i = 0; i < 400; ++i) {
    const Draft draft = head_draft(i % 4 == 0 ? 0.95F : 0.05F);
    table.made(draft, 0);
    table.observe(draft, 0, i % 4 == 0);
  }
  // A quarter of the drafts are right nearly always, the others never.
  EXPECT_NEAR(table.head_chance(0), 0.25, 0.05);
  EXPECT_NEAR(table.head_worth(0, 1.0, 0.4), 0.25 * 0.6, 0.03);
  EXPECT_NEAR(table.head_worth(0, 0.5, 0.4), 0.25 * 0.1, 0.02);
  EXPECT_NEAR(table.head_worth(0, 0.3, 0.4), 0.0, 1e-9);
}

// What was learned of first drafts stays the guess, but new observations count for more: of chances, of those of drafts
// not made yet, of how often sure drafts come. Later places follow from the first.
TEST(AcceptanceTable, AFadedHeadLearnsFaster) {
  const auto learn = [](AcceptanceTable& table, int times, bool sure, std::size_t chains) {
    for (int i = 0; i < times; ++i)
      for (std::size_t chain = 0; chain < chains; ++chain) {
        table.made(head_draft(sure ? 0.95F : 0.25F), chain);
        table.observe(head_draft(0.65F), chain, sure);
      }
  };
  AcceptanceTable old;
  learn(old, 300, false, 3);
  AcceptanceTable faded = old;
  faded.fade_head(8);
  EXPECT_NEAR(faded.head_chance(0), old.head_chance(0), 1e-12);
  EXPECT_NEAR(faded.head_worth(0, 0.9, 0.1), old.head_worth(0, 0.9, 0.1), 1e-12);
  EXPECT_GT(old.head_chance(1), old.head_chance(0) * 0.86);
  EXPECT_NEAR(faded.head_chance(1), old.head_chance(0) * 0.85, 1e-12);
  EXPECT_NEAR(faded.head_chance(2), old.head_chance(0) * 0.85 * 0.85, 1e-12);
  EXPECT_NEAR(faded.head_worth(1, 0.9, 0.1), 0.9 * faded.head_chance(1) - 0.1, 1e-12);
  for (std::size_t chain = 0; chain < kMaxHeadDrafts; ++chain)
    for (const float confidence : {0.05F, 0.25F, 0.65F, 0.95F})
      EXPECT_NEAR(faded.chance(head_draft(confidence), chain), old.chance(head_draft(confidence), chain), 1e-12);
  learn(old, 8, true, 3);
  learn(faded, 8, true, 3);
  for (std::size_t chain = 0; chain < 3; ++chain) {
    EXPECT_GT(faded.chance(head_draft(0.65F), chain), old.chance(head_draft(0.65F), chain) + 0.15) << chain;
    EXPECT_GT(faded.head_chance(chain), old.head_chance(chain) + 0.15) << chain;
    EXPECT_GT(faded.head_worth(chain, 1.0, 0.5), old.head_worth(chain, 1.0, 0.5) + 0.1) << chain;
  }
  // Few observations are not made more.
  AcceptanceTable young;
  learn(young, 3, true, 1);
  AcceptanceTable same = young;
  same.fade_head(8);
  learn(young, 1, false, 1);
  learn(same, 1, false, 1);
  EXPECT_NEAR(same.head_chance(0), young.head_chance(0), 1e-12);
  EXPECT_NEAR(same.head_worth(0, 0.9, 0.1), young.head_worth(0, 0.9, 0.1), 1e-12);
  EXPECT_NEAR(same.chance(head_draft(0.65F), 0), young.chance(head_draft(0.65F), 0), 1e-12);
}

TEST(AcceptanceTable, ForgetsWhatWasLongAgo) {
  AcceptanceTable table;
  for (int i = 0; i < 1000; ++i) table.observe(head_draft(0.5F), 0, true);
  EXPECT_GT(table.chance(head_draft(0.5F), 0), 0.95);
  for (int i = 0; i < 150; ++i) table.observe(head_draft(0.5F), 0, false);
  EXPECT_LT(table.chance(head_draft(0.5F), 0), 0.15);
}

TEST(RunningMean, IsAMeanAtFirstAndThenFollows) {
  RunningMean mean;
  for (const double value : {1.0, 2.0, 3.0}) mean.add(value);
  EXPECT_DOUBLE_EQ(mean.mean(), 2.0);
  mean.add(1000.0);  // counts as 3 * 2
  EXPECT_DOUBLE_EQ(mean.mean(), 3.0);
  for (int i = 0; i < 100; ++i) mean.add(5.0);
  EXPECT_NEAR(mean.mean(), 5.0, 0.01);
  EXPECT_EQ(mean.count(), 104U);
}

TEST(RunningTime, LeavesSlowFirstOnesOutAndThenFollows) {
  RunningTime time;
  EXPECT_EQ(time.mean(), 0.0);
  const double values[] = {20.0, 5.0, 6.0, 30.0, 4.0, 5.5, 40.0, 5.8, 1.0};
  const double thirds[] = {20.0, 5.0, 5.0, 6.0, 5.0, 5.0, 5.5, 5.5, 5.0};
  for (std::size_t i = 0; i < RunningTime::kFirst; ++i) {
    time.add(values[i]);
    EXPECT_DOUBLE_EQ(time.mean(), thirds[i]) << i;
  }
  time.add(1000.0);  // counts as 3 * 5
  EXPECT_DOUBLE_EQ(time.mean(), 5.0 + 0.1 * 2 * 5.0);
  for (int i = 0; i < 100; ++i) time.add(7.0);
  EXPECT_NEAR(time.mean(), 7.0, 0.01);
  EXPECT_EQ(time.count(), 110U);
}

// Nothing at first does not mean nothing for ever.
TEST(RunningMean, GetsAwayFromZero) {
  RunningMean mean;
  RunningTime time;
  for (int i = 0; i < 12; ++i) {
    mean.add(0);
    time.add(0);
  }
  for (int i = 0; i < 100; ++i) {
    mean.add(5.0);
    time.add(5.0);
  }
  EXPECT_NEAR(mean.mean(), 5.0, 0.01);
  EXPECT_NEAR(time.mean(), 5.0, 0.01);
}

TEST(PassClock, PutsUnknownWidthsOnALine) {
  PassClock clock;
  EXPECT_FALSE(clock.known());
  EXPECT_FALSE(clock.observe(1, 0.200, 0)) << "the first pass of a width is recorded on a card";
  EXPECT_FALSE(clock.known());
  EXPECT_TRUE(clock.observe(1, 0.010, 0));
  EXPECT_TRUE(clock.known());
  EXPECT_NEAR(clock.seconds(1), 0.010, 1e-12);
  EXPECT_NEAR(clock.seconds(5), 0.010 * (1 + 4 * PassClock::kRowGuess), 1e-12);
  for (int i = 0; i < 50; ++i) {
    clock.observe(1, 0.010, 0);
    clock.observe(4, 0.022, 0);
  }
  EXPECT_NEAR(clock.seconds(1), 0.010, 2e-4);
  EXPECT_NEAR(clock.seconds(4), 0.022, 2e-4);
  EXPECT_NEAR(clock.seconds(2), 0.014, 3e-4);
  EXPECT_NEAR(clock.seconds(9), 0.042, 2e-3);
  EXPECT_EQ(clock.count(1), 51U);
  EXPECT_EQ(clock.count(4), 49U);
  EXPECT_EQ(clock.age(4), 0U);
  EXPECT_EQ(clock.age(1), 1U);
  EXPECT_EQ(clock.age(2), 102U);
}

// Two slow passes say little of a width, and nothing of the others; three are believed.
TEST(PassClock, AFewSlowPassesMakeNoWidthDear) {
  PassClock clock;
  const auto slow = [&] { clock.observe(2, 0.030, 0); };
  for (int i = 0; i < 20; ++i) {
    clock.observe(1, 0.010, 0);
    clock.observe(3, 0.014, 0);
  }
  const double usual = clock.seconds(5);
  slow();  // recorded
  for (std::size_t i = 1; i < PassClock::kSure; ++i) {
    slow();
    EXPECT_EQ(clock.count(2), i);
    EXPECT_NEAR(clock.seconds(2), 0.012, 2e-4);
    EXPECT_NEAR(clock.seconds(5), usual, 1e-5);
  }
  slow();
  EXPECT_GT(clock.seconds(2), 0.024);
}

// What a width took long ago gives way to what the others say; what is run is believed.
TEST(PassClock, TimesOfLongAgoFade) {
  PassClock clock;
  for (int i = 0; i < 60; ++i) clock.observe(2, 0.020, 0);
  const auto others = [&](int rounds) {
    for (int i = 0; i < rounds; ++i) clock.observe(i % 2 == 0 ? 1 : 3, i % 2 == 0 ? 0.010 : 0.014, 0);
  };
  others(20);
  const double soon = clock.seconds(2);
  EXPECT_GT(soon, 0.018);
  others(40);
  const double later = clock.seconds(2);
  EXPECT_LT(later, 0.0175);
  others(140);
  EXPECT_LT(clock.seconds(2), 0.0150);
  EXPECT_GT(clock.seconds(2), 0.0140);  // it is one of the three that the line goes through
  for (int i = 0; i < 60; ++i) clock.observe(2, 0.020, 0);
  EXPECT_GT(clock.seconds(2), 0.0195);
}

TEST(PassClock, NeverSaysThatMoreRowsTakeLess) {
  PassClock clock;
  for (int i = 0; i < 20; ++i) {
    clock.observe(1, 0.020, 0);
    clock.observe(4, 0.010, 0);
  }
  EXPECT_GE(clock.seconds(9), clock.seconds(8));
  EXPECT_GT(clock.seconds(9), 0.005);
}

// Rounds cost 5 ms and 0.2 ms a miss; a new text brings twice the misses. What a round will take then is known before
// most widths were run again.
TEST(PassClock, MissesOfLateMakeAllWidthsDearer) {
  PassClock clock;
  std::mt19937 random(3);
  std::uniform_real_distribution<double> draw(0.7, 1.3);
  const auto round = [&](std::size_t rows, double level) {
    const double misses = level * draw(random) * 10 * std::pow(static_cast<double>(rows), 0.8);
    clock.observe(rows, 0.005 + 0.0002 * misses, misses);
  };
  for (int i = 0; i < 300; ++i) round(1 + random() % 4, 1.0);
  const double usual = clock.seconds(4), usual_misses = clock.misses(4);
  EXPECT_NEAR(usual, 0.005 + 0.0002 * 10 * std::pow(4, 0.8), 0.001);
  EXPECT_NEAR(usual_misses, 10 * std::pow(4, 0.8), 5);
  EXPECT_NEAR(clock.misses(8), 10 * std::pow(8, 0.8), 18);
  for (int i = 0; i < 8; ++i) round(1, 2.0);
  EXPECT_GT(clock.misses(4), 1.2 * usual_misses);
  EXPECT_GT(clock.seconds(4), usual + 0.001);
  EXPECT_GT(clock.seconds(4) - clock.seconds(2), 1.1 * 0.0002 * 10 * (std::pow(4, 0.8) - std::pow(2, 0.8)));
}

TEST(ChooseDepth, AgreesWithTryingAll) {
  std::mt19937 random(9);
  std::uniform_real_distribution<double> draw(0, 1);
  std::size_t counts[16] = {};
  for (int round = 0; round < 2000; ++round) {
    PassClock clock;
    const double base = 0.005 + 0.01 * draw(random), row = 0.006 * draw(random);
    for (int i = 0; i < 6; ++i)
      for (std::size_t w = 1; w <= 16; ++w) clock.observe(w, base + row * static_cast<double>(w), 0);
    std::vector<double> chances(random() % 16);
    for (double& chance : chances) chance = std::sqrt(draw(random));
    const double rate = (0.5 + 1.5 * draw(random)) / (base + row);
    const double step = 0.002 * draw(random), first = 0.004 * draw(random);
    const std::size_t made = random() % (chances.size() + 1);
    const std::size_t least = random() % 3 == 0 ? random() % (chances.size() + 1) : 0;
    std::size_t best = 0;
    double gain = least == 0 ? 0 : -1e9;
    for (std::size_t d = std::max<std::size_t>(least, 1); d <= chances.size(); ++d) {
      double tokens = 0, cost = clock.seconds(1 + d) - clock.seconds(1);
      for (std::size_t n = 1; n <= d; ++n) {
        double reach = 1;
        for (std::size_t i = 0; i < n; ++i) reach *= chances[i];
        tokens += reach;
      }
      if (d > made) cost += first + step * static_cast<double>(d - made - 1);
      if (tokens - rate * cost > gain) {
        gain = tokens - rate * cost;
        best = d;
      }
    }
    const DepthChoice choice = choose_depth(chances, clock, rate, made, first, step, least);
    ASSERT_EQ(choice.depth, best);
    ASSERT_NEAR(choice.gain, gain, 1e-9);
    ++counts[best];
  }
  EXPECT_GT(counts[0], 100U);
  EXPECT_GT(counts[1] + counts[2] + counts[3], 300U);
}

TEST(TokenRate, IsTokensOverSecondsOfLate) {
  TokenRate rate;
  EXPECT_FALSE(rate.known());
  rate.add(2, 0.1);
  EXPECT_DOUBLE_EQ(rate.rate(), 20.0);
  for (int i = 0; i < 500; ++i) rate.add(1, 0.1);
  EXPECT_NEAR(rate.rate(), 10.0, 0.01);
}

}  // namespace
}  // namespace tandem
