// From a plan to memory that is lent: an engine on a machine that says it is a small card, with the CPU behind it.
#include <gtest/gtest.h>

#include <cstring>

#include "cpu/cpu_ops.h"
#include "placement/files.h"
#include "runtime/cmd_plan.h"
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
  explicit SmallCard(std::int64_t free = 58 * kMiB, std::int64_t total = 58 * kMiB) : CpuOps(2) {
    gpu_.vram_free = free;
    gpu_.vram_total = total;
  }
  std::optional<Hardware::Gpu> card() const override { return gpu_; }
  LoadedModel load(const Model& model, const LoadOptions& options) override {
    fetch_ahead = options.fetch_ahead;
    fetch_seconds = options.fetch_seconds;
    return CpuOps::load(model, options);
  }
  FetchAhead fetch_ahead{};
  double fetch_seconds = 0;

 private:
  Hardware::Gpu gpu_;
};

struct Talk {
  std::vector<float> logits;
  std::size_t lent = 0, lent_to_long_prompts = 0;
};

// A prompt, an answer, a long prompt in a conversation begun anew, an answer.
Talk talk(Engine& engine, SequenceState& state) {
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

class EngineLending : public ::testing::Test {
 protected:
  EngineOptions options(const std::string& memory, KvType kv) {
    tandem::write_file(dir_ / "p.yaml", "memory: {vram_reserve: 0" + memory + "}\nadapt: {mode: off}\n");
    EngineOptions options;
    options.model = std::filesystem::path(TANDEM_SOURCE_DIR) / "models" / "flash-next-nano-q4.gguf";
    options.placement.policy = dir_ / "p.yaml";
    options.kv = kv;
    options.context = 2048;
    options.prefill_chunk = 512;
    return options;
  }
  TempDir dir_;
};

// Whether keys and values of all layers are the areas of the memory that is lent, one after the other; all or none are.
bool in_lent_cache(const Engine& engine, const SequenceState& state) {
  const Region* memory = engine.experts()->lent_memory().cache.get();
  const CacheAreas& areas = engine.plan().plan.lent_cache;
  int count = 0;
  const auto look = [&](const AttentionLayerState& layer) {
    for (const Array<std::uint8_t>* array : {&layer.k, &layer.v})
      if (memory != nullptr && array->data() == memory->data() + count * areas.stride &&
          std::cmp_equal(array->bytes(), areas.bytes))
        ++count;
  };
  for (const AttentionLayerState& layer : state.attention)
    if (!layer.k.empty()) look(layer);
  look(state.mtp.attention);
  EXPECT_TRUE(count == 0 || count == areas.count) << count;
  return count > 0;
}

// Returns the logits.
std::vector<float> carry_out(const EngineOptions& options, bool prompt, bool cache, const std::string& cache_size) {
  Engine engine(options, [](const EngineOptions&) { return std::make_unique<SmallCard>(); });
  const Plan& plan = engine.plan().plan;
  EXPECT_EQ(plan.lent_in_cache > 0, cache);
  EXPECT_EQ(std::ssize(plan.lent) > plan.lent_in_cache, prompt);
  EXPECT_EQ(engine.experts()->lent_memory().prompt != nullptr, prompt);
  EXPECT_EQ(engine.experts()->lent_memory().cache != nullptr, cache);
  {
    // A cache that no sequence has leased yet is lent to nobody.
    SequenceState other(engine.model().shape, {engine.context(), engine.kv()}, engine.pipeline().ops().memory());
    talk(engine, other);
    EXPECT_EQ(engine.experts()->lent() > 0, prompt);
  }
  std::optional<SequenceState> first(engine.new_state());
  const SequenceState second = engine.new_state();
  EXPECT_EQ(in_lent_cache(engine, *first), cache);
  EXPECT_FALSE(in_lent_cache(engine, second));
  const Talk run = talk(engine, *first);
  EXPECT_EQ(run.lent > 0, prompt || cache);
  EXPECT_EQ(run.lent_to_long_prompts, 0U);
  engine.experts()->verify();
  std::string report;
  for (const ReportLine& line : expert_report(*engine.experts(), engine.experts()->stats()))
    if (line.label == "lent") report = line.text;
  EXPECT_EQ(report.find("that long prompts need") != std::string::npos, prompt) << report;
  EXPECT_EQ(report.find(cache_size + " of KV cache") != std::string::npos, cache) << report;
  EXPECT_EQ(report.starts_with(fmt::format("{} of those in RAM", engine.experts()->lent())), prompt || cache) << report;
  first.reset();
  EXPECT_EQ(in_lent_cache(engine, engine.new_state()), cache);
  return run.logits;
}

TEST_F(EngineLending, APlanIsCarriedOut) {
  for (const KvType kv : {KvType::kF16, KvType::kF32}) {
    Engine plain(options("", kv), [](const EngineOptions&) { return make_cpu_ops(2); });
    SequenceState state = plain.new_state();
    const std::vector<float> expected = talk(plain, state).logits;
    for (const std::string memory : {", lend_prompt_memory: false", ", lend_prompt_memory: false, lend_kv_cache: false",
                                     ", lend_kv_cache: false", ""}) {
      SCOPED_TRACE(memory + (kv == KvType::kF32 ? ", float32" : ""));
      const bool prompt = memory.find("prompt") == std::string::npos, cache = memory.find("kv") == std::string::npos;
      EXPECT_EQ(carry_out(options(memory, kv), prompt, cache, kv == KvType::kF32 ? "6.00 MiB" : "3.00 MiB"), expected);
      if (kv == KvType::kF32) break;  // caches of twice the size leave too little of so small a card for the others
    }
  }
}

// Whether experts are fetched ahead, and what a copy is said to cost.
TEST_F(EngineLending, TheMachineIsToldWhatToFetch) {
  for (const auto& [word, how] :
       {std::pair{"auto", FetchAhead::kAuto}, {"on", FetchAhead::kOn}, {"off", FetchAhead::kOff}}) {
    EngineOptions wanted = options("", KvType::kF16);
    tandem::write_file(dir_ / "p.yaml", fmt::format("memory: {{vram_reserve: 0}}\nadapt: {{fetch_ahead: {}}}\n", word));
    const SmallCard* card = nullptr;
    const Engine engine(wanted, [&](const EngineOptions&) {
      auto made = std::make_unique<SmallCard>();
      card = made.get();
      return made;
    });
    EXPECT_EQ(card->fetch_ahead, how) << word;
    EXPECT_EQ(card->fetch_seconds, kFetchSeconds) << word;
  }
}

// How many rows a prompt's pass has goes by what the policy leaves of a card, as by --vram: the work memory of 4,096 of
// them would not fit into 66 MiB.
TEST_F(EngineLending, PassesAreAsLongAsThePolicysMemoryAllows) {
  EngineOptions wanted = options("", KvType::kF16);
  wanted.prefill_chunk = 0;
  wanted.context = 4096;
  const OpsFactory large_card = [](const EngineOptions&) {
    return std::make_unique<SmallCard>(kMiB << 15, kMiB << 15);
  };
  EXPECT_EQ(Engine(wanted, large_card).prefill_chunk(), 4096U);
  tandem::write_file(dir_ / "p.yaml", "memory: {vram: 66MiB, vram_reserve: 0}\n");
  EXPECT_EQ(Engine(wanted, large_card).prefill_chunk(), 512U);
  PlacementChoices choices = wanted.placement;
  choices.context = 4096;
  choices.card = SmallCard(kMiB << 15, kMiB << 15).card();
  const PlanReport report = plan_report(nano(), resolve_policy(choices), choices, 0);
  EXPECT_EQ(report.input.model.prefill_rows, 512);
  EXPECT_TRUE(report.plan.fits()) << report.plan.shortfall;
  // Where they were said to be longer, what does not fit says so.
  const Plan longer = plan_report(nano(), resolve_policy(choices), choices, 4096).plan;
  EXPECT_NE(longer.shortfall.find("Fix: --prefill-chunk 512, --device cpu, or a smaller"), std::string::npos)
      << longer.shortfall;
  // So do plans for other cards.
  PlanOptions other;
  other.model = wanted.model;
  other.placement.vram = kMiB << 15;
  other.placement.context = 4096;
  tandem::write_file(dir_ / "p.yaml", "memory: {vram_reserve: 0}\n");
  other.placement.policy = dir_ / "p.yaml";
  other.what_ifs = {"vram=66MiB", "context=1024"};
  const PlanReport larger = make_plan_report(other);
  EXPECT_EQ(larger.input.model.prefill_rows, 4096);
  EXPECT_TRUE(larger.what_ifs.at(0).plan.fits()) << larger.what_ifs[0].plan.shortfall;
  EXPECT_LT(larger.what_ifs.at(1).plan.vram_used + (kMiB << 5), larger.plan.vram_used);
}

// --vram may say more than is free: what CUDA takes later is not in what is left, unless the reserve was chosen.
TEST_F(EngineLending, APlanLeavesRoomForCuda) {
  const auto refusal = [&](std::int64_t free, const std::string& memory) -> std::string {
    EngineOptions wanted = options("", KvType::kF16);
    tandem::write_file(dir_ / "p.yaml", "memory: {" + memory + "}\n");
    wanted.placement.vram = 1024 * kMiB;
    try {
      Engine engine(wanted, [&](const EngineOptions&) { return std::make_unique<SmallCard>(free, 2048 * kMiB); });
      return "";
    } catch (const InputError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(refusal(600 * kMiB, ""), "");
  const std::string text = refusal(530 * kMiB, "");
  EXPECT_NE(text.find("of the card's memory, as planned, and 512 MiB for CUDA, found 530 MiB free of 2.00 GiB. Fix: "
                      "close what holds it, or plan with less (--vram 530MiB)"),
            std::string::npos)
      << text;
  EXPECT_EQ(refusal(530 * kMiB, "vram_reserve: 100MiB"), "");
  EXPECT_NE(refusal(30 * kMiB, "vram_reserve: 100MiB").find("as planned, found 30.0 MiB free"), std::string::npos);
}

}  // namespace
}  // namespace tandem::testing
