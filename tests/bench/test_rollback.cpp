// bench_rollback: which passes it runs, what it times, and what it makes of the times.
#include "bench/rollback.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/synthetic_model.h"

namespace tandem::bench {
namespace {

// Passes of the trunk by mode and rows.
class Passes : public RouteObserver {
 public:
  void on_routes(PassMode mode, int bank, std::size_t, const Routes& routes) override {
    if (bank == 0) ++seen[{mode, routes.rows}];
  }
  std::map<std::pair<PassMode, std::size_t>, std::size_t> seen;
};

TEST(Rollback, EveryWayRunsTheSamePassesInTurns) {
  const std::vector<std::uint8_t> image = testing::synthetic_model().build();
  const Model model = Model::bind(Gguf::parse(image, "model.gguf"), std::nullopt, MtpPolicy::kOff);
  TimedOps ops({.workers = 1});
  Pipeline pipeline(model, ops, 64);
  Passes passes;
  pipeline.set_route_observer(&passes);
  for (const std::size_t width : {2U, 5U}) {
    passes.seen.clear();
    const auto times = measure_rollback(pipeline, ops, {.rounds = 6, .prompt = 20, .width = width});
    // Four passes of each way warm up; three of four ways are windows.
    EXPECT_EQ(passes.seen,
              (std::map<std::pair<PassMode, std::size_t>, std::size_t>{
                  {{PassMode::kCommit, 20}, 4}, {{PassMode::kCommit, width}, 10}, {{PassMode::kWindow, width}, 30}}));
    for (const RollbackTimes& way : times) {
      ASSERT_EQ(way.round.size(), 6U);
      ASSERT_EQ(way.keep.size(), 6U);
      ASSERT_EQ(way.scan.size(), 6U);
      for (std::size_t i = 0; i < 6; ++i) {
        EXPECT_GT(way.scan[i], 0);
        EXPECT_GE(way.keep[i], 0);
        EXPECT_GT(way.round[i], way.scan[i] + way.keep[i]);
      }
    }
    EXPECT_GT(state_work(times), 0);
    EXPECT_LT(state_work(times), times[kKeepAll].median(&RollbackTimes::round));
  }
}

TEST(Rollback, StateWorkIsWhatAFinalPassWouldNotDo) {
  std::array<RollbackTimes, kWays> times;
  const auto set = [&](Way way, double keep, double scan) { times[way] = {{9}, {keep, keep, 7}, {scan, 7, scan}}; };
  set(kFinal, 0, 3);
  set(kKeepNone, 0.25, 2);
  set(kKeepOne, 0.5, 2.5);
  set(kKeepAll, 0.5, 4);
  EXPECT_EQ(state_work(times), 0.5 + 4 - 2);
  set(kFinal, 0, 1);
  EXPECT_EQ(state_work(times), 0.5 + 4 - 1);
  set(kKeepAll, 0.5, 0.5);  // faster by chance
  EXPECT_EQ(state_work(times), 0.5);
}

}  // namespace
}  // namespace tandem::bench
