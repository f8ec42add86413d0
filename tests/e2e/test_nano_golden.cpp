// The trained nano model against golden data that the official modelling code gave in float32 (tests/golden/README.md):
// logits, routes, layer residuals, draft logits and chained drafts. FloatOps differs from that reference by rounding
// only; CpuOps adds int8 activations, judged by a bound derived in docs/testing.md.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cpu/float_ops.h"
#include "runtime/evaluate.h"
#include "runtime/pipeline.h"
#include "tests/golden_model.h"

namespace tandem::testing {
namespace {

struct GoldenSet {
  const char* name;
  const char* model;
  const char* folder;
};
const GoldenSet kSets[] = {
    {"q4", TANDEM_SOURCE_DIR "/models/flash-next-nano-q4.gguf", TANDEM_SOURCE_DIR "/tests/golden/q4"},
    {"f16", TANDEM_SOURCE_DIR "/../shared/nano/flash-next-nano-f16.gguf",
     TANDEM_SOURCE_DIR "/../shared/nano/golden/f16"},
};
const char* const kPrompts[] = {"chat_short", "chat_think",  "chat_tool", "unicode",
                                "eos_inside", "sparse_edge", "prose_long"};

// Float rounding through eight layers and 256-term products with activations up to 30 times their typical size: the
// golden's own float32 and float64 runs differ by 2.5e-5 on logits up to 37, 7e-7 of the largest. Thirty times that,
// per element, relative to max(|value|, rms of the row); 2.4e-6 is the worst found.
constexpr double kFloatChain = 2e-5;
// One int8 product: step d = amax/127 per block of 32, error uniform in +-d/2, so its standard deviation against the
// result is (amax/rms) / (127 sqrt(12)) = 2.5 / 440 = 0.6 %. A residual write passes through four such products in
// series (mixer down and up, projection in, projection out: 1.2 %), 17 writes and the head add up to a residual whose
// writes are partly independent: about 2.5 % of the row's rms. Six standard deviations.
constexpr double kInt8Chain = 0.15;

class NanoGolden : public ::testing::TestWithParam<std::tuple<GoldenSet, const char*>> {
 protected:
  void SetUp() override {
    const auto& [set, prompt] = GetParam();
    if (!std::filesystem::exists(set.model)) GTEST_SKIP() << "no " << set.model;
    static std::map<std::string, std::unique_ptr<Model>> models;
    auto& slot = models[set.name];
    if (!slot) slot = std::make_unique<Model>(Model::open(set.model));
    model_ = slot.get();
    base_ = std::string(set.folder) + "/" + prompt;
    golden_ = nlohmann::json::parse(std::ifstream(base_ + ".json"));
    tokens_ = golden_["tokens"].get<std::vector<TokenId>>();
  }
  NpyArray array(const std::string& name) const { return load_npy(base_ + "_" + name + ".npy"); }
  std::size_t first_row() const { return tokens_.size() - golden_["positions"].size(); }

  // Top-64 logits of the last positions and two full rows, element by element.
  void expect_logits(ConstRows logits, double tolerance) const {
    const NpyArray ids = array("top_ids"), values = array("top_logits"), full = array("full_logits");
    for (std::size_t r = 0; r < ids.rows(); ++r) {
      std::vector<float> found;
      for (std::size_t i = 0; i < ids.cols(); ++i)
        found.push_back(logits.row(first_row() + r)[static_cast<std::size_t>(ids.row(r)[i])]);
      EXPECT_TRUE(rows_close(ConstRows(found.data(), 1, found.size()), values, r, tolerance, base_ + " top logits"));
    }
    for (std::size_t r = 0; r < full.rows(); ++r) {
      const auto position = golden_["full_positions"][r].get<std::size_t>();
      EXPECT_TRUE(rows_close(logits.slice(position, 1), full, r, tolerance, base_ + " full row"));
    }
  }

  const Model* model_ = nullptr;
  std::string base_;
  nlohmann::json golden_;
  std::vector<TokenId> tokens_;
};

TEST_P(NanoGolden, FloatMachineMatchesTheReference) {
  FloatOps ops(2);
  Pipeline pipeline(*model_, ops, tokens_.size());
  SequenceState state(model_->shape, {tokens_.size() + 80, KvType::kF32});
  const NpyArray route_ids = array("router_ids");
  const std::size_t rows = golden_["positions"].size(), used = route_ids.cols();
  std::size_t routes_compared = 0, layers_compared = 0;
  const auto expect_residual = [&](const nlohmann::json& golden, const float* row, std::size_t width,
                                   const std::string& what) {
    double square = 0;
    for (std::size_t c = 0; c < width; ++c) square += static_cast<double>(row[c]) * static_cast<double>(row[c]);
    const double l2 = golden["l2"].get<double>(), rms = l2 / std::sqrt(static_cast<double>(width));
    EXPECT_NEAR(std::sqrt(square), l2, kFloatChain * l2) << what;
    for (std::size_t c = 0; c < 8; ++c) {
      const double want = golden["first8"][c].get<double>();
      EXPECT_NEAR(static_cast<double>(row[c]), want, kFloatChain * std::max(std::fabs(want), rms)) << what << " " << c;
    }
  };
  pipeline.set_tap([&](std::string_view stage, int layer, std::size_t, ConstRows x) {
    if (stage == "last" && layer < model_->shape.layers) {
      expect_residual(golden_["layers"][static_cast<std::size_t>(layer)], x.row(x.rows - 1), x.cols,
                      base_ + " layer " + std::to_string(layer));
      ++layers_compared;
    }
    if (stage == "final_mixer" && layer < 0)
      expect_residual(golden_["final_mixer"], x.row(x.rows - 1), x.cols, base_ + " final mixer");
    if (stage != "router_logits") return;
    std::vector<std::int32_t> expert(x.rows * used);
    std::vector<float> weight(x.rows * used);
    ASSERT_EQ(pipeline.ops().route(x, Routes{expert.data(), weight.data(), x.rows, used}), -1);
    const NpyArray route_weights = array("router_weights");
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t k = 0; k < used; ++k) {
        const std::size_t golden = (static_cast<std::size_t>(layer) * rows + r) * used + k;
        const std::size_t found = (x.rows - rows + r) * used + k;
        EXPECT_EQ(expert[found], static_cast<std::int32_t>(route_ids.values[golden])) << base_ << " layer " << layer;
        EXPECT_NEAR(static_cast<double>(weight[found]), route_weights.values[golden], 2e-4);
        ++routes_compared;
      }
  });
  const PassOutput out = pipeline.forward(state, tokens_, PassMode::kCommit, LogitRows::kAll);
  expect_logits(out.logits, kFloatChain);

  // Draft head, reference variant: row j takes H_j and token j + 1; the last row takes the first greedy token.
  std::vector<TokenId> next(tokens_.begin() + 1, tokens_.end());
  next.push_back(golden_["greedy"][0].get<TokenId>());
  const std::vector<float> wide(out.wide.data, out.wide.data + out.wide.rows * out.wide.cols);
  const ConstRows h(wide.data(), out.wide.rows, out.wide.cols);
  const NpyArray draft_ids = array("mtp_top_ids"), draft_logits = array("mtp_top_logits");
  const auto check_draft = [&](std::size_t variant, const char* name, MtpNorm norm, MtpAttention attention) {
    if (variant == 1) pipeline.set_tap({});
    SequenceState fresh(model_->shape, {tokens_.size() + 80, KvType::kF32});
    MtpHead head(pipeline, norm, attention);
    PassOutput draft = head.forward(fresh, h, next, PassMode::kCommit, LogitRows::kAll);
    for (std::size_t r = 0; r < rows; ++r) {
      std::vector<float> found;
      for (std::size_t i = 0; i < draft_ids.cols(); ++i)
        found.push_back(
            draft.logits.row(first_row() + r)[static_cast<std::size_t>(draft_ids.row(variant * rows + r)[i])]);
      EXPECT_TRUE(rows_close(ConstRows(found.data(), 1, found.size()), draft_logits, variant * rows + r, kFloatChain,
                             base_ + " draft " + name));
    }
    const nlohmann::json& expected = golden_["mtp"][name];
    expect_residual(expected["wide_output"], draft.wide.row(draft.wide.rows - 1), draft.wide.cols,
                    base_ + " G " + name);
    // Chained drafts, dense as the golden's.
    MtpHead chained(pipeline, norm, MtpAttention::kDense);
    std::vector<float> g(draft.wide.row(draft.wide.rows - 1), draft.wide.row(draft.wide.rows - 1) + draft.wide.cols);
    auto token = static_cast<TokenId>(arg_max(draft.logits.span(draft.logits.rows - 1)));
    pipeline.set_tap({});
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(token, expected["chained_drafts"][i].get<TokenId>()) << base_ << " " << name << " draft " << i;
      if (i == 2) break;
      draft = chained.forward(fresh, ConstRows(g.data(), 1, g.size()), std::span(&token, 1), PassMode::kWindow,
                              LogitRows::kAll);
      g.assign(draft.wide.row(0), draft.wide.row(0) + draft.wide.cols);
      token = static_cast<TokenId>(arg_max(draft.logits.span(0)));
    }
    EXPECT_EQ(fresh.mtp.pending, 2U);
    fresh.keep_drafts(0);
  };
  check_draft(0, "reference", MtpNorm::kFull, MtpAttention::kSparse);
  check_draft(1, "perstream_dense", MtpNorm::kPerStream, MtpAttention::kDense);
  EXPECT_EQ(routes_compared, 9U * rows * used);
  EXPECT_EQ(layers_compared, 8U);

  // 64 greedy tokens, one per pass, from the committed state. `out` was overwritten; start from the golden's first.
  auto token = golden_["greedy"][0].get<TokenId>();
  for (std::size_t i = 1; i < golden_["greedy"].size(); ++i) {
    const PassOutput step = pipeline.forward(state, std::span(&token, 1), PassMode::kCommit, LogitRows::kLast);
    token = static_cast<TokenId>(arg_max(step.logits.span(0)));
    ASSERT_EQ(token, golden_["greedy"][i].get<TokenId>()) << base_ << " greedy token " << i;
  }
}

TEST_P(NanoGolden, Int8ActivationsStayInTheirBound) {
  CpuOps ops(2);
  Pipeline pipeline(*model_, ops, tokens_.size());
  SequenceState state(model_->shape, {tokens_.size(), KvType::kF16});
  const PassOutput out = pipeline.forward(state, tokens_, PassMode::kCommit, LogitRows::kAll);
  expect_logits(out.logits, kInt8Chain);
}

std::string case_name(const ::testing::TestParamInfo<NanoGolden::ParamType>& test) {
  return std::string(std::get<0>(test.param).name) + "_" + std::get<1>(test.param);
}
INSTANTIATE_TEST_SUITE_P(Files, NanoGolden,
                         ::testing::Combine(::testing::ValuesIn(kSets), ::testing::ValuesIn(kPrompts)), case_name);

}  // namespace
}  // namespace tandem::testing
