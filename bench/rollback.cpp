#include "bench/rollback.h"

#include <algorithm>
#include <chrono>

#include "bench/noise.h"

namespace tandem::bench {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

void TimedOps::gdn_scan(const GdnScan& scan) {
  const auto start = Clock::now();
  CpuOps::gdn_scan(scan);
  seconds += seconds_since(start);
}

std::array<RollbackTimes, kWays> measure_rollback(Pipeline& pipeline, TimedOps& ops, const RollbackPlan& plan) {
  constexpr std::size_t kWarmUps = 4;
  Draws draws(7);
  const auto token = [&] {
    return static_cast<TokenId>(draws.below(static_cast<std::size_t>(pipeline.model().shape.vocab)));
  };
  const std::size_t context = plan.prompt + (plan.rounds + kWarmUps + 1) * plan.width;
  std::vector<SequenceState> states;
  std::vector<TokenId> prompt(plan.prompt), window(plan.width);
  for (TokenId& t : prompt) t = token();
  for (std::size_t way = 0; way < kWays; ++way) {
    states.emplace_back(pipeline.model().shape, StateOptions{context, KvType::kF16});
    pipeline.prefill(states.back(), prompt, pipeline.max_rows(), LogitRows::kNone, {});
  }
  std::array<RollbackTimes, kWays> times;
  for (std::size_t round = 0; round < plan.rounds + kWarmUps; ++round) {
    for (TokenId& t : window) t = token();  // the same for every way: the same experts, where they stand alike
    for (std::size_t i = 0; i < kWays; ++i) {
      const std::size_t way = round % 2 == 0 ? i : kWays - 1 - i;
      SequenceState& state = states[way];
      ops.seconds = 0;
      const auto start = Clock::now();
      pipeline.forward(state, window, way == kFinal ? PassMode::kCommit : PassMode::kWindow, LogitRows::kAll);
      const auto passed = Clock::now();
      if (way != kFinal) state.keep(way == kKeepNone ? 0 : way == kKeepOne ? 1 : plan.width);
      const double keep = seconds_since(passed), all = seconds_since(start);
      if (round < kWarmUps) continue;
      times[way].round.push_back(all);
      times[way].keep.push_back(keep);
      times[way].scan.push_back(ops.seconds);
    }
  }
  return times;
}

double state_work(const std::array<RollbackTimes, kWays>& times) {
  const double least =
      std::min(times[kKeepNone].median(&RollbackTimes::scan), times[kFinal].median(&RollbackTimes::scan));
  return times[kKeepAll].median(&RollbackTimes::keep) +
         std::max(0.0, times[kKeepAll].median(&RollbackTimes::scan) - least);
}

}  // namespace tandem::bench
