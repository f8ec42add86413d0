// From a plan to memory that is lent: an engine on a machine that says it is a small card, with the CPU behind it.
#include <gtest/gtest.h>

#include <cstring>

#include "cpu/cpu_ops.h"
#include "placement/files.h"
#include "runtime/engine.h"
#include "runtime/expert_report.h"
#include "runtime/expert_store.h"
#include "tests/e2e/nano_prompts.h"
#include "tests/gguf_builder.h"

namespace tandem::testing {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

class SmallCard : public CpuOps {
 public:
  SmallCard() : CpuOps(2) {}
  std::optional<Hardware::Gpu> card() const override {
    Hardware::Gpu gpu;
    gpu.vram_total = gpu.vram_free = 58 * kMiB;
    return gpu;
  }
};

struct Talk {
  std::vector<float> logits;
  std::size_t lent = 0, lent_to_long_prompts = 0;
};

class EngineLending : public ::testing::Test {
 protected:
  EngineOptions options(const std::string& memory) {
    tandem::write_file(dir_ / "p.yaml", "memory: {vram_reserve: 0" + memory + "}\nadapt: {mode: off}\n");
    EngineOptions options;
    options.model = std::filesystem::path(TANDEM_SOURCE_DIR) / "models" / "flash-next-nano-q4.gguf";
    options.placement.policy = dir_ / "p.yaml";
    options.context = 2048;
    options.prefill_chunk = 512;
    return options;
  }
  // A prompt, an answer, a long prompt in a conversation begun anew, an answer.
  static Talk talk(Engine& engine, SequenceState& state) {
    Talk run;
    const auto pass = [&](std::size_t rows, PassMode mode) {
      const Prompt& tokens = prompts()[2];
      const PassOutput out =
          engine.pipeline().forward(state, std::span(tokens).subspan(state.position(), rows), mode, LogitRows::kLast);
      run.logits.insert(run.logits.end(), out.logits.row(0), out.logits.row(0) + out.logits.cols);
      if (mode == PassMode::kWindow) state.keep(rows);
    };
    for (const std::size_t prompt : {100U, 250U}) {
      pass(prompt, PassMode::kCommit);
      const ExpertStore* store = engine.experts();
      if (store->has_card()) run.lent_to_long_prompts += store->prompt_memory_lent() ? 1U : 0U;
      for (int round = 0; round < 12; ++round) pass(2, PassMode::kWindow);
      run.lent = std::max(run.lent, store->lent());
      state.reset();
    }
    return run;
  }
  TempDir dir_;
};

TEST_F(EngineLending, APlanIsCarriedOut) {
  const OpsFactory small_card = [](const EngineOptions&) { return std::make_unique<SmallCard>(); };
  std::vector<float> expected;
  for (const std::string memory : {", lend_prompt_memory: false, lend_kv_cache: false", ", lend_kv_cache: false",
                                   ", lend_prompt_memory: false", ""}) {
    SCOPED_TRACE(memory);
    Engine engine(options(memory), small_card);
    const Plan& plan = engine.plan().plan;
    const bool prompt = memory.find("prompt") == std::string::npos, cache = memory.find("kv") == std::string::npos;
    EXPECT_EQ(plan.lent_in_cache > 0, cache);
    EXPECT_EQ(std::ssize(plan.lent) > plan.lent_in_cache, prompt);
    const LentMemory& lent = engine.experts()->lent_memory();
    ASSERT_EQ(lent.prompt != nullptr, prompt);
    ASSERT_EQ(lent.cache != nullptr, cache);
    const auto in_cache = [&](const SequenceState& state) {
      const std::uint8_t* keys = state.mtp.attention.k.data();
      return cache && keys >= lent.cache->data() && keys < lent.cache->data() + lent.cache->bytes();
    };
    std::optional<SequenceState> first(engine.new_state());
    const SequenceState second = engine.new_state();
    EXPECT_EQ(in_cache(*first), cache);
    EXPECT_FALSE(in_cache(second));
    const Talk run = talk(engine, *first);
    EXPECT_EQ(run.lent > 0, prompt || cache);
    EXPECT_EQ(run.lent_to_long_prompts, 0U);
    engine.experts()->verify();
    if (expected.empty()) expected = run.logits;
    EXPECT_EQ(run.logits, expected);
    std::string report;
    for (const ReportLine& line : expert_report(*engine.experts(), engine.experts()->stats()))
      if (line.label == "lent") report = line.text;
    EXPECT_EQ(report.find("that long prompts need") != std::string::npos, prompt) << report;
    EXPECT_EQ(report.find("3.00 MiB of KV cache") != std::string::npos, cache) << report;
    first.reset();
    EXPECT_EQ(in_cache(engine.new_state()), cache);
  }
  Engine plain(options(""), [](const EngineOptions&) { return make_cpu_ops(2); });
  SequenceState state = plain.new_state();
  EXPECT_EQ(talk(plain, state).logits, expected);
}

}  // namespace
}  // namespace tandem::testing
