// Routes recorded from the nano model: what the recorder keeps, and the counts of whole texts against those of an
// outside implementation (tests/golden/eval/routes.json).
#include "runtime/profile.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cpu/cpu_ops.h"
#include "runtime/profile_file.h"
#include "tests/placement/temporary_file.h"

namespace tandem::testing {
namespace {

const char* const kModel = TANDEM_SOURCE_DIR "/models/flash-next-nano-q4.gguf";
const char* const kEval = TANDEM_SOURCE_DIR "/tests/golden/eval/";

struct Nano {
  Model model = Model::open(kModel);
  Tokenizer tokenizer = Tokenizer::from_gguf(model.gguf());
  std::unique_ptr<Ops> ops = make_cpu_ops(0);
  Pipeline pipeline{model, *ops, 512};
  SequenceState state{model.shape, {1200, KvType::kF16}};
  RouteRecorder recorder;
  Nano() { pipeline.set_route_observer(&recorder); }
  Census empty() const {
    return {"nano",
            model.fingerprint(),
            static_cast<int>(model.shape.layers) + 1,
            static_cast<int>(model.shape.experts),
            static_cast<int>(model.shape.experts_used),
            {}};
  }
  std::vector<TokenId> read(const std::string& name) const {
    std::ifstream file(kEval + name + ".txt", std::ios::binary);
    return tokenizer.encode(std::string(std::istreambuf_iterator<char>(file), {}), name == "chat");
  }
};

std::vector<TraceRound> rounds_of(const std::string& path) {
  TraceReader reader(path);
  std::vector<TraceRound> rounds;
  TraceRound round;
  while (reader.next(round)) rounds.push_back(round);
  return rounds;
}

// The trunk's counts agree with float32 routing but for the rows where quantisation turns a close decision.
TEST(Profile, CountsAgreeWithAnOutsideImplementation) {
  Nano nano;
  const auto golden = nlohmann::json::parse(std::ifstream(std::string(kEval) + "routes.json"))["q4"]["code"];
  Census census = nano.empty();
  ProfileOptions options;
  options.window = 1024;
  ProfileHooks hooks;
  hooks.on_window = [&](std::size_t) { nano.recorder.take_into(census, nullptr); };
  ASSERT_TRUE(
      profile(nano.pipeline, nano.state, nullptr, {{"code", nano.read("code")}}, options, 0, nano.recorder, hooks));
  const RouteCounts& counts = census.domains.at("code").prefill;
  const auto experts = static_cast<std::size_t>(census.experts);
  for (std::size_t b = 0; b < golden.size(); ++b) {
    double sum = 0, difference = 0;
    for (std::size_t e = 0; e < experts; ++e) {
      const double expected = golden[b][e].get<double>();
      sum += expected;
      difference += std::abs(expected - static_cast<double>(counts.routes[b * experts + e]));
    }
    EXPECT_EQ(sum, static_cast<double>(counts.rows) * census.used);
    EXPECT_LT(difference / 2, 0.003 * sum) << b;
  }
}

// Two texts, drafts and decode: every round in the trace, and the census is what the trace adds up to.
TEST(Profile, RecordsEveryRoundOfBothPhases) {
  Nano nano;
  MtpHead draft(nano.pipeline, MtpNorm::kFull, MtpAttention::kSparse);
  std::vector<TokenId> code = nano.read("code"), prose = nano.read("prose");
  code.resize(150);
  prose.resize(70);
  ProfileOptions options{100, 40, 5};
  Census census = nano.empty();
  const testing::TemporaryFolder folder;
  const std::string path = (folder.path() / "profile.trace").string();
  TraceWriter trace(path, {"nano", 1, census.banks, census.experts, census.used});
  std::vector<std::size_t> windows;
  std::size_t last_done = 0, last_total = 0;
  ProfileHooks hooks;
  hooks.progress = [&](std::size_t done, std::size_t total) {
    EXPECT_EQ(done, last_done + 1);
    last_done = done;
    last_total = total;
  };
  hooks.on_window = [&](std::size_t w) {
    windows.push_back(w);
    nano.recorder.take_into(census, &trace);
  };
  const std::vector<ProfileText> texts{{"code", code}, {"prose", prose}};
  EXPECT_EQ(profile_windows(texts, options), 3U);
  ASSERT_TRUE(profile(nano.pipeline, nano.state, &draft, texts, options, 0, nano.recorder, hooks));
  trace.finish();
  EXPECT_EQ(windows, (std::vector<std::size_t>{0, 1, 2}));
  EXPECT_EQ(last_done, 150U + 70 + 15);
  EXPECT_EQ(last_total, last_done);

  const auto rounds = rounds_of(path);
  std::string shape;
  Census sum = nano.empty();
  for (const TraceRound& round : rounds) {
    // The draft block of a pass whose next token was known comes with the round after it, the last one with its own.
    shape += fmt::format("{}{}{} ", round.domain[0], round.phase == Phase::kPrefill ? 'p' : 'd', [&] {
      for (const TraceBlock& block : round.blocks)
        if (block.bank == 0) return block.rows;
      return 0u;
    }());
    for (const TraceBlock& block : round.blocks) sum.add(round.domain, round.phase, block.bank, block.ids);
  }
  EXPECT_EQ(shape, "cp40 cp40 cp20 cd1 cd1 cd1 cd1 cd1 cp40 cp10 cd1 cd1 cd1 cd1 cd1 pp40 pp30 pd1 pd1 pd1 pd1 pd1 ");
  EXPECT_EQ(format_census(sum), format_census(census));
  EXPECT_EQ(census.domains.at("code").prefill.rows, 150U);
  EXPECT_EQ(census.domains.at("prose").decode.rows, 5U);
  // Every row has a draft row: 70 + 5 of prose, in whichever phase.
  const auto draft_routes = [&](const RouteCounts& counts) {
    std::uint64_t n = 0;
    for (std::size_t i = counts.routes.size() - 32; i < counts.routes.size(); ++i) n += counts.routes[i];
    return n;
  };
  EXPECT_EQ(draft_routes(census.domains.at("prose").prefill) + draft_routes(census.domains.at("prose").decode),
            75U * 6);
}

TEST(Profile, StopsBetweenPassesAndGoesOnFromAWindow) {
  Nano nano;
  MtpHead draft(nano.pipeline, MtpNorm::kFull, MtpAttention::kSparse);
  std::vector<TokenId> code = nano.read("code");
  code.resize(330);
  const std::vector<ProfileText> texts{{"code", code}};
  const ProfileOptions options{100, 64, 3};
  const auto run = [&](std::size_t first, std::size_t stop_after, Census& census) {
    std::size_t passes = 0, windows = first;
    ProfileHooks hooks;
    hooks.cancelled = [&] { return passes++ == stop_after; };
    hooks.on_window = [&](std::size_t w) {
      windows = w + 1;
      nano.recorder.take_into(census, nullptr);
    };
    const bool whole = profile(nano.pipeline, nano.state, &draft, texts, options, first, nano.recorder, hooks);
    return std::pair{whole, windows};
  };
  Census expected = nano.empty();
  EXPECT_EQ(run(0, 1000, expected), (std::pair{true, std::size_t{4}}));
  for (const std::size_t stop : {0U, 1U, 3U, 6U, 8U, 12U}) {
    Census census = nano.empty();
    const auto [whole, windows] = run(0, stop, census);
    EXPECT_FALSE(whole);
    EXPECT_EQ(windows, stop / 5) << stop;  // a window is two passes of the prompt and three of decode
    EXPECT_EQ(run(windows, 1000, census), (std::pair{true, std::size_t{4}}));
    EXPECT_EQ(format_census(census), format_census(expected)) << stop;
  }
}

TEST(Profile, AStopTokenEndsTheGeneration) {
  Nano nano;
  std::vector<TokenId> code = nano.read("code");
  code.resize(50);
  Census census = nano.empty();
  ProfileHooks hooks;
  int asked = 0;
  hooks.is_stop = [&](TokenId) { return ++asked == 3; };
  hooks.on_window = [&](std::size_t) { nano.recorder.take_into(census, nullptr); };
  ASSERT_TRUE(profile(nano.pipeline, nano.state, nullptr, {{"code", code}}, {50, 64, 9}, 0, nano.recorder, hooks));
  EXPECT_EQ(census.domains.at("code").decode.rows, 2U);
}

// Without a given phase: passes of a window and single rows are decode, longer committed passes are prompts.
TEST(Profile, PhasesFollowFromThePasses) {
  Nano nano;
  std::vector<TokenId> code = nano.read("code");
  const auto tokens = std::span(code);
  nano.recorder.begin("live");
  nano.pipeline.forward(nano.state, tokens.subspan(0, 8), PassMode::kCommit, LogitRows::kNone);
  nano.pipeline.forward(nano.state, tokens.subspan(8, 4), PassMode::kWindow, LogitRows::kNone);
  nano.state.keep(2);
  nano.pipeline.forward(nano.state, tokens.subspan(10, 1), PassMode::kCommit, LogitRows::kNone);
  Census census = nano.empty();
  nano.recorder.take_into(census, nullptr);
  EXPECT_EQ(census.domains.at("live").prefill.rows, 8U);
  EXPECT_EQ(census.domains.at("live").decode.rows, 5U);
  nano.pipeline.forward(nano.state, tokens.subspan(11, 4), PassMode::kCommit, LogitRows::kNone);
  nano.recorder.drop();
  nano.recorder.take_into(census, nullptr);
  EXPECT_EQ(census.rows(), 13U);
}

TEST(Profile, StateFile) {
  const testing::TemporaryFolder folder;
  const std::string path = (folder.path() / "profile.partial").string();
  ProfileState state{"run", 7, 9, {"m", 5, 1, 4, 2, {}}};
  state.census.add("x", Phase::kDecode, 0, std::vector<std::int32_t>{0, 3});
  save_profile_state(path, state);
  const ProfileState found = load_profile_state(path);
  EXPECT_EQ(found.run, "run");
  EXPECT_EQ(found.windows, 7U);
  EXPECT_EQ(found.trace_rounds, 9U);
  EXPECT_EQ(format_census(found.census), format_census(state.census));
  std::ofstream(path) << "{\"format\": \"other\"}";
  EXPECT_THROW(load_profile_state(path), InputError);
  std::ofstream(path) << "[1, 2";
  EXPECT_THROW(load_profile_state(path), InputError);

  const std::vector<ProfileText> texts{{"x", {1, 2, 3}}}, other{{"x", {1, 2, 4}}};
  const std::string id = profile_run_id(1, texts, {}, true);
  EXPECT_EQ(id, profile_run_id(1, texts, {}, true));
  EXPECT_NE(id, profile_run_id(2, texts, {}, true));
  EXPECT_NE(id, profile_run_id(1, other, {}, true));
  EXPECT_NE(id, profile_run_id(1, {{"y", {1, 2, 3}}}, {}, true));
  EXPECT_NE(id, profile_run_id(1, texts, {1024, 512, 0}, true));
  EXPECT_NE(id, profile_run_id(1, texts, {2048, 256, 0}, true));
  EXPECT_NE(id, profile_run_id(1, texts, {2048, 512, 1}, true));
  EXPECT_NE(id, profile_run_id(1, texts, {}, false));
}

}  // namespace
}  // namespace tandem::testing
