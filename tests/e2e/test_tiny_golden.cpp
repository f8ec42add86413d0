// The whole model against an outside float64 reference on a tiny random model: every traced stage of every layer, the
// wide residual, logits, n-gram rows and the draft head. Everything is float32 here, so only rounding may differ.
#include <gtest/gtest.h>

#include "cpu/cpu_ops.h"
#include "cpu/reference_ops.h"
#include "runtime/exact_math.h"
#include "runtime/ngram.h"
#include "runtime/pipeline.h"
#include "tests/golden_model.h"

namespace tandem::testing {
namespace {

// Float rounding through the model. One dot product of K terms is off by at most (K/32 + 5 + log2 segments) roundings,
// typically their root; K is at most 256 here, so about 13 * 6e-8 = 8e-7 of sum |a b|, which is up to ~4 times the
// result. A block chains six such products and normalisations, the four layers have eight blocks, and errors of
// different blocks add up independently: 8e-7 * 4 * sqrt(6 * 8) = 2.2e-5. The reference's own float32 run shows 1e-6.
constexpr double kFloatChain = 2.2e-5;

struct MachineCase {
  const char* name;
  std::unique_ptr<Ops> (*make)();
};
const MachineCase kMachines[] = {{"reference", [] { return make_reference_ops(); }},
                                 {"cpu1", [] { return make_cpu_ops(1); }},
                                 {"cpu2", [] { return make_cpu_ops(2); }}};

class TinyGolden : public ::testing::TestWithParam<MachineCase> {
 protected:
  TinyGolden() : image_(tiny_golden_model().build()), model_(Model::bind(Gguf::parse(image_, "tiny_golden"))) {
    for (const double t : tiny_golden().at("tokens").values) tokens_.push_back(static_cast<TokenId>(t));
    for (const double t : tiny_golden().at("next_tokens").values) next_.push_back(static_cast<TokenId>(t));
  }
  std::vector<std::uint8_t> image_;
  Model model_;
  std::vector<TokenId> tokens_, next_;
};

TEST_P(TinyGolden, EveryStageLogitsAndDraftHead) {
  const auto ops = GetParam().make();
  Pipeline pipeline(model_, *ops, 128);
  SequenceState state(model_.shape, {128, KvType::kF32});
  std::size_t compared = 0;
  pipeline.set_tap([&](std::string_view stage, int layer, std::size_t, ConstRows rows) {
    const auto found = tiny_golden().find(fmt::format("trace/l{}_{}", layer, stage));
    if (found == tiny_golden().end()) return;
    std::vector<float> values(rows.data, rows.data + rows.rows * rows.cols);
    if (stage == "attn_inject")  // the trace holds the write weights 2 sigmoid(logit / 4)
      for (float& v : values) v = 2.0F * sigmoid_c(v / 4.0F);
    EXPECT_TRUE(
        rows_close(ConstRows(values.data(), rows.rows, rows.cols), found->second, 0, kFloatChain, found->first));
    ++compared;
  });
  const PassOutput out = pipeline.forward(state, tokens_, PassMode::kCommit, LogitRows::kAll);
  EXPECT_EQ(compared, 4U * 6U);
  EXPECT_TRUE(rows_close(out.logits, tiny_golden().at("logits"), 0, kFloatChain, "logits"));
  EXPECT_TRUE(rows_close(out.wide, tiny_golden().at("H"), 0, kFloatChain, "H"));

  const std::vector<float> wide(out.wide.data, out.wide.data + out.wide.rows * out.wide.cols);
  MtpHead head(pipeline, MtpNorm::kFull, MtpAttention::kSparse);
  const PassOutput draft = head.forward(state, ConstRows(wide.data(), out.wide.rows, out.wide.cols), next_,
                                        PassMode::kCommit, LogitRows::kAll);
  EXPECT_TRUE(rows_close(draft.logits, tiny_golden().at("mtp_logits"), 0, kFloatChain, "mtp_logits"));
  EXPECT_TRUE(rows_close(draft.wide, tiny_golden().at("mtp_G"), 0, kFloatChain, "mtp_G"));
}

TEST_P(TinyGolden, TokenByTokenGivesTheSameBits) {
  const auto ops = GetParam().make();
  Pipeline pipeline(model_, *ops, 128);
  SequenceState whole(model_.shape, {128, KvType::kF32}), steps(model_.shape, {128, KvType::kF32});
  const PassOutput out = pipeline.forward(whole, tokens_, PassMode::kCommit, LogitRows::kAll);
  const std::vector<float> expected(out.logits.data, out.logits.data + out.logits.rows * out.logits.cols);
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const PassOutput step =
        pipeline.forward(steps, std::span(tokens_).subspan(i, 1), PassMode::kCommit, LogitRows::kLast);
    ASSERT_EQ(std::memcmp(step.logits.data, expected.data() + i * step.logits.cols, step.logits.cols * sizeof(float)),
              0)
        << "position " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Machines, TinyGolden, ::testing::ValuesIn(kMachines),
                         [](const auto& machine) { return std::string(machine.param.name); });

TEST(TinyGoldenNgram, RowsAreExact) {
  const auto image = tiny_golden_model().build();
  const Model model = Model::bind(Gguf::parse(image, "tiny_golden"));
  const NpyArray& expected = tiny_golden().at("ple_rows");
  std::vector<TokenId> tokens;
  for (const double t : tiny_golden().at("tokens").values) tokens.push_back(static_cast<TokenId>(t));
  std::vector<std::uint64_t> rows(8);
  for (std::size_t p = 0; p < tokens.size(); ++p) {
    const std::size_t first = p >= 2 ? p - 2 : 0;
    ngram_rows(model.shape, std::span(tokens).subspan(first, p + 1 - first), rows);
    for (std::size_t h = 0; h < 8; ++h)
      ASSERT_EQ(static_cast<double>(rows[h]), expected.row(p)[h]) << "position " << p << " head " << h;
  }
}

// The published toy vector: m = 3, 5, 7; primes 101 and 103; one head per order; EOS 99; tokens 7 9 11.
TEST(TinyGoldenNgram, PublishedVector) {
  ModelShape shape;
  shape.ngram_size = 3;
  shape.heads_per_ngram = 1;
  shape.ple_eos = 99;
  shape.ple_multipliers = {3, 5, 7};
  shape.ple_vocab_sizes = {101, 103};
  shape.ple_offsets = {0, 101};
  const std::vector<TokenId> tokens{7, 9, 11};
  const std::uint64_t expected[3][2] = {{1, 124}, {56, 136}, {12, 162}};
  for (std::size_t p = 0; p < 3; ++p) {
    std::vector<std::uint64_t> rows(2);
    ngram_rows(shape, std::span(tokens).subspan(0, p + 1), rows);
    EXPECT_EQ(rows[0], expected[p][0]);
    EXPECT_EQ(rows[1], expected[p][1]);
  }
}

}  // namespace
}  // namespace tandem::testing
