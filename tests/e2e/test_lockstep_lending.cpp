// Memory that is lent to experts, on a machine: whatever comes and goes in it, the logits are the same.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <utility>

#include "runtime/mtp_drafter.h"
#include "tests/e2e/lockstep_cases.h"
#include "tests/synthetic_model.h"

namespace tandem::testing {
namespace {

// Work memory of prompts and experts take turns in the same bytes: the logits are those of a run without that.
TEST(Lockstep, LentMemoryGivesTheSameLogits) {
  SKIP_WITHOUT_MACHINE();
  const auto run = [](const AdaptMode mode, const Lending& lending, std::uint64_t& hits, std::size_t& lent) {
    const auto ops = make_model_machine(2);
    LoadOptions load;
    load.placement = random_placement(0.2, 0, 8);
    load.adapt.mode = mode;
    load.lending = lending;
    load.stream_rows = 40;
    load.part_rows = 32;
    Pipeline pipeline(nano(), *ops, 64, load);
    MtpHead draft(pipeline, MtpNorm::kFull, MtpAttention::kSparse);
    std::vector<float> seen;
    const auto see = [&](ConstRows rows) {
      for (std::size_t r = 0; r < rows.rows; ++r) seen.insert(seen.end(), rows.row(r), rows.row(r) + rows.cols);
    };
    for (const Prompt& tokens : prompts()) {
      SequenceState state = new_state(pipeline, *ops);
      std::size_t row = 0;
      for (int turn = 0; turn < 3 && state.position() + 120 < tokens.size(); ++turn) {
        // A long pass, a short one of a prompt, one that the crew computes; then windows, and the draft block.
        for (const std::size_t rows : {64U, 9U, 20U}) {
          const PassOutput out = pipeline.forward(state, std::span(tokens).subspan(state.position(), rows),
                                                  PassMode::kCommit, LogitRows::kLast);
          see(out.logits);
          const std::vector<float> wide(out.wide.row(0), out.wide.row(0) + rows * out.wide.cols);
          see(draft
                  .forward(state, {wide.data(), rows, out.wide.cols}, std::span(tokens).subspan(row + 1, rows),
                           PassMode::kCommit, LogitRows::kLast)
                  .logits);
          row += rows;
          EXPECT_TRUE(rows == 9 || !pipeline.experts()->prompt_memory_lent());
        }
        for (int round = 0; round < 8; ++round) {
          see(pipeline
                  .forward(state, std::span(tokens).subspan(state.position(), 3), PassMode::kWindow, LogitRows::kAll)
                  .logits);
          state.keep(2);
        }
        lent = std::max(lent, pipeline.experts()->lent());
      }
      if (kRaceDetector) break;
    }
    pipeline.experts()->verify();
    hits = pipeline.experts()->stats().decode.hits;
    return seen;
  };
  for (const AdaptMode mode : {AdaptMode::kOff, AdaptMode::kSwaps}) {
    std::uint64_t hits = 0, more_hits = 0;
    std::size_t none = 0, lent = 0;
    const std::vector<float> expected_logits = run(mode, {}, hits, none);
    EXPECT_EQ(none, 0U);
    for (const Lending& lending : {some_lending(), some_lending_with_cache()}) {
      const std::uint64_t before = std::exchange(more_hits, 0);
      const std::vector<float> logits = run(mode, lending, more_hits, lent);
      EXPECT_GT(lent, lending.cache.count > 0 ? 20U : 10U);
      EXPECT_GT(more_hits, std::max(hits, before));
      ASSERT_EQ(logits.size(), expected_logits.size());
      EXPECT_EQ(std::memcmp(logits.data(), expected_logits.data(), logits.size() * sizeof(float)), 0);
    }
  }
}

// Passes of so many rows on a machine and on the CPU without a card; their logits in one hash. A pass that fits a
// window is one. `before` sees the rows of each pass of the machine.
void follow_the_cpu(const LoadOptions& load, const std::vector<std::size_t>& passes,
                    const std::function<void(std::size_t, ExpertStore&)>& before) {
  const auto run = [&](std::unique_ptr<Ops> ops, const LoadOptions& options, bool lends) {
    Pipeline pipeline(nano(), *ops, 100, options);
    LogitsHash hash;
    SequenceState state(nano().shape, {kContext, KvType::kF16}, ops->memory());
    for (const std::size_t rows : passes) {
      if (lends) before(rows, *pipeline.experts());
      const bool window = rows <= kMaxWindow;
      add_rows(hash,
               pipeline
                   .forward(state, std::span(prompts()[2]).subspan(state.position(), rows),
                            window ? PassMode::kWindow : PassMode::kCommit, window ? LogitRows::kAll : LogitRows::kLast)
                   .logits);
      if (window) state.keep(rows);
    }
    if (lends) pipeline.experts()->verify();
    return hash.hex();
  };
  EXPECT_EQ(run(make_model_machine(2), load, true), run(make_cpu_ops(1), {}, false));
}

// One expert of eight on the card or off it, and memory for passes of more than 64 rows, lent as soon as it can be: it
// holds their work memory (7 MB), then the ring of experts on their way (4 MB), and between them every expert that is
// off the card (up to 11 MB).
LoadOptions lent_at_once(Place eighth) {
  LoadOptions load;
  load.placement = all_in_ram(bank_count(), expert_count());
  for (std::size_t i = 0; i < load.placement->place.size(); ++i)
    if ((i % 8 == 1) == (eighth == Place::kCard)) load.placement->place[i] = Place::kCard;
  load.adapt.mode = AdaptMode::kOff;
  load.stream_rows = 17;
  load.lending.bytes = workspace_bytes(nano().shape, 100, nano().shape.max_positions, 0) + (std::int64_t{16} << 20);
  load.lending.bytes_per_round = load.lending.bytes;
  return load;
}

// The ring of a card that streams experts to passes of 17 rows and more lies in lent memory, which a pass of 64 has not
// taken back. It is made by a long pass, or would be by the first short one.
TEST(Lockstep, ShortPassesLeaveLentMemoryAlone) {
  SKIP_WITHOUT_MACHINE();
  const auto lent_to_all = [](std::size_t rows, ExpertStore& store) {
    if (rows > 1) store.verify();
    if (rows > 1 && rows <= 64) {
      EXPECT_EQ(store.lent(), 7 * store.slots()) << rows;
    }
  };
  follow_the_cpu(lent_at_once(Place::kCard), {1, 1, 1, 40, 1, 100, 1, 1, 1, 17, 1, 64, 1, 1, 65, 1}, lent_to_all);
}

// A pass that is recorded while all experts are on the card does not meet the crew; when lent memory is taken back, the
// same pass has to.
TEST(Lockstep, RecordedPassesFollowLentExperts) {
  SKIP_WITHOUT_MACHINE();
  const LoadOptions load = lent_at_once(Place::kRam);
  const auto all = static_cast<std::size_t>(load.placement->count(Place::kRam));
  int full = 0;
  const auto lent = [&](std::size_t rows, ExpertStore& store) { full += rows == 70 && store.lent() == all ? 1 : 0; };
  follow_the_cpu(load, {2, 2, 2, 3, 70, 3, 2, 2, 2, 5, 3, 70, 5, 3, 2}, lent);
  EXPECT_EQ(full, 2);
}

// Rows that waited for the draft head, before and within a prompt that the trunk runs in a short pass, do not cost the
// lent memory.
TEST(Lockstep, TheDraftHeadLeavesLentMemoryAlone) {
  SKIP_WITHOUT_MACHINE();
  const auto ops = make_model_machine(2);
  LoadOptions load = fifth_on_card(some_lending());
  Pipeline pipeline(nano(), *ops, 64, load);
  const ExpertStore& store = *pipeline.experts();
  SequenceState state(nano().shape, {kContext, KvType::kF16}, ops->memory());
  MtpDrafter head(pipeline, state, MtpNorm::kFull, MtpAttention::kSparse);
  const Prompt& tokens = prompts()[2];
  const auto pass = [&](std::size_t rows, MtpDrafter::Rows what) {
    const std::size_t first = state.position();
    const PassOutput out =
        pipeline.forward(state, std::span(tokens).subspan(first, rows), PassMode::kCommit, LogitRows::kLast);
    head.take(first, out.wide, what);
  };
  const auto width = static_cast<std::size_t>(nano().shape.wide());
  pass(40, MtpDrafter::Rows::kPrompt);
  EXPECT_EQ(store.lent(), 0U);
  for (int round = 0; round < 20; ++round) pass(1, MtpDrafter::Rows::kRound);
  EXPECT_GT(store.lent(), 20U);
  EXPECT_EQ(state.mtp.waiting(width), 21U);
  head.start(state.position(), {});
  EXPECT_TRUE(head.begin(std::span(tokens).first(state.position() + 1)));  // 21 rows
  EXPECT_EQ(state.mtp.waiting(width), 0U);
  EXPECT_GT(store.lent(), 20U);
  for (int round = 0; round < 9; ++round) pass(1, MtpDrafter::Rows::kRound);
  pass(16, MtpDrafter::Rows::kPrompt);  // 24 rows for the head
  EXPECT_EQ(state.mtp.waiting(width), 1U);
  EXPECT_GT(store.lent(), 20U);
  pass(17, MtpDrafter::Rows::kPrompt);
  EXPECT_EQ(store.lent(), 0U);
  EXPECT_EQ(state.mtp.rows, state.position() - 1);
  store.verify();
}

// A step of one of two conversations: a prompt, one that is cancelled, a window, a chain of drafts, or statistics.
void random_step(Pipeline& pipeline, SequenceState& state, MtpDrafter& head, std::mt19937& random, LogitsHash& hash) {
  const Prompt& tokens = prompts()[2];
  const std::size_t first = state.position();
  const auto next = std::span(tokens).subspan(first);
  const auto kind = random() % 12;
  if (kind == 0) {
    const PassOutput out = pipeline.forward(state, next.first(1 + random() % 90), PassMode::kCommit, LogitRows::kAll);
    add_rows(hash, out.logits);
    return head.take(first, out.wide, MtpDrafter::Rows::kPrompt);
  }
  if (kind == 1) {
    int calls = 0;
    const auto cancelled = [&] { return ++calls > 1; };
    pipeline.prefill(state, next.first(60), 1 + random() % 50, LogitRows::kLast, {}, cancelled);
    return;
  }
  if (kind < 8) {
    const std::size_t rows = 1 + random() % 4, kept = 1 + random() % rows;
    const PassOutput out = pipeline.forward(state, next.first(rows), PassMode::kWindow, LogitRows::kAll);
    add_rows(hash, out.logits);
    state.keep(kept);
    return head.take(first, out.wide.slice(0, kept), MtpDrafter::Rows::kRound);
  }
  if (kind == 11) return static_cast<void>(pipeline.experts()->stats());
  SamplerSettings sampling;
  sampling.temperature = 0;
  head.start(first, sampling);
  Prompt prefix(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(first) + 1);
  if (!head.begin(prefix)) return;
  for (int depth = 0; depth < 3; ++depth) {
    const Draft draft = head.draft(prefix);
    hash.add(std::span(&draft.confidence, 1));
    prefix.push_back(draft.token);
    head.advance(draft.token, true);
  }
  head.end();
}

// Whatever two conversations do, their logits and drafts are those of a run that lends nothing.
TEST(Lockstep, ConversationsTakeTurnsWithLentMemory) {
  SKIP_WITHOUT_MACHINE();
  const auto run = [](std::uint32_t seed, const Lending& lending, std::size_t& lent) {
    const auto ops = make_model_machine(2);
    LoadOptions load;
    load.placement = random_placement(seed == 4 ? 0.0 : 0.3, seed == 3 ? 0.1 : 0.0, seed);
    load.adapt.mode = static_cast<AdaptMode>(seed % 4);
    load.adapt.half_life_rows = 30;
    load.part_rows = 32;
    load.lending = lending;
    Pipeline pipeline(nano(), *ops, 90, load);
    SequenceState a = new_state(pipeline, *ops);  // in the lent cache, if there is one
    SequenceState b(nano().shape, {kContext, KvType::kF16}, ops->memory());
    MtpDrafter head_a(pipeline, a, MtpNorm::kFull, MtpAttention::kSparse);
    MtpDrafter head_b(pipeline, b, MtpNorm::kFull, MtpAttention::kDense);
    std::mt19937 random(seed);
    LogitsHash hash;
    for (int step = 0; step < 90 && std::max(a.position(), b.position()) + 100 < prompts()[2].size(); ++step) {
      const bool first = random() % 4 != 0;
      random_step(pipeline, first ? a : b, first ? head_a : head_b, random, hash);
      lent = std::max(lent, pipeline.experts()->lent());
      if (step % 10 == 0) pipeline.experts()->verify();
    }
    pipeline.experts()->verify();
    return hash.hex();
  };
  for (const std::uint32_t seed : {1U, 2U, 3U, 4U}) {
    std::size_t none = 0, lent = 0;
    const std::string expected_hash = run(seed, {}, none);
    EXPECT_EQ(none, 0U);
    for (const Lending& lending : {some_lending(), some_lending_with_cache()}) {
      lent = 0;
      EXPECT_EQ(run(seed, lending, lent), expected_hash) << seed;
      EXPECT_GT(lent, lending.cache.count > 0 ? 15U : 5U) << seed;
    }
    if (kRaceDetector) break;
  }
}

// A conversation in the lent cache goes back, is saved, and is read where experts are; another sequence gets the memory
// when it is gone.
TEST(Lockstep, SavedConversationsTakeLentMemoryBack) {
  SKIP_WITHOUT_MACHINE();
  TempDir dir;
  const auto run = [&](const Lending& lending) {
    const auto ops = make_model_machine(2);
    Pipeline pipeline(nano(), *ops, 64, fifth_on_card(lending, 1 << 20));
    LogitsHash hash;
    const auto windows = [&](SequenceState& state, int rounds, const Prompt& tokens) {
      for (int round = 0; round < rounds; ++round) {
        const auto next = std::span(tokens).subspan(state.position(), 3);
        add_rows(hash, pipeline.forward(state, next, PassMode::kWindow, LogitRows::kAll).logits);
        state.keep(2);
      }
      pipeline.experts()->verify();
    };
    const auto file = dir / "long.state";
    {
      SequenceState state = new_state(pipeline, *ops);
      pipeline.prefill(state, std::span(prompts()[2]).first(420), 60, LogitRows::kLast, {}, {});
      windows(state, 5, prompts()[2]);
      state.save(file, 1);
      state.reset();
      windows(state, 8, prompts()[0]);
      const auto point = state.checkpoint();
      windows(state, 8, prompts()[0]);
      state.rewind(*point);
      windows(state, 4, prompts()[0]);
      const std::size_t lent = pipeline.experts()->lent();
      state.restore(file, 1);  // over experts
      EXPECT_EQ(pipeline.experts()->lent() < lent, lending.cache.count > 0);
      windows(state, 8, prompts()[2]);
    }
    SequenceState next = new_state(pipeline, *ops);
    windows(next, 12, prompts()[1]);
    return hash.hex();
  };
  const std::string expected_hash = run({});
  EXPECT_EQ(run(some_lending_with_cache()), expected_hash);
}

// A conversation in the lent cache that also begins anew, goes back, is saved and restored, and makes way for another.
TEST(Lockstep, ConversationsComeAndGoInLentMemory) {
  SKIP_WITHOUT_MACHINE();
  TempDir dir;
  const auto run = [&](std::uint32_t seed, const Lending& lending, std::size_t& lent) {
    const auto ops = make_model_machine(2);
    LoadOptions load;
    load.placement = random_placement(0.3, 0.0, seed);
    load.adapt.mode = static_cast<AdaptMode>(seed % 4);
    load.adapt.half_life_rows = 30;
    load.lending = lending;
    Pipeline pipeline(nano(), *ops, 90, load);
    std::mt19937 random(seed);
    LogitsHash hash;
    const auto file = dir / "some.state";
    bool saved = false;
    for (int conversation = 0; conversation < 3; ++conversation) {
      SequenceState state = new_state(pipeline, *ops);
      MtpDrafter head(pipeline, state, MtpNorm::kFull, MtpAttention::kSparse);
      std::shared_ptr<const SequenceState::Checkpoint> point;
      for (int step = 0; step < 50; ++step) {
        const auto kind = random() % 24;
        if (kind == 0 || state.position() + 100 > prompts()[2].size()) {
          state.reset();
          point.reset();
        } else if (kind == 1) {
          point = state.checkpoint();
        } else if (kind == 2 && point) {
          state.rewind(*point);
        } else if (kind == 3) {
          state.save(file, 1);
          saved = true;
        } else if (kind == 4 && saved) {
          state.restore(file, 1);
          point.reset();
        } else {
          random_step(pipeline, state, head, random, hash);
        }
        lent = std::max(lent, pipeline.experts()->lent());
        if (step % 5 == 0) pipeline.experts()->verify();
      }
    }
    pipeline.experts()->verify();
    return hash.hex();
  };
  Lending lending = some_lending_with_cache();
  lending.cache_ahead = 0;
  lending.bytes_per_round = 1 << 20;
  for (const std::uint32_t seed : {0U, 1U, 2U, 3U}) {
    std::size_t none = 0, lent = 0;
    const std::string expected_hash = run(seed, {}, none);
    EXPECT_EQ(run(seed, lending, lent), expected_hash) << seed;
    EXPECT_GT(lent, 15U) << seed;
    if (kRaceDetector) break;
  }
}

// The draft head asks for rows by itself where the trunk has not, and keeps those that it has where it is ahead of the
// trunk; so does a conversation that is saved like that.
TEST(Lockstep, TheHeadsRowsAreItsOwn) {
  SKIP_WITHOUT_MACHINE();
  TempDir dir;
  const auto run = [&](const Lending& lending) {
    const auto ops = make_model_machine(2);
    Pipeline pipeline(nano(), *ops, 64, fifth_on_card(lending, 1 << 20));
    SequenceState state = new_state(pipeline, *ops);
    MtpHead head(pipeline, MtpNorm::kFull, MtpAttention::kDense);
    const auto width = static_cast<std::size_t>(nano().shape.wide());
    std::vector<float> wide(60 * width);
    for (std::size_t i = 0; i < wide.size(); ++i) wide[i] = static_cast<float>(i % 251) / 64.0F - 2.0F;
    LogitsHash hash;
    const auto feed = [&](std::size_t rows) {
      const auto next = std::span(prompts()[2]).subspan(state.mtp.rows, rows);
      add_rows(hash, head.forward(state, {wide.data(), rows, width}, next, PassMode::kCommit, LogitRows::kLast).logits);
      pipeline.experts()->verify();
    };
    const auto windows = [&](int rounds) {
      for (int round = 0; round < rounds; ++round) {
        const auto next = std::span(prompts()[2]).subspan(state.position(), 1);
        add_rows(hash, pipeline.forward(state, next, PassMode::kWindow, LogitRows::kAll).logits);
        state.keep(1);
      }
      pipeline.experts()->verify();
    };
    windows(8);
    const std::size_t most = pipeline.experts()->lent();
    for (int pass = 0; pass < 6; ++pass) feed(60);  // over experts
    const std::size_t left = pipeline.experts()->lent();
    EXPECT_EQ(most > left, lending.cache.count > 0);
    windows(8);
    feed(1);
    state.save(dir / "ahead.state", 1);
    state.reset();
    windows(8);
    EXPECT_EQ(pipeline.experts()->lent() > left, lending.cache.count > 0);
    state.restore(dir / "ahead.state", 1);  // over experts
    pipeline.experts()->verify();
    windows(8);
    feed(1);
    return hash.hex();
  };
  const std::string expected_hash = run({});
  EXPECT_EQ(run(some_lending_with_cache()), expected_hash);
}

// The head catches up in short passes while the prompt memory is lent, which stays lent; experts in the cache are no
// reason for that.
TEST(Lockstep, TheHeadCatchesUpInPassesThatFit) {
  SKIP_WITHOUT_MACHINE();
  struct Longest : RouteObserver {
    std::size_t rows = 0;  // of a pass of the head
    void on_routes(PassMode, int bank, std::size_t, const Routes& routes) override {
      if (bank == nano().shape.layers) rows = std::max(rows, routes.rows);
    }
  };
  for (const bool prompt : {true, false}) {
    const auto ops = make_model_machine(2);
    LoadOptions load;
    load.placement = random_placement(0.2, 0, 8);
    load.lending = some_lending_with_cache();
    load.lending.bytes_per_round = 1 << 20;
    if (!prompt) load.lending.bytes = 0;
    Pipeline pipeline(nano(), *ops, 64, load);
    SequenceState state = new_state(pipeline, *ops);
    MtpDrafter head(pipeline, state, MtpNorm::kFull, MtpAttention::kSparse);
    Longest longest;
    pipeline.set_route_observer(&longest);
    for (int round = 0; round < 21; ++round) {
      const std::size_t first = state.position(), rows = round < 20 ? 1 : 12;
      const PassOutput out =
          pipeline.forward(state, std::span(prompts()[2]).subspan(first, rows), PassMode::kCommit, LogitRows::kLast);
      head.take(first, out.wide, rows == 1 ? MtpDrafter::Rows::kRound : MtpDrafter::Rows::kPrompt);
    }
    EXPECT_EQ(state.mtp.rows, 31U);
    EXPECT_EQ(longest.rows, prompt ? kMaxWindow : 31U);
    EXPECT_EQ(pipeline.experts()->prompt_memory_lent(), prompt);
    EXPECT_GT(pipeline.experts()->lent(), 0U);
    pipeline.set_route_observer(nullptr);
  }
}

// Work memory of a second pipeline over the same experts, which lie in its memory when it is made, and of its passes.
TEST(Lockstep, ASecondPipelineTakesLentMemoryBack) {
  SKIP_WITHOUT_MACHINE();
  const auto ops = make_model_machine(2);
  LoadOptions load = fifth_on_card(some_lending());
  load.lending.bytes *= 2;  // of both
  load.lending.bytes_per_round = load.lending.bytes;
  Pipeline first(nano(), *ops, 64, load);
  const auto windows = [&](Pipeline& pipeline) {
    SequenceState state(nano().shape, {kContext, KvType::kF16}, ops->memory());
    for (int round = 0; round < 40; ++round)
      pipeline.forward(state, std::span(prompts()[0]).subspan(state.position(), 1), PassMode::kCommit,
                       LogitRows::kLast);
  };
  windows(first);
  EXPECT_GT(first.experts()->lent(), 20U);
  Pipeline second(nano(), *ops, 64, load);
  ASSERT_EQ(second.experts(), first.experts());
  first.experts()->verify();
  EXPECT_EQ(chunked(first, 64), expected());
  windows(second);
  EXPECT_GT(first.experts()->lent(), 20U);
  EXPECT_EQ(chunked(second, 64), expected());
  EXPECT_EQ(chunked(first, 5), expected());
  first.experts()->verify();
}

}  // namespace
}  // namespace tandem::testing
