// Perplexity and top-1 rate of the nano model on the held-out texts, against the float32 figures of the reference code
// (tests/golden/eval/results.json): within 0.5 %.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cpu/cpu_ops.h"
#include "runtime/evaluate.h"
#include "runtime/tokenizer.h"

namespace tandem::testing {
namespace {

const char* const kQ4 = TANDEM_SOURCE_DIR "/models/flash-next-nano-q4.gguf";
const char* const kF16 = TANDEM_SOURCE_DIR "/../shared/nano/flash-next-nano-f16.gguf";

class HeldOut : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(HeldOut, PerplexityAndTop1) {
  const std::string set = std::get<0>(GetParam()), text = std::get<1>(GetParam());
  const char* path = set == "q4" ? kQ4 : kF16;
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path;
  const Model model = Model::open(path);
  const Tokenizer tokenizer = Tokenizer::from_gguf(model.gguf());
  const std::string folder = TANDEM_SOURCE_DIR "/tests/golden/eval/";
  std::ifstream file(folder + text + ".txt", std::ios::binary);
  const std::string content(std::istreambuf_iterator<char>(file), {});
  const auto golden = nlohmann::json::parse(std::ifstream(folder + "results.json"))[set][text];
  const std::vector<TokenId> tokens = tokenizer.encode(content, text == "chat");
  ASSERT_EQ(tokens.size(), golden["tokens"].get<std::size_t>());

  const auto ops = make_cpu_ops(0);
  Pipeline pipeline(model, *ops, 512);
  SequenceState state(model.shape, {1024, KvType::kF16});
  const auto result = evaluate(pipeline, state, tokens, {}, {});
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->scored, golden["scored"].get<std::size_t>());
  const double perplexity = golden["ppl"].get<double>(), top1 = golden["top1"].get<double>();
  EXPECT_NEAR(std::exp(result->nll), perplexity, 0.005 * perplexity);
  EXPECT_NEAR(result->top1, top1, 0.005 * top1);
  // Every window on its own, so that errors of opposite sign cannot hide each other: 1.5 % of its perplexity.
  ASSERT_EQ(result->window_nll.size(), golden["window_nll"].size());
  for (std::size_t i = 0; i < result->window_nll.size(); ++i)
    EXPECT_NEAR(result->window_nll[i], golden["window_nll"][i].get<double>(), 0.015) << "window " << i;
}

INSTANTIATE_TEST_SUITE_P(Texts, HeldOut,
                         ::testing::Combine(::testing::Values("q4", "f16"), ::testing::Values("prose", "code", "chat")),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) + "_" + std::get<1>(test.param);
                         });

// Rows of vocabulary 3 by hand.
TEST(Evaluate, LogSumExpAndArgMax) {
  const std::vector<float> row{0.0F, 1.0F, 1.0F};
  EXPECT_NEAR(log_sum_exp(row), std::log(1.0 + 2.0 * std::exp(1.0)), 1e-12);
  EXPECT_EQ(arg_max(row), 1U);
  const std::vector<float> large{1000.0F, 999.0F};
  EXPECT_NEAR(log_sum_exp(large), 1000.0 + std::log1p(std::exp(-1.0)), 1e-9);
}

}  // namespace
}  // namespace tandem::testing
