// The two sides of a round (docs/numerics.md, L1 and L2): wherever the experts are, and while they move, the logits
// are the same; and what the store counts is what really happened.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>
#include <set>

#include "placement/replay.h"
#include "runtime/plan_report.h"
#include "runtime/route_recorder.h"
#include "tests/e2e/lockstep_cases.h"
#include "tests/synthetic_model.h"

namespace tandem::testing {
namespace {

struct Outcome {
  std::string hash;
  ExpertStats stats;
  ExpertPlacement at_end;
};
Outcome run_prompts(const ExpertPlacement& placement, const AdaptSettings& adapt, int workers, std::size_t chunk) {
  const auto ops = make_model_machine(workers);
  LoadOptions load;
  load.placement = placement;
  load.adapt = adapt;
  Pipeline pipeline(nano(), *ops, 512, load);
  Outcome result;
  result.hash = chunked(pipeline, chunk);
  pipeline.experts()->verify();
  result.stats = pipeline.experts()->stats();
  result.at_end = pipeline.experts()->placement();
  return result;
}

TEST(Lockstep, EveryPlacementGivesTheSameLogits) {
  SKIP_WITHOUT_MACHINE();
  const AdaptSettings still;
  for (const double share : {0.0, 0.1, 0.5, 0.9, 1.0})
    for (const int workers : {1, 2, 3}) {
      if (kRaceDetector && (share != 0.5 || workers != 3)) continue;
      const Outcome result = run_prompts(random_placement(share, 0, 5), still, workers, 64);
      EXPECT_EQ(result.hash, expected()) << share << " on the card, " << workers << " workers";
      const ExpertCounts& counts = result.stats.prefill;
      if (share == 0.0) {
        EXPECT_EQ(counts.hits, 0U);
      }
      if (share == 1.0) {
        EXPECT_EQ(counts.hits, counts.routes);
        EXPECT_GT(counts.routes, 0U);
      }
    }
}

TEST(Lockstep, ExpertsInTheFileToo) {
  SKIP_WITHOUT_MACHINE();
  EXPECT_EQ(run_prompts(random_placement(0.3, 0.4, 6), {}, 2, 64).hash, expected());
  if (kRaceDetector) return;
  EXPECT_EQ(run_prompts(random_placement(0.0, 1.0, 6), {}, 2, 512).hash, expected());
}

TEST(Lockstep, ExpertsThatMoveGiveTheSameLogits) {
  SKIP_WITHOUT_MACHINE();
  for (const AdaptMode mode : {AdaptMode::kLru, AdaptMode::kLfu, AdaptMode::kSwaps})
    for (const int workers : {1, 2}) {
      if (kRaceDetector && (mode != AdaptMode::kLru || workers != 2)) continue;
      AdaptSettings adapt;
      adapt.mode = mode;
      adapt.swaps_per_round = 4;
      adapt.half_life_rows = 100;
      adapt.margin = 1.0;
      const ExpertPlacement start = random_placement(0.3, 0.1, 7);
      const Outcome result = run_prompts(start, adapt, workers, 3);
      EXPECT_EQ(result.hash, expected()) << "mode " << static_cast<int>(mode) << ", " << workers << " workers";
      EXPECT_GT(result.stats.prefill.swaps, 100U);
      // Experts changed places, none was lost or doubled.
      EXPECT_NE(result.at_end.place, start.place);
      for (const Place place : {Place::kCard, Place::kRam, Place::kDisk})
        EXPECT_EQ(result.at_end.count(place), start.count(place));
    }
}

// A machine that notes which routes each side is given.
class Watched : public CpuOps {
 public:
  using CpuOps::CpuOps;
  void expert_ffn(const ExpertBank& bank, const Routes& routes, const Activation& a, Rows y) override {
    note(routes, here_);
    CpuOps::expert_ffn(bank, routes, a, y);
  }
  void start_experts(const ExpertBank& bank, const Routes& routes, const Activation& a, Rows y,
                     const SharedExpert& shared) override {
    note(routes, crew_);
    CpuOps::start_experts(bank, routes, a, y, shared);
  }
  void combine(const Routes& routes, ConstRows y, ConstRows shared_logit, ConstRows shared, Rows out) override {
    for (std::size_t i = 0; i < routes.rows * routes.used; ++i) {
      const bool here = !here_.empty() && here_[i] >= 0, crew = !crew_.empty() && crew_[i] >= 0;
      EXPECT_NE(here, crew) << "a route of both sides, or of neither";
      EXPECT_EQ(here ? here_[i] : crew_[i], routes.expert[i]);
      ++routed;
    }
    here_.clear();
    crew_.clear();
    CpuOps::combine(routes, y, shared_logit, shared, out);
  }
  std::size_t routed = 0;

 private:
  static void note(const Routes& routes, std::vector<std::int32_t>& ids) {
    ids.assign(routes.expert, routes.expert + routes.rows * routes.used);
  }
  std::vector<std::int32_t> here_, crew_;
};

TEST(Lockstep, EachRouteIsComputedOnOneSide) {
  for (const double share : {0.0, 0.4, 1.0}) {
    Watched ops(2);
    LoadOptions load;
    load.placement = random_placement(share, 0.1, 4);
    load.adapt.mode = AdaptMode::kSwaps;
    Pipeline pipeline(nano(), ops, 64, load);
    SequenceState state(nano().shape, {kContext, KvType::kF16});
    const auto tokens = std::span(prompts()[0]).first(40);
    pipeline.prefill(state, tokens, 16, LogitRows::kLast, {});
    const auto& shape = nano().shape;
    EXPECT_EQ(ops.routed, tokens.size() * static_cast<std::size_t>(shape.layers * shape.experts_used));
  }
}

// The same routes give the same hits and swaps, whatever the workers and however fast the copies are.
TEST(Lockstep, CountsDoNotDependOnTiming) {
  SKIP_WITHOUT_MACHINE();
  if (kRaceDetector) GTEST_SKIP() << "slow under the race detector, and nothing new to it";
  AdaptSettings adapt;
  adapt.mode = AdaptMode::kSwaps;
  const ExpertPlacement start = random_placement(0.4, 0, 8);
  const Outcome one = run_prompts(start, adapt, 1, 8), three = run_prompts(start, adapt, 3, 8);
  EXPECT_EQ(one.at_end.place, three.at_end.place);
  EXPECT_EQ(one.stats.prefill.hits, three.stats.prefill.hits);
  EXPECT_EQ(one.stats.prefill.swaps, three.stats.prefill.swaps);
  EXPECT_GT(one.stats.prefill.hits, 0U);
}

TEST(Lockstep, CountsWhatWasMet) {
  SKIP_WITHOUT_MACHINE();
  const auto ops = make_model_machine(2);
  LoadOptions load;
  load.placement = random_placement(0.5, 0, 9);
  Pipeline pipeline(nano(), *ops, 512, load);
  ExpertStore& store = *pipeline.experts();
  SequenceState state(nano().shape, {kContext, KvType::kF16}, ops->memory());
  std::uint64_t routes = 0, hits = 0, misses = 0, rounds = 0;
  std::uint64_t bytes = 0, hit_bytes = 0;
  pipeline.set_tap([&](std::string_view stage, int layer, std::size_t, ConstRows rows) {
    if (stage != "router_logits") return;
    std::set<std::int32_t> met;
    for (std::size_t r = 0; r < rows.rows; ++r) {
      std::vector<std::int32_t> order(rows.cols);
      for (std::size_t e = 0; e < rows.cols; ++e) order[e] = static_cast<std::int32_t>(e);
      std::stable_sort(order.begin(), order.end(),
                       [&](std::int32_t a, std::int32_t b) { return rows.row(r)[a] > rows.row(r)[b]; });
      for (int k = 0; k < nano().shape.experts_used; ++k) {
        ++routes;
        hits += load.placement->at(layer, order[static_cast<std::size_t>(k)]) == Place::kCard;
        met.insert(order[static_cast<std::size_t>(k)]);
      }
    }
    for (const std::int32_t e : met) {
      const std::uint64_t size = store.layout(layer)->bytes;
      const bool hit = load.placement->at(layer, e) == Place::kCard;
      misses += !hit;
      bytes += size;
      if (hit) hit_bytes += size;
    }
  });
  const Prompt& tokens = prompts()[0];
  pipeline.prefill(state, std::span(tokens).first(40), 16, LogitRows::kLast, {});
  rounds += 3;
  const auto check = [&](const ExpertCounts& counts) {
    EXPECT_EQ(counts.routes, routes);
    EXPECT_EQ(counts.hits, hits);
    EXPECT_EQ(counts.misses, misses);
    EXPECT_EQ(counts.bytes, bytes);
    EXPECT_EQ(counts.hit_bytes, hit_bytes);
    EXPECT_EQ(counts.rounds, rounds);
  };
  check(store.stats().prefill);
  EXPECT_EQ(store.stats().prefill.rows, 40U);
  EXPECT_EQ(store.stats().decode.routes, 0U);
  routes = hits = misses = bytes = hit_bytes = rounds = 0;
  for (std::size_t i = 40; i < 45; ++i, ++rounds)
    pipeline.forward(state, std::span(tokens).subspan(i, 1), PassMode::kCommit, LogitRows::kLast);
  check(store.stats().decode);
  EXPECT_EQ(store.stats().decode.rows, 5U);
}

// What the plan sets aside for the card is what the store takes: slots, and spares for experts of every size.
TEST(Lockstep, TheStoreTakesWhatWasPlanned) {
  SKIP_WITHOUT_MACHINE();
  for (const AdaptMode mode : {AdaptMode::kOff, AdaptMode::kLru, AdaptMode::kSwaps}) {
    PlacementChoices choices;
    choices.cpu = true;
    choices.slots = 50;
    choices.adapt = mode;
    const Policy policy = resolve_policy(choices);
    const PlanReport report = plan_report(nano(), policy, choices, 64);
    std::int64_t slots = 0, spares = 0;
    for (const PlanItem& item : report.plan.items) {
      if (item.memory == Memory::kVram && item.what == "expert slots") slots += item.bytes;
      if (item.memory == Memory::kRam && item.what == "swap buffers") spares += item.bytes;
    }
    const auto ops = make_model_machine(1);
    LoadOptions load;
    load.placement = report.plan.placement;
    load.adapt = adapt_settings(policy);
    Pipeline pipeline(nano(), *ops, 64, load);
    EXPECT_EQ(static_cast<std::int64_t>(pipeline.experts()->card_bytes()), slots + spares / 2);
    EXPECT_EQ(spares > 0, mode != AdaptMode::kOff);
  }
}

// A replay of the recorded routes predicts a live run to the route: prompts in chunks, then windows of several rows.
TEST(Lockstep, ReplayPredictsTheRun) {
  SKIP_WITHOUT_MACHINE();
  if (kRaceDetector) GTEST_SKIP() << "slow under the race detector, and nothing new to it";
  std::uint32_t seed = 20;
  for (const AdaptMode mode : {AdaptMode::kOff, AdaptMode::kLru, AdaptMode::kLfu, AdaptMode::kSwaps})
    for (const double share : {0.2, 0.4, 0.6}) {
      SCOPED_TRACE(fmt::format("mode {}, {} on the card", static_cast<int>(mode), share));
      const auto ops = make_model_machine(2);
      LoadOptions load;
      load.placement = random_placement(share, 0, ++seed);
      load.adapt.mode = mode;
      load.adapt.swaps_per_round = 3;
      load.adapt.half_life_rows = 50;
      if (share == 0.4) load.lending = some_lending_with_cache();
      Pipeline pipeline(nano(), *ops, 512, load);
      RouteRecorder recorder;
      pipeline.set_route_observer(&recorder);
      recorder.begin("test");
      MtpHead draft(pipeline, MtpNorm::kFull, MtpAttention::kSparse);
      SequenceState state = new_state(pipeline, *ops);
      std::size_t lent_in_cache = 0;
      for (const Prompt& tokens : prompts()) {
        state.reset();
        pipeline.prefill(state, std::span(tokens).first(60), 24, LogitRows::kLast, {});
        for (int round = 0; round < 20; ++round) {
          const std::size_t width = 1 + static_cast<std::size_t>(round) % 4;
          if (state.position() + width > tokens.size()) break;
          const std::span<const TokenId> window = std::span(tokens).subspan(state.position(), width);
          const PassOutput out = pipeline.forward(state, window, PassMode::kWindow, LogitRows::kAll);
          if (round % 3 == 0) {  // the draft block's experts have slots too
            std::vector<float> wide(out.wide.row(0), out.wide.row(0) + out.wide.cols);
            draft.forward(state, {wide.data(), 1, wide.size()}, window.first(1), PassMode::kCommit, LogitRows::kNone);
          }
          state.keep(1 + static_cast<std::size_t>(round) % window.size());
          const ExpertStore& store = *pipeline.experts();
          if (!store.prompt_memory_lent()) lent_in_cache = std::max(lent_in_cache, store.lent());
        }
      }
      Census census;
      census.banks = nano().shape.layers + nano().shape.mtp_layers;
      census.experts = nano().shape.experts;
      census.used = nano().shape.experts_used;
      TempDir dir;
      const TraceHeader header{"nano", 0, census.banks, census.experts, census.used};
      TraceWriter writer(dir / "x.trace", header);
      recorder.take_into(census, &writer);
      writer.finish();

      ReplayCase same{"live", load.adapt, *load.placement, {}, {}, load.lending};
      for (int b = 0; b < census.banks; ++b)
        same.expert_bytes.push_back(static_cast<std::int64_t>(pipeline.experts()->layout(b)->bytes));
      same.movable.assign(load.placement->place.size(), true);
      TraceReader reader(dir / "x.trace");
      const ReplayResult replayed =
          replay([&](TraceRound& round) { return reader.next(round); }, std::span(&same, 1), 0).front();
      ExpertCounts live = pipeline.experts()->stats().prefill;
      live += pipeline.experts()->stats().decode;
      EXPECT_EQ(replayed.counts.rounds, live.rounds);
      EXPECT_EQ(replayed.counts.routes, live.routes);
      EXPECT_EQ(replayed.counts.hits, live.hits);
      EXPECT_EQ(replayed.counts.misses, live.misses);
      EXPECT_EQ(replayed.counts.swaps, live.swaps);
      EXPECT_EQ(replayed.decode_hits, pipeline.experts()->stats().decode.hits);
      EXPECT_GT(live.hits, 0U);
      EXPECT_EQ(pipeline.experts()->lent() > 0, share == 0.4);
      EXPECT_EQ(lent_in_cache > 0, share == 0.4);
      if (mode != AdaptMode::kOff) {
        EXPECT_GT(live.swaps, 0U);
      }
    }
}

}  // namespace
}  // namespace tandem::testing
