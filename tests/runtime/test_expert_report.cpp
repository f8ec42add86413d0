// What the store counted, in words: checked against the words.
#include "runtime/expert_report.h"

#include "placement/units.h"
#include "tests/runtime/driven_store.h"

namespace tandem::testing {
namespace {

ExpertStats made_up() {
  ExpertStats stats;
  stats.prefill = {2, 40, 800, 200, 4096, 1024, 30, 6, 3 << 20, 0.5, 0.002};
  stats.decode = {10, 12, 160, 147, 8192, 7168, 21, 4, 1 << 20, 0.0031, 0.0004};
  return stats;
}

TEST(ExpertReport, StatusOfTheAnswer) {
  ExpertStats stats = made_up();
  EXPECT_EQ(expert_status(stats), "91.9 % hits, 2.1 misses a round, crew wait 0.31 ms, 4 swaps");
  stats.decode.swaps = 1;
  EXPECT_EQ(expert_status(stats), "91.9 % hits, 2.1 misses a round, crew wait 0.31 ms, 1 swap");
  stats.decode.crew_wait_seconds = 0;  // a card, which is not asked how long it waited
  EXPECT_EQ(expert_status(stats), "91.9 % hits, 2.1 misses a round, 1 swap");
  stats.decode = {};
  EXPECT_EQ(expert_status(stats), "");
  EXPECT_EQ(expert_status({}), "");
}

TEST(ExpertReport, BetweenTwoLooks) {
  const ExpertStats one = made_up();
  ExpertStats two = one;
  two.decode += one.decode;
  two.decode += one.decode;
  const ExpertStats between = two - one;
  EXPECT_EQ(between.prefill.rounds, 0U);
  const ExpertCounts& d = between.decode;
  const std::vector<std::uint64_t> found{d.rounds,    d.rows,   d.routes, d.hits,      d.bytes,
                                         d.hit_bytes, d.misses, d.swaps,  d.swap_bytes};
  EXPECT_EQ(found, (std::vector<std::uint64_t>{20, 24, 320, 294, 16384, 14336, 42, 8, 2 << 20}));
  EXPECT_DOUBLE_EQ(d.crew_wait_seconds, 0.0062);
  EXPECT_DOUBLE_EQ(d.copy_wait_seconds, 0.0008);
}

TEST(ExpertReport, Lines) {
  ExpertPlacement start = all_in_ram(kBanks, kExperts);
  start.at(0, 0) = start.at(0, 1) = start.at(1, 1) = Place::kCard;
  start.at(4, 4) = Place::kDisk;
  Driven run(settings(AdaptMode::kOff, 0), start, 1);
  const auto text = [&](const ExpertStats& stats) {
    std::string all;
    for (const ReportLine& line : expert_report(*run.store, stats)) all += line.label + ": " + line.text + "\n";
    return all;
  };
  const std::string where = fmt::format("experts: 3 on the card ({}), 36 in RAM ({}, 0 B locked), 1 in the file\n",
                                        format_bytes(static_cast<std::int64_t>(run.store->card_bytes())),
                                        format_bytes(static_cast<std::int64_t>(run.store->ram_bytes())));
  EXPECT_EQ(text(made_up()),
            where +
                "prompt hits: 25.0 % of routes and 25.0 % of expert bytes on the card, 15.0 misses a round, 6 swaps "
                "(3.00 MiB), 40 tokens in 2 rounds\n"
                "answer hits: 91.9 % of routes and 87.5 % of expert bytes on the card, 2.1 misses a round, 4 swaps "
                "(1.00 MiB), 12 tokens in 10 rounds\n"
                "waiting: 0.31 ms a round for the crew, 0.04 ms for moves (answer)\n");
  ExpertStats prompt = made_up();
  prompt.decode = {};
  EXPECT_NE(text(prompt).find("waiting: 250.00 ms a round for the crew, 1.00 ms for moves\n"), std::string::npos);
  EXPECT_EQ(text({}), where + "waiting: 0.00 ms a round for moves\n");
  ExpertStore none(*two_sizes().model, {}, nullptr, one_by_one);
  EXPECT_EQ(expert_report(none, {}).size(), 1U);
}

// The waits belong to the phase of the round in which they were.
TEST(ExpertReport, WhatWasFetchedAhead) {
  Driven run(settings(AdaptMode::kOff, 0), thirds(1), 1);
  const auto line = [&](const FetchJudge* judge) {
    std::string all;
    for (const ReportLine& l : expert_report(*run.store, {}, judge))
      if (l.label == "fetched") all += l.text;
    return all;
  };
  FetchJudge judge(FetchAhead::kAuto);
  EXPECT_EQ(line(nullptr), "");
  EXPECT_EQ(line(&judge), "");
  judge.count({2000, 1500}, 100, 100 * 100e-6);
  EXPECT_EQ(line(&judge), "2,000 experts ahead of their layers, 75 % of them asked for and there in time");
  judge.count({2000, 500}, 1000, 1000 * 1e-6);
  ASSERT_FALSE(judge.on());
  EXPECT_EQ(line(&judge),
            "4,000 experts ahead of their layers, 50 % of them asked for and there in time; left off, as one saves the "
            "CPU 5 us only");
}
TEST(ExpertReport, WaitsByPhase) {
  Driven run(settings(AdaptMode::kOff, 0), thirds(1), 1);
  run.store->add_crew_wait(1.0);
  run.store->add_crew_wait(0.5);
  run.round(3, false);
  run.store->add_crew_wait(0.25);
  run.round(1, true);
  run.round(1, true);
  EXPECT_EQ(run.store->stats().prefill.crew_wait_seconds, 1.5);
  EXPECT_EQ(run.store->stats().decode.crew_wait_seconds, 0.25);
}

}  // namespace
}  // namespace tandem::testing
