// What only the GPU machine has: recorded passes without allocations, values that are no numbers found after the pass,
// experts computed on both sides, a side that is stuck.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "cpu/cpu_ops.h"
#include "gpu/card_slots.h"
#include "gpu/cuda_memory.h"
#include "gpu/handoff.h"
#include "runtime/expert_store.h"
#include "tests/e2e/model_machine.h"
#include "tests/e2e/nano_prompts.h"
#include "tests/synthetic_model.h"

namespace tandem::testing {
namespace {

LoadOptions every_second_expert() {
  LoadOptions load;
  load.placement = all_in_ram(nano().shape.layers + nano().shape.mtp_layers, nano().shape.experts);
  for (std::size_t i = 0; i < load.placement->place.size(); i += 2) load.placement->place[i] = Place::kCard;
  return load;
}

// Windows and single rows, with experts that move; after the first rounds nothing is asked for any more.
TEST(GpuMachine, ARoundAllocatesNothing) {
  SKIP_WITHOUT_MACHINE();
  const auto ops = make_model_machine(2);
  const auto& memory = dynamic_cast<const CudaMemory&>(ops->memory());
  LoadOptions load = every_second_expert();
  load.adapt.mode = AdaptMode::kSwaps;
  Pipeline pipeline(nano(), *ops, 64, load);
  MtpHead head(pipeline, MtpNorm::kFull, MtpAttention::kSparse);
  SequenceState state(nano().shape, {kContext, KvType::kF16}, ops->memory());
  const Prompt& tokens = prompts()[2];
  pipeline.prefill(state, std::span(tokens).first(420), 60, LogitRows::kLast, {});
  std::size_t before = 0;
  for (int round = 0; round < 24; ++round) {
    if (round == 6) before = memory.allocations();
    const auto next = std::span(tokens).subspan(state.position());
    if (round % 2 == 0) {
      const PassOutput out = pipeline.forward(state, next.first(4), PassMode::kWindow, LogitRows::kAll);
      const std::vector<float> wide(out.wide.row(0), out.wide.row(0) + out.wide.cols);
      head.forward(state, {wide.data(), 1, wide.size()}, next.first(1), PassMode::kWindow, LogitRows::kLast);
      state.keep_drafts(0);
      state.keep(2);
    } else {
      pipeline.forward(state, next.first(1), PassMode::kCommit, LogitRows::kLast);
    }
  }
  EXPECT_GT(before, 0U);
  EXPECT_EQ(memory.allocations(), before);
}

// Damaged weights give the message of the CPU machine, whatever the pass: stage, layer, position.
TEST(GpuMachine, ReportsWhatIsNoNumber) {
  SKIP_WITHOUT_MACHINE();
  const auto image = synthetic_model().build();
  for (const bool router : {false, true}) {
    Model model = Model::bind(Gguf::parse(image));
    // The last layer: everything before it is sound.
    LayerWeights& layer = model.layers.back();
    WeightView& damaged = router ? layer.hc_ffn.norm : layer.hc_attn.norm;
    std::vector<float> values(damaged.cols, 1.0F);
    ASSERT_EQ(damaged.type, DType::F32);
    values[7] = std::numeric_limits<float>::infinity();
    damaged.data = reinterpret_cast<const std::uint8_t*>(values.data());
    const auto message = [&](std::unique_ptr<Ops> ops, std::size_t rows, PassMode mode) {
      Pipeline pipeline(model, *ops, 64);
      SequenceState state(model.shape, {64, KvType::kF16}, ops->memory());
      const Prompt tokens(rows, 5);
      try {
        pipeline.forward(state, tokens, mode, LogitRows::kLast);
      } catch (const InputError& error) {
        return std::string(error.what());
      }
      return std::string("no error");
    };
    for (const std::size_t rows : {1UL, 4UL, 40UL}) {
      const PassMode mode = rows == 4 ? PassMode::kWindow : PassMode::kCommit;
      const std::string expected = message(make_cpu_ops(1), rows, mode);
      EXPECT_NE(expected, "no error");
      EXPECT_EQ(message(make_model_machine(1), rows, mode), expected) << rows;
    }
  }
}

TEST(GpuMachine, ExpertsComputedOnBothSides) {
  SKIP_WITHOUT_MACHINE();
  setenv("TANDEM_TEST_VERIFY", "1", 1);
  const auto ops = make_model_machine(2);
  unsetenv("TANDEM_TEST_VERIFY");
  Pipeline pipeline(nano(), *ops, 64, every_second_expert());
  SequenceState state(nano().shape, {kContext, KvType::kF16}, ops->memory());
  const Prompt& tokens = prompts()[0];
  pipeline.prefill(state, std::span(tokens).first(40), 40, LogitRows::kNone, {});
  for (std::size_t i = 40; i < 60; ++i)
    pipeline.forward(state, std::span(tokens).subspan(i, 1), PassMode::kCommit, LogitRows::kLast);
  // One a layer and pass, but where all of a row's experts are off the card.
  const std::uint64_t most = 21 * static_cast<std::uint64_t>(nano().shape.layers);
  EXPECT_LE(ops->experts_compared(), most);
  EXPECT_GT(ops->experts_compared(), most * 8 / 10);
}

// Single rows and windows in recorded passes, with experts that stay and that move: fetched ahead, never, and as it
// pays.
TEST(GpuMachine, FetchedExpertsGiveTheSameLogits) {
  SKIP_WITHOUT_MACHINE();
  const auto cpu = make_cpu_ops(1);
  Pipeline reference(nano(), *cpu, kLongest);
  const std::string expected = chunked(reference, kLongest);
  for (const FetchAhead how : {FetchAhead::kOn, FetchAhead::kAuto, FetchAhead::kOff})
    for (const AdaptMode mode : {AdaptMode::kOff, AdaptMode::kLru})
      for (const std::size_t chunk : {1UL, 3UL, 16UL}) {
        const auto ops = make_model_machine(2);
        LoadOptions load = every_second_expert();
        load.fetch_ahead = how;
        load.adapt.mode = mode;
        Pipeline pipeline(nano(), *ops, kLongest, load);
        EXPECT_EQ(chunked(pipeline, chunk), expected) << "chunks of " << chunk;
        pipeline.experts()->verify();
        const FetchCounts& counts = ops->fetching()->counts();
        EXPECT_LE(counts.asked, counts.copies);
        if (how == FetchAhead::kOff) {
          EXPECT_EQ(counts.copies, 0U);
          continue;
        }
        EXPECT_GT(counts.copies, 100U) << "chunks of " << chunk;
        EXPECT_GT(counts.asked, counts.copies / 10) << "chunks of " << chunk;
      }
}

// Long passes, in parts and whole, whose experts off the card are sent to it or left to the crew: the CPU's logits.
TEST(GpuMachine, LongPassesStreamTheirExpertsOrMeetTheCrew) {
  SKIP_WITHOUT_MACHINE();
  const auto cpu = make_cpu_ops(1);
  Pipeline reference(nano(), *cpu, kLongest);
  const std::string expected = chunked(reference, kLongest);
  constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();
  for (const std::size_t stream_rows : {std::size_t{17}, std::size_t{200}, kNever})
    for (const std::size_t part : {16UL, 512UL}) {
      const auto ops = make_model_machine(2);
      LoadOptions load = every_second_expert();
      load.stream_rows = stream_rows;
      load.part_rows = part;
      load.adapt.mode = AdaptMode::kSwaps;  // blobs change their places between passes
      Pipeline pipeline(nano(), *ops, kLongest, load);
      ASSERT_TRUE(pipeline.experts()->ram_pinned());
      for (const std::size_t chunk : {17UL, 100UL, kLongest})
        EXPECT_EQ(chunked(pipeline, chunk), expected) << "chunks of " << chunk << ", parts of " << part;
      pipeline.experts()->verify();
    }
}

// Slots are zeroed by one stream and filled by another.
TEST(GpuMachine, UploadsComeAfterTheZeros) {
  SKIP_WITHOUT_MACHINE();
  const auto ops = make_model_machine(1);
  CardSlots card(dynamic_cast<CudaMemory&>(ops->memory()));
  std::vector<std::uint8_t> blob(3 << 20), back(blob.size());
  for (std::size_t i = 0; i < blob.size(); ++i) blob[i] = static_cast<std::uint8_t>(i * 7 + 1);
  for (int turn = 0; turn < 5; ++turn) {
    const std::size_t bytes = std::size_t{4} << 30;  // takes a millisecond to zero
    const auto slots = card.allocate(bytes);
    std::uint8_t* const last = slots.get() + bytes - blob.size();
    card.upload(last, blob.data(), blob.size());
    card.wait();
    ops->memory().read(back.data(), last, back.size());
    ASSERT_EQ(back, blob) << turn;
  }
}

// What the host makes while the pass runs reaches every run of a recorded pass, and a host that fails leaves a machine
// that goes on.
TEST(GpuMachine, LateInputsReachTheRecordedPass) {
  SKIP_WITHOUT_MACHINE();
  const auto ops = make_model_machine(1);
  const Staged<float> in(ops->memory(), 1000), out(ops->memory(), 1000);
  const PassKey key{new_identity(), 0, 0, 1, 0, false};
  const auto pass = [&](float value, bool fails) {
    int calls = 0;
    const auto make = [&] {
      ++calls;
      if (fails) fail_input("no rows today");
      std::this_thread::sleep_for(std::chrono::milliseconds(2));  // the card is there first
      std::fill_n(in.host(), in.size(), value);
    };
    LateInput late;
    late.emplace(make);
    ops->run_pass(key, {}, late, [&] {
      ops->await_late();
      in.send(0, in.size());
      ops->memory().copy(out.data(), in.data(), in.bytes());
      out.fetch(0, out.size());
    });
    EXPECT_EQ(calls, 1);
  };
  for (int turn = 0; turn < 4; ++turn) {
    const auto value = static_cast<float>(turn + 1);
    pass(value, false);
    EXPECT_EQ(std::vector<float>(out.host(), out.host() + out.size()), std::vector<float>(out.size(), value));
    EXPECT_THROW(pass(9.0F, true), InputError);
  }
}

// A card that never comes to the meeting is reported after two seconds, with both numbers.
TEST(GpuMachineDeathTest, AStuckCardIsReported) {
  SKIP_WITHOUT_MACHINE();
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        const auto ops = make_model_machine(1);
        auto& memory = dynamic_cast<CudaMemory&>(ops->memory());
        Handoff handoff(memory);
        handoff.reserve(1, 2, 64, 64, 4);
        handoff.serve({}, 7, *ops);
      },
      "the card stands at meeting 0.*the CPU waits for 7");
}

}  // namespace
}  // namespace tandem::testing
