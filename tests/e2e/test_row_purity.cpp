// L1 (docs/numerics.md): one hash over all logits of three prompts, whatever the prefill chunk, the verify windows and
// their accept counts, the neighbours, the thread count, or a session saved and restored in the middle. And L2/L3 on
// the CPU: the scalar reference gives the same hash.
#include <gtest/gtest.h>

#include <random>

#include "cpu/cpu_ops.h"
#include "cpu/reference_ops.h"
#include "runtime/logits_hash.h"
#include "runtime/pipeline.h"
#include "tests/e2e/model_machine.h"
#include "tests/e2e/nano_prompts.h"
#include "tests/synthetic_model.h"

namespace tandem::testing {
namespace {

// The logits rows of tokens[from, to) run in windows of 1, 2, 5, 8 or 16 rows: some rows hold the true continuation,
// the rest wrong tokens, and any number of the true ones is kept; a few rows in between are committed.
void windows(Pipeline& pipeline, SequenceState& state, std::span<const TokenId> tokens, std::mt19937& random,
             LogitsHash& hash) {
  const auto vocab = static_cast<std::uint32_t>(pipeline.model().shape.vocab);
  while (state.position() < tokens.size()) {
    if (random() % 4 == 0) {  // committed rows in between, as a user's next message is
      const std::size_t count = std::min<std::size_t>(1 + random() % 3, tokens.size() - state.position());
      const PassOutput out =
          pipeline.forward(state, tokens.subspan(state.position(), count), PassMode::kCommit, LogitRows::kAll);
      add_rows(hash, out.logits);
      continue;
    }
    const std::size_t sizes[] = {1, 2, 5, 8, kMaxWindow};
    const std::size_t w = std::min(sizes[random() % std::size(sizes)], state.room());
    const std::size_t right = std::min<std::size_t>(1 + random() % w, tokens.size() - state.position());
    Prompt window(tokens.begin() + static_cast<std::ptrdiff_t>(state.position()),
                  tokens.begin() + static_cast<std::ptrdiff_t>(state.position() + right));
    while (window.size() < w) window.push_back(static_cast<TokenId>(random() % vocab));
    const PassOutput out = pipeline.forward(state, window, PassMode::kWindow, LogitRows::kAll);
    const std::size_t kept = random() % (right + 1);
    add_rows(hash, out.logits.slice(0, kept));
    state.keep(kept);
  }
}

class RowPurity : public ::testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_MACHINE();
    ops_ = make_model_machine(2);
    pipeline_.emplace(nano(), *ops_, kLongest);
  }
  SequenceState new_state(std::size_t context = kContext) const {
    return {nano().shape, {context, KvType::kF16}, ops_->memory()};
  }
  static const std::string& expected() {
    static const std::string hash = [] {
      const auto ops = make_cpu_ops(1);
      Pipeline pipeline(nano(), *ops, kLongest);
      return chunked(pipeline, kLongest);
    }();
    return hash;
  }
  std::unique_ptr<Ops> ops_;
  std::optional<Pipeline> pipeline_;
};

TEST_F(RowPurity, PrefillChunks) {
  for (const std::size_t chunk : {1UL, 3UL, 64UL, 511UL, kLongest})
    EXPECT_EQ(chunked(*pipeline_, chunk), expected()) << chunk;
}

// Passes that run in parts, the last of them short, and parts of other sizes than the chunks.
TEST_F(RowPurity, PassesInParts) {
  for (const std::size_t part : {16UL, 48UL, 256UL}) {
    LoadOptions load;
    load.part_rows = part;
    const auto ops = make_model_machine(2);
    Pipeline pipeline(nano(), *ops, kLongest, load);
    for (const std::size_t chunk : {40UL, 300UL, kLongest})
      EXPECT_EQ(chunked(pipeline, chunk), expected()) << "parts of " << part << ", chunks of " << chunk;
  }
}

// A window whose accepted rows are folded in by the pass that follows, in parts; experts on both sides, and the routes
// that an observer hears.
TEST_F(RowPurity, PartsAfterAWindow) {
  struct Heard : RouteObserver {
    std::vector<std::int32_t> ids;
    void on_routes(PassMode, int, std::size_t, const Routes& routes) override {
      ids.insert(ids.end(), routes.expert, routes.expert + routes.rows * routes.used);
    }
  };
  const Prompt& tokens = prompts()[2];
  std::string whole;
  std::vector<std::int32_t> routes;
  for (const std::size_t part : {512UL, 16UL, 112UL}) {
    LoadOptions load;
    load.part_rows = part;
    load.placement = all_in_ram(nano().shape.layers + nano().shape.mtp_layers, nano().shape.experts);
    for (std::size_t i = 0; i < load.placement->place.size(); i += 2) load.placement->place[i] = Place::kCard;
    const auto ops = make_model_machine(2);
    Pipeline pipeline(nano(), *ops, kLongest, load);
    Heard heard;
    pipeline.set_route_observer(&heard);
    SequenceState state(nano().shape, {kContext, KvType::kF16}, ops->memory());
    LogitsHash hash;
    add_rows(
        hash,
        pipeline.forward(state, std::span(tokens).first(9), PassMode::kWindow, LogitRows::kAll).logits.slice(0, 7));
    state.keep(7);
    add_rows(hash,
             pipeline.forward(state, std::span(tokens).subspan(7, 250), PassMode::kCommit, LogitRows::kAll).logits);
    if (whole.empty()) {
      whole = hash.hex();
      routes = heard.ids;
    }
    EXPECT_EQ(hash.hex(), whole) << "parts of " << part;
    EXPECT_EQ(heard.ids, routes) << "parts of " << part;
  }
}

// The draft head over a prompt in one pass: logits and residual, in parts and whole.
TEST_F(RowPurity, DraftHeadInParts) {
  const Prompt& tokens = prompts()[2];
  const std::size_t n = 300;
  std::string whole;
  for (const std::size_t part : {512UL, 64UL, 16UL}) {
    LoadOptions load;
    load.part_rows = part;
    const auto ops = make_model_machine(2);
    Pipeline pipeline(nano(), *ops, kLongest, load);
    MtpHead head(pipeline, MtpNorm::kFull, MtpAttention::kSparse);
    SequenceState state(nano().shape, {kContext, KvType::kF16}, ops->memory());
    LogitsHash hash;
    const PassOutput trunk = pipeline.forward(state, std::span(tokens).first(n), PassMode::kCommit, LogitRows::kLast);
    add_rows(hash, trunk.logits);
    add_rows(hash, trunk.wide);
    std::vector<float> wide;
    for (std::size_t r = 0; r < n; ++r) wide.insert(wide.end(), trunk.wide.row(r), trunk.wide.row(r) + trunk.wide.cols);
    const PassOutput out = head.forward(state, {wide.data(), n, wide.size() / n}, std::span(tokens).subspan(1, n),
                                        PassMode::kCommit, LogitRows::kAll);
    add_rows(hash, out.logits);
    add_rows(hash, out.wide);
    if (whole.empty()) whole = hash.hex();
    EXPECT_EQ(hash.hex(), whole) << "parts of " << part;
  }
}

TEST_F(RowPurity, WorkersAndMachines) {
  for (const int workers : {1, 2, 3}) {
    const auto ops = make_model_machine(workers);
    Pipeline pipeline(nano(), *ops, 64);
    EXPECT_EQ(chunked(pipeline, 64), expected()) << workers;
  }
}

TEST_F(RowPurity, InstructionSets) {
  for (const TileIsa isa : kAllTileIsas) {
    if (!tile_isa_supported(isa)) continue;
    const auto ops = make_cpu_ops(2, isa);
    Pipeline pipeline(nano(), *ops, 64);
    EXPECT_EQ(chunked(pipeline, 64), expected()) << tile_isa_name(isa);
  }
}

TEST_F(RowPurity, WindowsWithRandomAcceptCounts) {
  for (const std::uint32_t seed : {1U, 2U, 3U}) {
    std::mt19937 random(seed);
    LogitsHash hash;
    for (const Prompt& tokens : prompts()) {
      SequenceState state = new_state();
      windows(*pipeline_, state, tokens, random, hash);
      EXPECT_TRUE(std::equal(state.tokens().begin(), state.tokens().end(), tokens.begin(), tokens.end()));
    }
    EXPECT_EQ(hash.hex(), expected()) << "seed " << seed;
  }
}

TEST_F(RowPurity, TwoSequencesInterleaved) {
  // Sequence b runs another prompt between every pass of sequence a, on the same pipeline.
  LogitsHash hash;
  const Prompt& other = prompts()[2];
  SequenceState b = new_state();
  std::mt19937 random(7);
  for (const Prompt& tokens : prompts()) {
    SequenceState a = new_state();
    while (a.position() < tokens.size()) {
      const std::size_t count = std::min<std::size_t>(1 + random() % 9, tokens.size() - a.position());
      add_rows(hash,
               pipeline_->forward(a, std::span(tokens).subspan(a.position(), count), PassMode::kCommit, LogitRows::kAll)
                   .logits);
      if (b.room() < 4) b.reset();
      const std::span<const TokenId> next = std::span(other).subspan(b.position() % 400, 3);
      pipeline_->forward(b, next, random() % 2 == 0 ? PassMode::kCommit : PassMode::kWindow, LogitRows::kLast);
      b.keep(b.pending() / 2);
    }
  }
  EXPECT_EQ(hash.hex(), expected());
}

TEST_F(RowPurity, SavedAndRestoredInTheMiddle) {
  TempDir dir;
  LogitsHash hash;
  std::mt19937 random(11);
  for (const Prompt& tokens : prompts()) {
    const std::size_t middle = tokens.size() * 2 / 3;
    SequenceState first = new_state();
    // The last pass before the save is a window with rows dropped, so that accepted rows are still unfolded: more of
    // them than half a window holds.
    constexpr std::size_t kKept = kMaxWindow - 4;
    windows(*pipeline_, first, std::span(tokens).first(middle - kKept), random, hash);
    Prompt window(tokens.begin() + static_cast<std::ptrdiff_t>(middle - kKept),
                  tokens.begin() + static_cast<std::ptrdiff_t>(middle));
    window.resize(kMaxWindow, tokens[2]);
    add_rows(hash, pipeline_->forward(first, window, PassMode::kWindow, LogitRows::kAll).logits.slice(0, kKept));
    first.keep(kKept);
    first.save(dir / "sequence.state", nano().fingerprint());
    SequenceState second = new_state(kContext + 100);
    second.restore(dir / "sequence.state", nano().fingerprint());
    ASSERT_EQ(second.position(), middle);
    windows(*pipeline_, second, tokens, random, hash);
  }
  EXPECT_EQ(hash.hex(), expected());
}

TEST_F(RowPurity, RewoundToACheckpoint) {
  LogitsHash hash;
  std::mt19937 random(13);
  for (const Prompt& tokens : prompts()) {
    SequenceState state = new_state();
    windows(*pipeline_, state, std::span(tokens).first(tokens.size() / 2), random, hash);
    const auto point = state.checkpoint();
    const Prompt wrong(40, tokens[1]);
    pipeline_->forward(state, wrong, PassMode::kCommit, LogitRows::kNone);
    state.rewind(*point);
    windows(*pipeline_, state, tokens, random, hash);
  }
  EXPECT_EQ(hash.hex(), expected());
}

// The draft head: rows committed in one pass, in windows with drops, or token by token leave the same cache, so the
// same draft logits.
TEST_F(RowPurity, DraftHeadWindows) {
  for (const MtpAttention attention : {MtpAttention::kSparse, MtpAttention::kDense}) {
    const Prompt& tokens = prompts()[2];
    SequenceState state = new_state();
    const PassOutput trunk = pipeline_->forward(state, tokens, PassMode::kCommit, LogitRows::kNone);
    const std::vector<float> wide(trunk.wide.data, trunk.wide.data + trunk.wide.rows * trunk.wide.cols);
    const ConstRows h(wide.data(), trunk.wide.rows, trunk.wide.cols);
    const std::span<const TokenId> next = std::span(tokens).subspan(1);
    MtpHead head(*pipeline_, MtpNorm::kFull, attention);

    LogitsHash whole;
    SequenceState a = new_state();
    add_rows(whole, head.forward(a, h.slice(0, next.size()), next, PassMode::kCommit, LogitRows::kAll).logits);

    LogitsHash pieces;
    SequenceState b = new_state();
    std::mt19937 random(17);
    while (b.mtp.rows < next.size()) {
      const std::size_t from = b.mtp.rows, count = std::min<std::size_t>(1 + random() % 4, next.size() - from);
      add_rows(
          pieces,
          head.forward(b, h.slice(from, count), next.subspan(from, count), PassMode::kCommit, LogitRows::kAll).logits);
      // Chained drafts on the head's own output, several passes in one window, all dropped.
      for (std::size_t i = 0; i < random() % 4 && from + count + i < kContext; ++i)
        head.forward(b, h.slice(random() % h.rows, 1), next.subspan(random() % next.size(), 1), PassMode::kWindow,
                     LogitRows::kLast);
      b.keep_drafts(0);
    }
    EXPECT_EQ(pieces.hex(), whole.hex());

    // Five rows after many others in one pass; one a pass in an open window, as chained drafts are; after a
    // rewind over other rows; and after a restore.
    // A block of the indexer ends among them; its key is made of raw keys from before.
    const auto ratio = static_cast<std::size_t>(nano().shape.indexer_ratio);
    const std::size_t after = 5, before = 160 / ratio * ratio - 2;
    const auto commit = [&](SequenceState& to, std::size_t from, std::size_t count) {
      LogitsHash hash;
      const ConstRows rows = h.slice(from, count);
      add_rows(hash, head.forward(to, rows, next.subspan(from, count), PassMode::kCommit, LogitRows::kAll).logits);
      return hash.hex();
    };
    SequenceState c = new_state(), d = new_state();
    commit(c, 0, before);
    TempDir dir;
    c.save(dir / "draft.state", nano().fingerprint());
    d.restore(dir / "draft.state", nano().fingerprint());
    const auto point = c.checkpoint();
    const std::string together = commit(c, before, after);
    const auto keys = [&](const SequenceState& of) {
      std::vector<float> pooled((before + after) / ratio * static_cast<std::size_t>(nano().shape.indexer_dim));
      ops_->memory().read(pooled.data(), of.mtp.attention.pooled.data(), pooled.size() * sizeof(float));
      return pooled;
    };
    const std::vector<float> expected_keys = keys(c);
    EXPECT_EQ(commit(d, before, after), together);
    EXPECT_EQ(keys(d), expected_keys);
    c.rewind(*point);
    commit(c, 3, 10);
    c.rewind(*point);
    EXPECT_EQ(commit(c, before, after), together);
    EXPECT_EQ(keys(c), expected_keys);
    c.rewind(*point);
    LogitsHash chained;
    for (std::size_t i = before; i < before + after; ++i)
      add_rows(chained, head.forward(c, h.slice(i, 1), next.subspan(i, 1), PassMode::kWindow, LogitRows::kLast).logits);
    EXPECT_EQ(chained.hex(), together);
  }
}

// Every block format in one synthetic model: the scalar reference and the CPU machine, whole and in windows.
TEST(RowPurityTwins, ReferenceAndCpuOverAllTypes) {
  const DType types[] = {DType::Q4_0,   DType::Q4_1,    DType::Q5_0,  DType::Q5_1,  DType::Q8_0,    DType::Q2_K,
                         DType::Q3_K,   DType::Q4_K,    DType::Q5_K,  DType::Q6_K,  DType::IQ2_XXS, DType::IQ2_XS,
                         DType::IQ2_S,  DType::IQ3_XXS, DType::IQ3_S, DType::IQ1_S, DType::IQ1_M,   DType::IQ4_NL,
                         DType::IQ4_XS, DType::TQ1_0,   DType::TQ2_0, DType::MXFP4, DType::Q1_0,    DType::Q2_0,
                         DType::F16,    DType::BF16};
  SyntheticOptions options;
  options.shape.hidden = 256;
  std::size_t turn = 0;
  options.type = [&](const tandem::TensorSpec& spec) {
    return spec.form == TensorForm::kMatrix || spec.form == TensorForm::kBank ? types[turn++ % std::size(types)]
                                                                              : DType::F32;
  };
  const auto image = synthetic_model(options).build();
  const Model model = Model::bind(Gguf::parse(image));
  std::mt19937 random(3);
  Prompt tokens;
  for (int i = 0; i < 90; ++i)
    tokens.push_back(static_cast<TokenId>(random() % static_cast<std::uint32_t>(model.shape.vocab)));
  const auto run = [&](std::unique_ptr<Ops> ops) {
    Pipeline pipeline(model, *ops, 128);
    LogitsHash hash;
    SequenceState state(model.shape, {128, KvType::kF32});
    add_rows(hash, pipeline.forward(state, tokens, PassMode::kCommit, LogitRows::kAll).logits);
    return hash.hex();
  };
  const std::string reference = run(make_reference_ops());
  EXPECT_EQ(run(make_cpu_ops(1)), reference);
  EXPECT_EQ(run(make_cpu_ops(2)), reference);
}

// A draft head with an embedding of its own reads that one and not the trunk's: where row i of its own is the trunk's
// row i + 1, tokens t give what the shared one gives for t + 1.
TEST(DraftHead, ReadsItsOwnEmbedding) {
  const auto image = synthetic_model().build();
  const Model shared = Model::bind(Gguf::parse(image));
  Model own = Model::bind(Gguf::parse(image));
  own.mtp->token_embd.data += own.mtp->token_embd.row_size();
  own.mtp->token_embd.rows -= 1;
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> wide(3 * static_cast<std::size_t>(shared.shape.wide()));
  for (float& value : wide) value = normal(random);
  const auto run = [&](const Model& model, const Prompt& next) {
    const auto ops = make_cpu_ops(1);
    Pipeline pipeline(model, *ops, 16);
    MtpHead head(pipeline, MtpNorm::kFull, MtpAttention::kSparse);
    SequenceState state(model.shape, {64, KvType::kF32});
    LogitsHash hash;
    const ConstRows rows(wide.data(), 3, wide.size() / 3);
    add_rows(hash, head.forward(state, rows, next, PassMode::kCommit, LogitRows::kAll).logits);
    return hash.hex();
  };
  EXPECT_EQ(run(own, {7, 100, 42}), run(shared, {8, 101, 43}));
}

// The nano model itself on the scalar reference (short: it is slow on purpose).
TEST(RowPurityTwins, ReferenceOnTheNanoModel) {
  const auto run = [](std::unique_ptr<Ops> ops, std::size_t chunk) {
    Pipeline pipeline(nano(), *ops, 64);
    LogitsHash hash;
    SequenceState state(nano().shape, {kContext, KvType::kF16});
    const std::span<const TokenId> tokens = std::span(prompts()[0]).first(40);
    pipeline.prefill(state, tokens, chunk, LogitRows::kAll,
                     [&](std::size_t, const PassOutput& out) { add_rows(hash, out.logits); });
    return hash.hex();
  };
  EXPECT_EQ(run(make_cpu_ops(2), 7), run(make_reference_ops(), 40));
}

}  // namespace
}  // namespace tandem::testing
