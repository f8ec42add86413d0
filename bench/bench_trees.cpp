// What a tree of drafts could bring, without building one: the draft head is asked at every token of a text, as a chain
// and as a tree grown best-first, and what it says is held against the tokens that follow.
//
// A tree of n nodes costs a pass of n + 1 rows, as a chain of n drafts does. Grown best-first, it takes n times the
// node with the highest product of the head's probabilities on the way to it. A round brings one token more than the
// longest path of the text in the tree. Times of passes by width and of a step of the head are measured first; a tree
// pays one step of the head a node, as a chain does, and nothing for its siblings' experts or for attention over a
// tree: the gains are upper bounds.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iterator>

#include "bench/bench.h"
#include "bench/trees.h"
#include "cpu/cpu_ops.h"
#include "placement/check.h"
#include "runtime/evaluate.h"
#include "runtime/output.h"
#include "runtime/pipeline.h"
#include "runtime/tokenizer.h"

namespace tandem::bench {
namespace {

struct Options {
  std::string model, text;
  bool own = false, special = false;
  std::size_t workers = 1, tokens = 400, windows = 4, prompt = 64;
  std::vector<double> times;  // of passes of 1, 2, ... rows in milliseconds; empty: measured
};

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The head at one place: its window is the path that is being looked at.
class Head {
 public:
  Head(Pipeline& pipeline, SequenceState& state)
      : head_(pipeline, MtpNorm::kFull, MtpAttention::kSparse), state_(state) {}
  // Feeds the committed row; the choices for the token after `next`.
  const std::vector<Choice>& root(ConstRows wide, TokenId next) {
    const PassOutput out = head_.forward(state_, wide, {&next, 1}, PassMode::kCommit, LogitRows::kLast);
    wide_.assign(out.wide.data, out.wide.data + out.wide.cols);
    return choices_ = best_choices(out.logits.span(0));
  }
  // The choices after a path of tokens.
  std::vector<Choice> after(std::span<const TokenId> path) {
    std::vector<float> wide = wide_;
    PassOutput out;
    for (std::size_t i = 0; i < path.size(); ++i) {
      out = head_.forward(state_, ConstRows(wide.data(), 1, wide.size()), path.subspan(i, 1), PassMode::kWindow,
                          i + 1 == path.size() ? LogitRows::kLast : LogitRows::kNone);
      wide.assign(out.wide.data, out.wide.data + out.wide.cols);
    }
    std::vector<Choice> choices = best_choices(out.logits.span(0));
    state_.keep_drafts(0);
    return choices;
  }

 private:
  MtpHead head_;
  SequenceState& state_;
  std::vector<float> wide_;
  std::vector<Choice> choices_;
};

// The lower quartile: what other programs hold up says nothing.
double usual(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 4];
}

// Milliseconds of passes of 1 to kNodes + 1 rows; the last entry is a step of the head.
std::vector<double> measure_times(Pipeline& pipeline, std::span<const TokenId> text) {
  SequenceState state(pipeline.model().shape, StateOptions{512, KvType::kF16});
  pipeline.prefill(state, text.first(128), pipeline.max_rows(), LogitRows::kNone, {});
  std::vector<std::vector<double>> seconds(kNodes + 2);
  for (int repeat = 0; repeat < 25; ++repeat)
    for (std::size_t w = 1; w <= kNodes + 1; ++w) {
      const auto start = Clock::now();
      pipeline.forward(state, text.subspan(128, w), PassMode::kWindow, LogitRows::kAll);
      state.keep(0);
      if (repeat > 4) seconds[w - 1].push_back(1e3 * seconds_since(start));
    }
  MtpHead head(pipeline, MtpNorm::kFull, MtpAttention::kSparse);
  const std::vector<float> wide(static_cast<std::size_t>(pipeline.model().shape.wide()), 0.5F);
  std::vector<double> without;
  for (int repeat = 0; repeat < 40; ++repeat)
    for (const LogitRows logits : {LogitRows::kLast, LogitRows::kNone}) {
      const auto start = Clock::now();
      head.forward(state, ConstRows(wide.data(), 1, wide.size()), text.first(1), PassMode::kWindow, logits);
      state.keep_drafts(0);
      if (repeat > 4) (logits == LogitRows::kLast ? seconds.back() : without).push_back(1e3 * seconds_since(start));
    }
  write_stdout(fmt::format("  a step of the head: {:.3f} ms, {:.3f} without its mixer and output matrix\n",
                           usual(seconds.back()), usual(without)));
  std::vector<double> times;
  for (const auto& s : seconds) times.push_back(usual(s));
  return times;
}

std::vector<TokenId> read_text(const Options& options, const Model& model) {
  std::ifstream file(options.text, std::ios::binary);
  if (!file) fail_input("--text {}: expected a readable file, found none", options.text);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<TokenId> tokens = Tokenizer::from_gguf(model.gguf()).encode(text, options.special);
  if (tokens.size() < options.tokens || options.tokens < options.prompt + kChain + 2 || tokens.size() < 160)
    fail_input("--text {}: expected at least --tokens ({}) tokens, more than --prompt, found {}", options.text,
               options.tokens, tokens.size());
  return tokens;
}

// One window of the text: the trunk runs it token by token, and the head is asked after the prompt.
void walk(Pipeline& pipeline, std::vector<TokenId> text, const Options& options, Sums& sums) {
  const std::size_t reach = std::max(kChain, kDepths);
  if (options.own) {  // the model goes on by itself after the prompt
    SequenceState state(pipeline.model().shape, StateOptions{text.size(), KvType::kF16});
    for (std::size_t t = 0; t + 1 < text.size(); ++t) {
      const PassOutput out = pipeline.forward(state, std::span(text).subspan(t, 1), PassMode::kCommit, LogitRows::kAll);
      if (t + 1 >= options.prompt) text[t + 1] = static_cast<TokenId>(arg_max(out.logits.span(0)));
    }
  }
  SequenceState state(pipeline.model().shape, StateOptions{text.size() + kChain + 2, KvType::kF16});
  Head head(pipeline, state);
  for (std::size_t t = 0; t + 1 + reach < text.size(); ++t) {
    const PassOutput out = pipeline.forward(state, std::span(text).subspan(t, 1), PassMode::kCommit, LogitRows::kNone);
    const std::vector<float> wide(out.wide.data, out.wide.data + out.wide.cols);
    const std::vector<Choice> root = head.root(ConstRows(wide.data(), 1, wide.size()), text[t + 1]);
    if (t + 1 < options.prompt) continue;
    look([&](std::span<const TokenId> path) { return head.after(path); }, root, std::span(text).subspan(t + 2), sums);
  }
}

void print(const Sums& sums, const std::vector<double>& times) {
  const auto all = static_cast<double>(sums.places);
  write_stdout(fmt::format("{} places; the true token among the choices of the head, given the text so far:\n", all));
  write_stdout("  depth   1st     2nd if not 1st   3rd if neither   4th to 8th   none of them\n");
  for (std::size_t d = 0; d < kDepths; ++d) {
    const auto& r = sums.rank[d];
    double others = 0;
    for (std::size_t k = 3; k < kChoices; ++k) others += static_cast<double>(r[k]);
    const double first = static_cast<double>(r[0]), second = static_cast<double>(r[1]);
    write_stdout(fmt::format("  {:>5} {:>6.1f} %   {:>10.1f} %   {:>13.1f} %   {:>8.1f} %   {:>10.1f} %\n", d + 1,
                             100 * first / all, 100 * second / std::max(1.0, all - first),
                             100 * static_cast<double>(r[2]) / std::max(1.0, all - first - second), 100 * others / all,
                             100 * static_cast<double>(r[kChoices]) / all));
  }
  const double step = times.back();
  write_stdout(fmt::format(
      "  a step of the head takes {:.3f} ms\n  nodes  pass ms  tokens a round: chain    tree   more\n", step));
  for (std::size_t n = 0; n <= kNodes; ++n) {
    const double c = sums.chain[n] / all, t = sums.tree[n] / all, pass = times[n];
    write_stdout(fmt::format("  {:>5} {:>8.3f} {:>22.3f} {:>7.3f} {:>5.1f} %\n", n, pass, c, t, 100 * (t / c - 1)));
  }
  const auto say = [](std::string_view what, const BestRates& best) {
    write_stdout(fmt::format("  {}: best chain {} drafts, best tree {} nodes, at most {:+.1f} %\n", what, best.chain.n,
                             best.tree.n, 100 * best.gain()));
  };
  say("with these times", best_rates(sums, times, step));
  say("if drafting took no time", best_rates(sums, times, 0));
  // Made-up machines: a row more costs this share of a pass of one row, a step of the head this other one.
  write_stdout(
      "  gain of the best tree over the best chain, by the cost of a row and of a step of the head:\n    row \\ step");
  const std::array<double, 3> steps{0.0, 0.03, 0.1};
  for (const double s : steps) write_stdout(fmt::format(" {:>8.0f} %", 100 * s));
  for (const double row : {0.02, 0.05, 0.1, 0.2, 0.3, 0.5}) {
    write_stdout(fmt::format("\n    {:>8.0f} %", 100 * row));
    std::vector<double> passes;
    for (std::size_t n = 0; n <= kNodes; ++n) passes.push_back(1 + static_cast<double>(n) * row);
    for (const double s : steps) write_stdout(fmt::format(" {:>+8.1f} %", 100 * best_rates(sums, passes, s).gain()));
  }
  write_stdout("\n");
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("What verify trees could bring", "bench_trees");
  app.add_option("MODEL", options.model, "GGUF file with a draft head")->required();
  app.add_option("--text", options.text, "text to walk")->required();
  app.add_flag("--own", options.own, "the model's greedy continuation of every window's prompt instead of the text");
  app.add_flag("--parse-special", options.special, "recognise special tokens in the text");
  app.add_option("--windows", options.windows, "windows, spread over the text")->check(CLI::PositiveNumber);
  app.add_option("--tokens", options.tokens, "tokens of a window")->capture_default_str();
  app.add_option("--prompt", options.prompt, "of them read before")->capture_default_str();
  app.add_option("--workers", options.workers, "CPU threads")->capture_default_str();
  app.add_option("--times", options.times,
                 "milliseconds of passes of 1 to 16 rows and of a step of the head, of another machine or model")
      ->delimiter(',');
  app.footer("Example:\n  bench_trees model.gguf --text book.txt --windows 8");
  CLI11_PARSE(app, argc, argv);
  if (!options.times.empty() && options.times.size() != kNodes + 2)
    fail_input("--times: expected {} values, found {}", kNodes + 2, options.times.size());
  const Model model = Model::open(options.model);
  if (!model.mtp) fail_input("{}: expected a model with a draft head, found none", options.model);
  CpuOps ops({.workers = static_cast<int>(options.workers)});
  Pipeline pipeline(model, ops, 128);
  const std::vector<TokenId> text = read_text(options, model);
  const std::vector<double> times = options.times.empty() ? measure_times(pipeline, text) : options.times;
  Sums sums;
  const std::size_t stride = (text.size() - options.tokens) / std::max<std::size_t>(1, options.windows - 1);
  for (std::size_t i = 0; i < options.windows; ++i) {
    const auto first = text.begin() + static_cast<std::ptrdiff_t>(std::min(i * stride, text.size() - options.tokens));
    walk(pipeline, {first, first + static_cast<std::ptrdiff_t>(options.tokens)}, options, sums);
  }
  print(sums, times);
  return 0;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  return tandem::bench::guarded_main("bench_trees", [&] { return tandem::bench::run(argc, argv); });
}
