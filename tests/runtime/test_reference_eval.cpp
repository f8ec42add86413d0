// `tandem eval --reference`: the figures against definitions in long double, both machines on small models and on the
// nano model against outside figures, the CSV and JSON forms, and every refusal.
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "cpu/float_ops.h"
#include "runtime/cmd_eval.h"
#include "runtime/reference_eval.h"
#include "tests/synthetic_model.h"

namespace tandem::testing {
namespace {

using Json = nlohmann::json;

// ---- figures --------------------------------------------------------------------------------------------------------

long double log_softmax(std::span<const float> row, std::size_t i) {
  long double top = row[0], sum = 0;
  for (const float v : row) top = std::max(top, static_cast<long double>(v));
  for (const float v : row) sum += std::exp(static_cast<long double>(v) - top);
  return static_cast<long double>(row[i]) - top - std::log(sum);
}

double kl_by_definition(std::span<const float> p, std::span<const float> q) {
  long double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i)
    sum += std::exp(log_softmax(p, i)) * (log_softmax(p, i) - log_softmax(q, i));
  return static_cast<double>(sum);
}

TEST(KlDivergence, ByHandAndByDefinition) {
  const std::vector<float> even{0.0F, 0.0F}, skewed{std::log(9.0F), 0.0F};
  EXPECT_NEAR(kl_divergence(even, skewed), 0.5 * std::log(0.5 / 0.9) + 0.5 * std::log(0.5 / 0.1), 1e-7);
  EXPECT_NEAR(kl_divergence(skewed, even), 0.9 * std::log(0.9 / 0.5) + 0.1 * std::log(0.1 / 0.5), 1e-7);
  std::mt19937 random(1);
  for (const float spread : {1.0F, 20.0F, 2000.0F}) {
    for (const float difference : {1e-3F, 0.5F, 40.0F}) {
      std::uniform_real_distribution<float> value(-spread, spread), change(-difference, difference);
      std::vector<float> p(200), q;
      for (float& v : p) v = value(random);
      for (const float v : p) q.push_back(v + change(random));
      const double expected = kl_by_definition(p, q);
      EXPECT_NEAR(kl_divergence(p, q), expected, 1e-9 * expected + 1e-15) << spread << " " << difference;
      EXPECT_EQ(kl_divergence(p, p), 0.0);
      for (float& v : q) v += 3.0F;  // logits have no zero point
      EXPECT_NEAR(kl_divergence(p, q), expected, 1e-3 * expected + 1e-6) << spread << " " << difference;
    }
  }
}

TEST(KlDivergence, OneLogitAHairApart) {
  const std::vector<float> p(1000, 0.0F);
  std::vector<float> q = p;
  q[7] = 0x1p-20F;  // KL = eps^2 p (1 - p) / 2 to first order: 4.5e-16, where a sum of differences is noise
  const double eps = 0x1p-20;
  EXPECT_NEAR(kl_divergence(p, q), eps * eps * 0.001 * 0.999 / 2, 1e-20);
}

TEST(Quantile, ByHand) {
  const std::vector<double> one{5.0}, five{1.0, 2.0, 4.0, 8.0, 16.0};
  EXPECT_EQ(quantile(one, 0.99), 5.0);
  EXPECT_EQ(quantile(five, 0.0), 1.0);
  EXPECT_EQ(quantile(five, 0.5), 4.0);
  EXPECT_EQ(quantile(five, 1.0), 16.0);
  EXPECT_DOUBLE_EQ(quantile(five, 0.875), 12.0);
}

std::vector<PositionScore> hand_scores() {
  return {{0, 1, 30, 1.0, 0.5, 0.25, true, true, true},
          {0, 2, 31, 2.0, 2.5, 4.0, false, false, true},
          {1, 1, 32, 3.0, 1.0, 0.5, true, false, false},
          {1, 2, 33, 6.0, 4.0, 0.25, true, false, true}};
}

TEST(Summary, ByHand) {
  const ReferenceSummary summary = summarize(hand_scores());
  EXPECT_EQ(summary.scored, 4U);
  EXPECT_DOUBLE_EQ(summary.nll, 3.0);
  EXPECT_DOUBLE_EQ(summary.reference_nll, 2.0);
  EXPECT_DOUBLE_EQ(summary.perplexity(), std::exp(3.0));
  EXPECT_DOUBLE_EQ(summary.reference_perplexity(), std::exp(2.0));
  EXPECT_DOUBLE_EQ(summary.perplexity_ratio(), std::exp(1.0));
  EXPECT_DOUBLE_EQ(summary.top1, 0.25);
  EXPECT_DOUBLE_EQ(summary.reference_top1, 0.75);
  EXPECT_DOUBLE_EQ(summary.top1_agreement, 0.75);
  EXPECT_DOUBLE_EQ(summary.kl_mean, 1.25);
  EXPECT_DOUBLE_EQ(summary.kl_median, 0.375);
  EXPECT_DOUBLE_EQ(summary.kl_p99, 0.5 + 0.97 * 3.5);
  EXPECT_DOUBLE_EQ(summary.kl_max, 4.0);
}

TEST(Csv, ByHand) {
  EXPECT_EQ(per_position_csv(hand_scores()),
            "window,position,token,nll,reference_nll,kl,top1_equal\n"
            "0,1,30,1,0.5,0.25,1\n"
            "0,2,31,2,2.5,4,0\n"
            "1,1,32,3,1,0.5,1\n"
            "1,2,33,6,4,0.25,1\n");
}

// ---- two machines over one text -------------------------------------------------------------------------------------

SyntheticOptions options_of(DType matrices, const ModelShape& shape = tiny_shape()) {
  SyntheticOptions options;
  options.shape = shape;
  options.type = [matrices](const tandem::TensorSpec& spec) {
    return spec.form == TensorForm::kMatrix || spec.form == TensorForm::kBank ? matrices : DType::F32;
  };
  return options;
}
std::vector<std::uint8_t> image_of(DType matrices) {
  return synthetic_model(options_of(matrices)).build();
}

std::vector<TokenId> random_tokens(std::size_t count, std::uint32_t seed = 5) {
  std::mt19937 random(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % 256);
  return tokens;
}

struct Side {
  Side(const Model& model, std::unique_ptr<Ops> ops_, KvType kv, std::size_t rows = 64)
      : ops(std::move(ops_)), pipeline(model, *ops, rows), state(model.shape, {200, kv}) {}
  EvalMachine machine() { return {pipeline, state}; }
  std::unique_ptr<Ops> ops;
  Pipeline pipeline;
  SequenceState state;
};

// Logits of every position by evaluate(), window by window.
std::vector<std::vector<std::vector<float>>> all_logits(Side& side, std::span<const TokenId> tokens,
                                                        const EvaluateOptions& options) {
  std::vector<std::vector<std::vector<float>>> rows;
  EvaluateHooks hooks;
  hooks.on_row = [&](std::size_t window, std::size_t position, std::span<const float> row) {
    if (position == 0) rows.emplace_back();
    EXPECT_EQ(rows.size(), window + 1);
    rows[window].emplace_back(row.begin(), row.end());
  };
  EXPECT_TRUE(evaluate(side.pipeline, side.state, tokens, options, hooks).has_value());
  return rows;
}

TEST(EvaluateAgainst, EveryPositionByItsDefinition) {
  const auto coarse_image = image_of(DType::Q4_0), fine_image = image_of(DType::F32);
  const Model coarse = Model::bind(Gguf::parse(coarse_image)), fine = Model::bind(Gguf::parse(fine_image));
  const auto tokens = random_tokens(115);
  const EvaluateOptions options{.window = 40, .last_window = 36, .chunk = 40};  // 40, 40; 35 are too few
  Side model(coarse, make_cpu_ops(2), KvType::kF16), reference(fine, make_float_ops(2), KvType::kF32);
  const auto rows = all_logits(model, tokens, options), expected_rows = all_logits(reference, tokens, options);
  ASSERT_EQ(rows.size(), 2U);
  EvaluateOptions chunked = options;
  chunked.chunk = 7;
  std::size_t last_done = 0;
  const auto result = evaluate_against(model.machine(), reference.machine(), tokens, chunked,
                                       {[&](std::size_t done, std::size_t total) {
                                          EXPECT_GT(done, last_done);
                                          EXPECT_EQ(total, 115U);
                                          last_done = done;
                                        },
                                        {}});
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(last_done, 80U);
  EXPECT_EQ(result->tokens, 115U);
  EXPECT_EQ(result->windows, 2U);
  ASSERT_EQ(result->positions.size(), 78U);
  std::size_t at = 0, differing = 0;
  for (std::size_t w = 0; w < 2; ++w)
    for (std::size_t p = 1; p < 40; ++p, ++at) {
      const PositionScore& score = result->positions[at];
      const std::vector<float>&row = rows[w][p - 1], &expected = expected_rows[w][p - 1];
      const auto token = static_cast<std::size_t>(tokens[w * 40 + p]);
      ASSERT_EQ(score.window, w);
      ASSERT_EQ(score.position, p);
      ASSERT_EQ(static_cast<std::size_t>(score.token), token);
      // The model's machine is row pure, the reference agrees between chunk sizes to float rounding.
      EXPECT_NEAR(score.nll, static_cast<double>(-log_softmax(row, token)), 1e-12);
      EXPECT_NEAR(score.reference_nll, static_cast<double>(-log_softmax(expected, token)), 2e-5);
      const double kl = kl_by_definition(expected, row);
      EXPECT_NEAR(score.kl, kl, 1e-5 * std::sqrt(kl) + 1e-9);
      const auto best = std::max_element(row.begin(), row.end()) - row.begin();
      const auto reference_best = std::max_element(expected.begin(), expected.end()) - expected.begin();
      EXPECT_EQ(score.top1_equal, best == reference_best);
      EXPECT_EQ(score.hit, static_cast<std::size_t>(best) == token);
      EXPECT_EQ(score.reference_hit, static_cast<std::size_t>(reference_best) == token);
      differing += best == reference_best ? 0 : 1;
    }
  EXPECT_GT(differing, 0U) << "the case shows no disagreement";
  EXPECT_LT(differing, 78U) << "the case shows no agreement";
  EvaluateOptions with_last = options;
  with_last.last_window = 35;
  EXPECT_EQ(evaluate_against(model.machine(), reference.machine(), tokens, with_last, {})->positions.size(), 78U + 34U);
}

TEST(EvaluateAgainst, AFileAgainstItself) {
  const auto image = image_of(DType::F32);
  const Model model = Model::bind(Gguf::parse(image));
  const auto tokens = random_tokens(150);
  Side cpu(model, make_cpu_ops(2), KvType::kF32), reference(model, make_float_ops(2), KvType::kF32);
  Side again(model, make_float_ops(2), KvType::kF32);
  const auto result = evaluate_against(cpu.machine(), reference.machine(), tokens, {}, {});
  ASSERT_TRUE(result.has_value());
  const ReferenceSummary summary = summarize(result->positions);
  // Both multiply in float: logits agree to 2e-5 of values about 1, so KL to the square of it, halved.
  EXPECT_LT(summary.kl_max, 1e-9);
  EXPECT_NEAR(summary.perplexity_ratio(), 1.0, 1e-6);
  // One machine against itself, same order of summation: nothing at all.
  const auto same = evaluate_against(again.machine(), reference.machine(), tokens, {}, {});
  for (const PositionScore& score : same->positions) {
    EXPECT_EQ(score.kl, 0.0);
    EXPECT_EQ(score.nll, score.reference_nll);
    EXPECT_TRUE(score.top1_equal);
  }
}

// The whole model at once is what the reference machine must not hold in float.
TEST(EvaluateAgainst, TheReferenceMachineKeepsNoWeights) {
  const auto image = image_of(DType::Q4_0);
  const Model model = Model::bind(Gguf::parse(image));
  bool told = false;
  LoadOptions options;
  options.progress = [&](std::size_t, std::size_t) { told = true; };
  EXPECT_EQ(FloatOps(1).load(model, options).dense, nullptr);
  EXPECT_FALSE(told);
}

TEST(EvaluateAgainst, CanBeStopped) {
  const auto image = image_of(DType::Q8_0);
  const Model model = Model::bind(Gguf::parse(image));
  Side cpu(model, make_cpu_ops(1), KvType::kF16, 16), reference(model, make_float_ops(1), KvType::kF32, 16);
  int asked = 0;
  const auto result =
      evaluate_against(cpu.machine(), reference.machine(), random_tokens(60), {}, {{}, [&] { return ++asked > 2; }});
  EXPECT_FALSE(result.has_value());
  EXPECT_EQ(asked, 3);
}

// ---- the nano model -------------------------------------------------------------------------------------------------

const std::string kQ4 = TANDEM_SOURCE_DIR "/models/flash-next-nano-q4.gguf";
const std::string kF16 = TANDEM_SOURCE_DIR "/../shared/nano/flash-next-nano-f16.gguf";
const std::string kEval = TANDEM_SOURCE_DIR "/tests/golden/eval/";

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The first window of the prose text. The outside figures were computed in float32 from the dequantised file, which is
// what the reference machine does: they are met to the six digits in which they are written.
void check_nano(const std::string& reference_path, const char* golden_set, double most_kl) {
  const Model model = Model::open(kQ4), reference = Model::open(reference_path);
  const auto all = Tokenizer::from_gguf(model.gguf()).encode(read_text(kEval + "prose.txt"), false);
  const std::span<const TokenId> tokens = std::span(all).first(1024);
  const auto golden = Json::parse(read_text(kEval + "results.json"));
  const auto model_ops = make_cpu_ops(0), reference_ops = make_float_ops(0);
  Pipeline pipeline(model, *model_ops, 512), reference_pipeline(reference, *reference_ops, 512);
  SequenceState state(model.shape, {1024, KvType::kF16}), reference_state(reference.shape, {1024, KvType::kF32});
  const auto result = evaluate_against({pipeline, state}, {reference_pipeline, reference_state}, tokens, {}, {});
  ASSERT_TRUE(result.has_value());
  const ReferenceSummary summary = summarize(result->positions);
  EXPECT_EQ(summary.scored, 1023U);
  EXPECT_NEAR(summary.reference_nll, golden[golden_set]["prose"]["window_nll"][0].get<double>(), 3e-6);
  EXPECT_NEAR(summary.nll, golden["q4"]["prose"]["window_nll"][0].get<double>(), 0.015);
  EXPECT_GT(summary.kl_mean, 1e-5);
  EXPECT_LT(summary.kl_mean, most_kl);
  EXPECT_GT(summary.kl_median, 0.0);
  EXPECT_LT(summary.kl_median, summary.kl_p99);
  EXPECT_LT(summary.kl_p99, summary.kl_max);
  EXPECT_GT(summary.top1_agreement, 0.85);
  EXPECT_LT(summary.top1_agreement, 1.0);
}

TEST(ReferenceEvalNano, IntegerActivationsAgainstFloat) {
  check_nano(kQ4, "q4", 5e-3);
}

TEST(ReferenceEvalNano, Q4AgainstTheF16File) {
  if (!std::filesystem::exists(kF16)) GTEST_SKIP() << "no " << kF16;
  check_nano(kF16, "f16", 5e-2);
}

// ---- the command ----------------------------------------------------------------------------------------------------

class ReferenceCommand : public ::testing::Test {
 protected:
  ReferenceCommand() {
    synthetic_model(options_of(DType::Q4_0)).write(q4_);
    synthetic_model(options_of(DType::F32)).write(f32_);
    std::ofstream(text_) << std::string("the quick brown fox jumps over the lazy dog; ") + std::string(100, 'x');
  }
  std::string path(const std::string& name) const { return (dir_ / name).string(); }

  // Standard output of `eval ARGUMENTS --context 200`.
  static std::string run(std::vector<std::string> arguments) {
    CLI::App app;
    const OpsFactory make_ops = [](const EngineOptions& options) { return make_cpu_ops(options.workers); };
    const OpsFactory make_reference = [](const EngineOptions& options) { return make_float_ops(options.workers); };
    std::function<int()> action;
    add_eval_command(app, make_ops, make_reference, action);
    arguments.insert(arguments.begin(), "eval");
    arguments.insert(arguments.end(), {"--context", "200"});
    std::reverse(arguments.begin(), arguments.end());
    app.parse(arguments);
    ::testing::internal::CaptureStdout();
    int code = -1;
    try {
      code = action();
    } catch (...) {
      ::testing::internal::GetCapturedStdout();
      throw;
    }
    EXPECT_EQ(code, 0);
    return ::testing::internal::GetCapturedStdout();
  }
  static void expect_refusal(const std::vector<std::string>& arguments, const std::string& message) {
    try {
      run(arguments);
      ADD_FAILURE() << "not refused: " << message;
    } catch (const InputError& error) {
      EXPECT_EQ(std::string(error.what()), message);
    }
  }

  TempDir dir_;
  std::string q4_ = path("q4.gguf"), f32_ = path("f32.gguf"), text_ = path("text.txt");
};

struct CsvTable {
  std::vector<double> nll, reference_nll, kl, equal;
};

// Checks the shape: every window's positions from 1 on, seven fields a line.
CsvTable read_csv(const std::string& path, const std::vector<std::size_t>& windows) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  EXPECT_EQ(line, "window,position,token,nll,reference_nll,kl,top1_equal");
  CsvTable table;
  for (std::size_t w = 0; w < windows.size(); ++w)
    for (std::size_t p = 1; p < windows[w]; ++p) {
      std::getline(file, line);
      EXPECT_EQ(std::count(line.begin(), line.end(), ','), 6) << line;
      double field[7] = {};
      std::istringstream in(line);
      for (double& value : field) {
        std::string text;
        std::getline(in, text, ',');
        value = std::stod(text);
      }
      EXPECT_EQ(field[0], static_cast<double>(w)) << line;
      EXPECT_EQ(field[1], static_cast<double>(p)) << line;
      table.nll.push_back(field[3]);
      table.reference_nll.push_back(field[4]);
      table.kl.push_back(field[5]);
      table.equal.push_back(field[6]);
    }
  EXPECT_FALSE(std::getline(file, line)) << line;
  return table;
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

TEST_F(ReferenceCommand, JsonAndCsvTellTheSame) {
  const std::string csv = path("out.csv");
  const Json json = Json::parse(
      run({q4_, "--text", text_, "--window", "60", "--reference-model", f32_, "--per-position", csv, "--json"}));
  const auto tokens = json["tokens"].get<std::size_t>();
  ASSERT_GT(tokens, 60U);
  std::vector<std::size_t> windows;
  for (std::size_t start = 0; start < tokens; start += 60)
    if (start == 0 || tokens - start >= 32) windows.push_back(std::min<std::size_t>(60, tokens - start));
  EXPECT_EQ(json["windows"].get<std::size_t>(), windows.size());
  CsvTable table = read_csv(csv, windows);
  EXPECT_FALSE(std::filesystem::exists(csv + ".tmp"));
  EXPECT_EQ(json["scored"].get<std::size_t>(), table.kl.size());
  EXPECT_NEAR(json["model"]["nll"].get<double>(), mean(table.nll), 1e-12);
  EXPECT_NEAR(json["reference"]["nll"].get<double>(), mean(table.reference_nll), 1e-12);
  EXPECT_NEAR(json["model"]["perplexity"].get<double>(), std::exp(mean(table.nll)), 1e-6);
  EXPECT_NEAR(json["reference"]["perplexity"].get<double>(), std::exp(mean(table.reference_nll)), 1e-6);
  EXPECT_NEAR(json["perplexity_ratio"].get<double>(), std::exp(mean(table.nll) - mean(table.reference_nll)), 1e-12);
  EXPECT_NEAR(json["top1_agreement"].get<double>(), mean(table.equal), 1e-12);
  std::sort(table.kl.begin(), table.kl.end());
  EXPECT_GT(table.kl.front(), 0.0);
  EXPECT_NEAR(json["kl"]["mean"].get<double>(), mean(table.kl), 1e-12);
  EXPECT_EQ(json["kl"]["max"].get<double>(), table.kl.back());
  EXPECT_EQ(json["kl"]["median"].get<double>(), quantile(table.kl, 0.5));
  EXPECT_EQ(json["kl"]["p99"].get<double>(), quantile(table.kl, 0.99));
  EXPECT_EQ(json["model"]["file"], q4_);
  EXPECT_EQ(json["reference"]["file"], f32_);
  EXPECT_NE(json["reference"]["machine"].get<std::string>().find("float32"), std::string::npos);
}

TEST_F(ReferenceCommand, TheReferenceRunsTheModelItselfUnlessTold) {
  const Json own = Json::parse(run({q4_, "--text", text_, "--reference", "--json"}));
  const Json other = Json::parse(run({q4_, "--text", text_, "--reference-model", f32_, "--json"}));
  EXPECT_EQ(own["reference"]["file"], q4_);
  EXPECT_EQ(own["model"], other["model"]);
  EXPECT_LT(own["kl"]["mean"].get<double>(), other["kl"]["mean"].get<double>());
  // f32 against itself, keys and values in f32 on both sides: float rounding is all that is left. With the model's own
  // in f16 it shows, so the reference did not follow it there.
  const Json same = Json::parse(run({f32_, "--text", text_, "--reference", "--kv", "f32", "--json"}));
  const Json half = Json::parse(run({f32_, "--text", text_, "--reference", "--kv", "f16", "--json"}));
  EXPECT_LT(same["kl"]["max"].get<double>(), 3e-11);
  EXPECT_GT(half["kl"]["max"].get<double>(), 10 * same["kl"]["max"].get<double>());
  EXPECT_NEAR(half["reference"]["nll"].get<double>(), same["reference"]["nll"].get<double>(), 1e-9);
}

TEST_F(ReferenceCommand, TextForPeopleAndTokensAsInput) {
  std::ofstream(path("ids.json")) << "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]";
  const std::string text = run({q4_, "--tokens", path("ids.json"), "--reference"});
  EXPECT_TRUE(text.starts_with("tokens 10, scored 9, windows of 10: 1\nmodel      nll ")) << text;
  for (const char* part : {"\nreference  nll ", "\nperplexity ratio ", ", top-1 agreement ",
                           "\nKL(reference || model): mean ", ", median ", ", p99 ", ", largest "})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
}

TEST_F(ReferenceCommand, RefusesFlagsThatDoNotGoTogether) {
  expect_refusal({q4_, "--text", text_, "--per-position", path("x.csv")},
                 "--per-position: expected --reference, --reference-model or --lossy with it, found none");
  expect_refusal({q4_, "--text", text_, "--reference", "--compare", "x"},
                 "eval: expected --reference or --compare, found both. Fix: two runs");
  expect_refusal({q4_, "--text", text_, "--reference", "--dump-logits", path("x.f32")},
                 "eval: expected --reference or --dump-logits, found both. Fix: two runs");
  expect_refusal({q4_, "--text", text_, "--reference-model", f32_, "--last", "3"},
                 "eval: expected --reference or --last, found both. Fix: two runs");
  EXPECT_FALSE(std::filesystem::exists(path("x.csv")));
}

TEST_F(ReferenceCommand, RefusesWhatCannotBeComparedOrWritten) {
  ModelShape shape = tiny_shape();
  shape.vocab += 32;
  synthetic_model(options_of(DType::Q8_0, shape)).write(path("wide.gguf"));
  expect_refusal({q4_, "--text", text_, "--reference-model", path("wide.gguf")},
                 fmt::format("--reference-model {}: expected the 320 tokens of {}, found 352. Fix: compare files that "
                             "were made from the same model",
                             path("wide.gguf"), q4_));
  shape = tiny_shape();
  shape.max_positions = 64;
  synthetic_model(options_of(DType::Q8_0, shape)).write(path("short.gguf"));
  EXPECT_THROW(run({q4_, "--text", text_, "--reference-model", path("short.gguf")}), InputError);
  EXPECT_THROW(run({q4_, "--text", text_, "--reference-model", path("none.gguf")}), InputError);
  std::ofstream(path("one.txt")) << "x";
  expect_refusal({q4_, "--text", path("one.txt"), "--reference"},
                 "eval --reference: expected at least two tokens to score one, found 1");
  const std::string nowhere = path("no/such/out.csv");
  expect_refusal({q4_, "--text", text_, "--reference", "--per-position", nowhere},
                 fmt::format("--per-position {}: cannot create the file: No such file or directory", nowhere));
}

// A refusal after the CSV file was opened leaves nothing behind, and an older result untouched.
TEST_F(ReferenceCommand, ARefusalLeavesNoFile) {
  std::ofstream(path("old.csv")) << "old";
  EXPECT_THROW(run({q4_, "--text", text_, "--reference-model", path("none.gguf"), "--per-position", path("old.csv")}),
               InputError);
  EXPECT_EQ(read_text(path("old.csv")), "old");
  EXPECT_FALSE(std::filesystem::exists(path("old.csv.tmp")));
}

TEST_F(ReferenceCommand, RefusesOtherTokens) {
  const auto image = image_of(DType::F32);
  const Gguf gguf = Gguf::parse(image);
  const auto words = gguf.strings("tokenizer.ggml.tokens").value();
  const auto numbers = gguf.integers("tokenizer.ggml.token_type").value();
  std::vector<std::string> tokens(words.begin(), words.end());
  std::vector<std::int32_t> types;
  for (const std::int64_t type : numbers) types.push_back(static_cast<std::int32_t>(type));
  ASSERT_EQ(tokens[260], "<tool_call>");

  const auto refuse = [&](const std::string& name, const std::string& found) {
    GgufBuilder builder = synthetic_model(options_of(DType::Q8_0));
    builder.add("tokenizer.ggml.tokens", tokens).add("tokenizer.ggml.token_type", types).write(path(name));
    expect_refusal(
        {q4_, "--text", text_, "--reference-model", path(name)},
        fmt::format("--reference-model {}: token 260: expected \"<tool_call>\" (special) as in {}, found {}. "
                    "Fix: compare files that were made from the same model",
                    path(name), q4_, found));
  };
  tokens[260] = "<tool_kall>";
  refuse("word.gguf", "\"<tool_kall>\" (special)");
  tokens[260] = "<tool_call>";
  types[260] = 1;
  refuse("type.gguf", "\"<tool_call>\"");
}

}  // namespace
}  // namespace tandem::testing
