#include "runtime/cmd_eval.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "placement/files.h"
#include "runtime/evaluate.h"
#include "runtime/interrupt.h"
#include "runtime/lossy_eval.h"
#include "runtime/output.h"
#include "runtime/progress.h"
#include "runtime/reference_eval.h"
#include "runtime/session_options.h"

namespace tandem {
namespace {

struct EvalOptions {
  EngineOptions engine;
  SamplingChoices sampling;
  bool lossy = false;  // compare the lossy switches with exact
  std::string text, tokens, dump, compare;
  EvaluateOptions evaluate;
  std::size_t last = 0;  // rows dumped or compared: the last N positions of every window; 0 = all
  bool parse_special = false, json = false;
  bool reference = false;                     // compare with the float32 machine
  std::string reference_model, per_position;  // ... running this file instead of the model; a CSV file of positions
};

std::string read_file(const std::string& flag, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file || std::filesystem::is_directory(path))
    fail_input("{} {}: expected a readable file, found none", flag, path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// IDS.json: an array of token ids, or an object with such an array under "tokens".
std::vector<TokenId> read_tokens(const std::string& path, std::size_t vocabulary) {
  nlohmann::json json = nlohmann::json::parse(read_file("--tokens", path), nullptr, false);
  if (json.is_object() && json.contains("tokens")) json = json["tokens"];
  if (!json.is_array())
    fail_input("--tokens {}: expected a JSON array of token ids, or an object with one under \"tokens\"", path);
  std::vector<TokenId> ids;
  for (const auto& id : json) {
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0 ||
        id.get<std::int64_t>() >= static_cast<std::int64_t>(vocabulary))
      fail_input("--tokens {}: entry {}: expected a token id from 0 to {}, found {}", path, ids.size(), vocabulary - 1,
                 id.dump());
    ids.push_back(id.get<TokenId>());
  }
  return ids;
}

// A file that a flag asks for. Opened before the work begins, so that a path that cannot be written is known at once.
AtomicFile output_file(const std::string& flag, const std::string& path) {
  return AtomicFile(path, flag + " " + path);
}

// Rows of an earlier --dump-logits, mapped.
class ReferenceLogits {
 public:
  ReferenceLogits(const std::string& path, std::size_t width, std::size_t rows) : width_(width) {
    const int fd = ::open(path.c_str(), O_RDONLY);
    if (fd < 0) fail_input("--compare {}: cannot open: {}", path, std::strerror(errno));
    bytes_ = std::filesystem::file_size(path);
    if (bytes_ != rows * width * sizeof(float)) {
      ::close(fd);
      fail_input(
          "--compare {}: expected {} rows of {} float32 values ({} bytes), found {} bytes. Fix: dump it with the "
          "same text, --window and --last",
          path, rows, width, rows * width * sizeof(float), bytes_);
    }
    map_ = mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, fd, 0);
    ::close(fd);
    if (map_ == MAP_FAILED) fail_input("--compare {}: cannot map: {}", path, std::strerror(errno));
  }
  ~ReferenceLogits() { munmap(map_, bytes_); }
  ReferenceLogits(const ReferenceLogits&) = delete;
  ReferenceLogits& operator=(const ReferenceLogits&) = delete;
  std::span<const float> row(std::size_t index) const {
    return {static_cast<const float*>(map_) + index * width_, width_};
  }

 private:
  std::size_t width_, bytes_ = 0;
  void* map_ = nullptr;
};

// Which rows are dumped and compared: the last `last` positions of every window (0: all of them).
struct RowSelection {
  std::size_t last, window, tokens;
  std::size_t window_size(std::size_t index) const { return std::min(window, tokens - index * window); }
  bool contains(std::size_t index, std::size_t position) const {
    return last == 0 || position + last >= window_size(index);
  }
  std::size_t count(std::size_t last_window) const {
    std::size_t rows = 0;
    for (std::size_t i = 0; i * window < tokens; ++i)
      if (i == 0 || window_size(i) >= last_window) rows += last == 0 ? window_size(i) : std::min(last, window_size(i));
    return rows;
  }
};

void print_json(const EvaluateResult& result) {
  nlohmann::ordered_json json{{"tokens", result.tokens}, {"scored", result.scored},
                              {"nll", result.nll},       {"perplexity", std::exp(result.nll)},
                              {"top1", result.top1},     {"window_nll", result.window_nll}};
  if (result.comparison)
    json["comparison"] = {{"rows", result.comparison->rows},
                          {"kl", result.comparison->kl},
                          {"max_kl", result.comparison->max_kl},
                          {"top1_agreement", result.comparison->top1_agreement},
                          {"max_logit_difference", result.comparison->max_difference}};
  write_stdout(json.dump(1) + "\n");
}

void print_text(const EvaluateResult& result, std::size_t window) {
  write_stdout(
      fmt::format("tokens {}, scored {}, windows of {}: {}\n", result.tokens, result.scored, window, result.windows));
  if (result.scored > 0)
    write_stdout(
        fmt::format("nll {:.6f}  perplexity {:.4f}  top-1 {:.4f}\n", result.nll, std::exp(result.nll), result.top1));
  if (result.comparison)
    write_stdout(fmt::format(
        "against the reference, {} rows: KL {:.3e} (largest {:.3e}), top-1 agreement {:.4f}, largest logit difference "
        "{:.4f}\n",
        result.comparison->rows, result.comparison->kl, result.comparison->max_kl, result.comparison->top1_agreement,
        result.comparison->max_difference));
}

void print_summary_json(const ReferenceComparison& comparison, const ReferenceSummary& summary, Engine& model,
                        Engine& reference, const EvalOptions& options) {
  const auto side = [](const std::filesystem::path& path, const Engine& engine, double nll, double perplexity,
                       double top1) {
    return nlohmann::ordered_json{{"file", path.string()},
                                  {"machine", engine.ops().describe()},
                                  {"nll", nll},
                                  {"perplexity", perplexity},
                                  {"top1", top1}};
  };
  const std::filesystem::path other =
      options.reference_model.empty() ? options.engine.model : std::filesystem::path(options.reference_model);
  const nlohmann::ordered_json json{
      {"tokens", comparison.tokens},
      {"scored", summary.scored},
      {"windows", comparison.windows},
      {"model", side(options.engine.model, model, summary.nll, summary.perplexity(), summary.top1)},
      {"reference",
       side(other, reference, summary.reference_nll, summary.reference_perplexity(), summary.reference_top1)},
      {"perplexity_ratio", summary.perplexity_ratio()},
      {"kl",
       {{"mean", summary.kl_mean}, {"median", summary.kl_median}, {"p99", summary.kl_p99}, {"max", summary.kl_max}}},
      {"top1_agreement", summary.top1_agreement}};
  write_stdout(json.dump(1) + "\n");
}

void print_summary_text(const ReferenceComparison& comparison, const ReferenceSummary& summary, Engine& model,
                        Engine& reference, std::size_t window) {
  const auto side = [](std::string_view name, const Engine& engine, double nll, double perplexity, double top1) {
    return fmt::format("{:<10} nll {:.6f}  perplexity {:.4f}  top-1 {:.4f}  ({})\n", name, nll, perplexity, top1,
                       engine.ops().describe());
  };
  std::string text = fmt::format("tokens {}, scored {}, windows of {}: {}\n", comparison.tokens, summary.scored, window,
                                 comparison.windows);
  text += side("model", model, summary.nll, summary.perplexity(), summary.top1);
  text += side("reference", reference, summary.reference_nll, summary.reference_perplexity(), summary.reference_top1);
  text += fmt::format("perplexity ratio {:.6f}, top-1 agreement {:.4f}\n", summary.perplexity_ratio(),
                      summary.top1_agreement);
  text += fmt::format("KL(reference || model): mean {:.3e}, median {:.3e}, p99 {:.3e}, largest {:.3e}\n",
                      summary.kl_mean, summary.kl_median, summary.kl_p99, summary.kl_max);
  write_stdout(text);
}

void show_warnings(const Engine& engine) {
  for (const std::string& warning : engine.warnings()) write_stderr("tandem: warning: " + warning + "\n");
}

void require_window(const Engine& engine, std::string_view where, std::size_t window) {
  if (window > engine.context())
    fail_input("{}: a window of {} tokens does not fit the context of {}. Fix: --context {} or a smaller --window",
               where, window, engine.context(), window);
}

// `eval --reference`: the model on its machine and the reference on the float32 one, window by window.
int eval_reference(const EvalOptions& options, Engine& engine, std::span<const TokenId> tokens,
                   const OpsFactory& make_reference_ops) {
  if (tokens.size() < 2)
    fail_input("eval --reference: expected at least two tokens to score one, found {}", tokens.size());
  EngineOptions reference_options = options.engine;
  reference_options.use_mtp = false;
  reference_options.mtp.clear();
  reference_options.kv = KvType::kF32;
  reference_options.plan = false;
  reference_options.placement = {};
  reference_options.lossy = {};
  reference_options.slots_file.clear();
  reference_options.timeline.clear();
  if (!options.reference_model.empty()) reference_options.model = options.reference_model;
  std::optional<AtomicFile> csv;
  if (!options.per_position.empty()) csv.emplace(output_file("--per-position", options.per_position));
  Engine reference(reference_options, make_reference_ops);
  if (!options.reference_model.empty()) {
    require_same_vocabulary(engine.tokenizer(), options.engine.model.string(), reference.tokenizer(),
                            "--reference-model " + options.reference_model);
    show_warnings(reference);
    require_window(reference, "--reference-model " + options.reference_model,
                   std::min(options.evaluate.window, tokens.size()));
  }

  SequenceState state = engine.new_state(), reference_state = reference.new_state();
  Progress progress("evaluating twice", "tokens");
  const auto comparison =
      evaluate_against({engine.pipeline(), state}, {reference.pipeline(), reference_state}, tokens, options.evaluate,
                       {[&](std::size_t done, std::size_t total) { progress.update(done, total); }, interrupted});
  progress.clear();
  if (!comparison) return 130;
  if (csv) {
    csv->write(per_position_csv(comparison->positions));
    csv->finish();
  }
  const ReferenceSummary summary = summarize(comparison->positions);
  if (options.json)
    print_summary_json(*comparison, summary, engine, reference, options);
  else
    print_summary_text(*comparison, summary, engine, reference, options.evaluate.window);
  engine.close();
  return 0;
}

// `eval --lossy`: the text exact and with the switches on, in turns.
int eval_lossy(const EvalOptions& options, Engine& engine, std::span<const TokenId> tokens) {
  if (tokens.size() < 2) fail_input("eval --lossy: expected at least two tokens to score one, found {}", tokens.size());
  if (!engine.lossy().any())
    fail_input(
        "eval --lossy: expected a lossy switch that is on, found none. Fix: --lossy-biased-acceptance on, "
        "--lossy-tail-route-skip W, or a policy with `lossy`");
  const DraftSettings drafting = engine.drafting();
  const LossyEvalOptions lossy{options.evaluate, engine.lossy(),
                               resolve_sampling(options.sampling, engine.model().sampling_plain, 0), drafting.norm,
                               drafting.attention};
  std::optional<AtomicFile> csv;
  if (!options.per_position.empty()) csv.emplace(output_file("--per-position", options.per_position));
  SequenceState exact = engine.new_state(), state = engine.new_state();
  Progress progress("evaluating twice", "tokens");
  const auto result =
      evaluate_lossy(engine.pipeline(), exact, state, tokens, lossy,
                     {[&](std::size_t done, std::size_t total) { progress.update(done, total); }, interrupted});
  progress.clear();
  if (!result) return 130;
  if (csv) {
    csv->write(lossy_csv(*result));
    csv->finish();
  }
  write_stdout(options.json ? lossy_certificate_json(*result, lossy) : lossy_certificate(*result, lossy));
  engine.close();
  return 0;
}

void check_flags(const EvalOptions& options) {
  if (options.text.empty() == options.tokens.empty())
    fail_input("eval: expected one of --text FILE and --tokens IDS.json");
  if (options.evaluate.window < 2)
    fail_input("--window: expected at least 2 tokens, found {}", options.evaluate.window);
  if (options.reference && options.lossy)
    fail_input("eval: expected --reference or --lossy, found both. Fix: two runs");
  if (options.reference || options.lossy) {
    const char* other = !options.compare.empty() ? "--compare" : !options.dump.empty() ? "--dump-logits" : "--last";
    if (!options.compare.empty() || !options.dump.empty() || options.last != 0)
      fail_input("eval: expected {} or {}, found both. Fix: two runs", options.lossy ? "--lossy" : "--reference",
                 other);
  } else if (!options.per_position.empty()) {
    fail_input("--per-position: expected --reference, --reference-model or --lossy with it, found none");
  }
}

int eval(EvalOptions options, const OpsFactory& make_ops, const OpsFactory& make_reference_ops) {
  options.reference = options.reference || !options.reference_model.empty();
  check_flags(options);
  Engine engine(options.engine, make_ops);
  show_warnings(engine);
  std::vector<TokenId> tokens;
  if (!options.tokens.empty()) {
    tokens = read_tokens(options.tokens, static_cast<std::size_t>(engine.model().shape.vocab));
    options.evaluate.window = std::max<std::size_t>(2, tokens.size());
  } else {
    tokens = engine.tokenizer().encode(read_file("--text", options.text), options.parse_special);
  }
  if (tokens.empty()) fail_input("eval: expected at least one token, found none");
  require_window(engine, "eval", std::min(options.evaluate.window, tokens.size()));
  options.evaluate.chunk = engine.prefill_chunk();
  catch_interrupts(InterruptMode::kOnce);
  if (options.lossy) return eval_lossy(options, engine, tokens);
  if (options.reference) return eval_reference(options, engine, tokens, make_reference_ops);

  const auto width = static_cast<std::size_t>(engine.model().shape.vocab);
  const RowSelection selection{options.last, options.evaluate.window, tokens.size()};
  std::optional<AtomicFile> dump;
  std::optional<ReferenceLogits> reference;
  if (!options.dump.empty()) dump.emplace(output_file("--dump-logits", options.dump));
  if (!options.compare.empty())
    reference.emplace(options.compare, width, selection.count(options.evaluate.last_window));

  std::size_t next_reference = 0;
  Progress progress("evaluating", "tokens");
  EvaluateHooks hooks;
  hooks.on_row = [&](std::size_t window, std::size_t position, std::span<const float> row) {
    if (dump && selection.contains(window, position))
      dump->write({reinterpret_cast<const char*>(row.data()), row.size_bytes()});
  };
  if (reference)
    hooks.reference = [&](std::size_t window, std::size_t position) {
      return selection.contains(window, position) ? reference->row(next_reference++) : std::span<const float>{};
    };
  hooks.progress = [&](std::size_t done, std::size_t total) { progress.update(done, total); };
  hooks.cancelled = interrupted;
  SequenceState state = engine.new_state();
  const auto result = evaluate(engine.pipeline(), state, tokens, options.evaluate, hooks);
  progress.clear();
  if (!result) return 130;
  if (dump) dump->finish();
  if (options.json)
    print_json(*result);
  else
    print_text(*result, options.evaluate.window);
  engine.close();
  return 0;
}

}  // namespace

void add_eval_command(CLI::App& app, const OpsFactory& make_ops, const OpsFactory& make_reference_ops,
                      std::function<int()>& action) {
  CLI::App* command = app.add_subcommand("eval", "Perplexity, top-1 rate and logits of a text");
  command->footer(
      "Examples:\n"
      "  tandem eval model.gguf --text book.txt\n"
      "  tandem eval model.gguf --tokens ids.json --last 16 --dump-logits out.f32\n"
      "  tandem eval other.gguf --text book.txt --compare out.f32 --json\n"
      "  tandem eval model.gguf --text book.txt --reference --per-position out.csv\n"
      "  tandem eval q4.gguf --text book.txt --reference-model f16.gguf\n"
      "  tandem eval model.gguf --text book.txt --slots 2000 --adapt off --lossy --lossy-tail-route-skip 0.05\n"
      "Logits are float32, little-endian, one row of the vocabulary per position, positions in order.\n"
      "The reference multiplies with OpenBLAS and keeps no order of summation: between machines, --prefill-chunk and\n"
      "--workers its figures agree to float32 rounding, not to the bit. It runs on the CPU, with keys and values in "
      "f32.");
  const auto options = std::make_shared<EvalOptions>();
  add_engine_flags(*command, options->engine);
  command->add_option("--text", options->text, "text to score, cut into windows that each start from nothing")
      ->type_name("FILE");
  command->add_option("--tokens", options->tokens, "token ids to run as one window")->type_name("IDS.json");
  command->add_flag("--parse-special", options->parse_special, "recognise special tokens in the text (chat logs)");
  command->add_option("--window", options->evaluate.window, "tokens of a window")
      ->capture_default_str()
      ->type_name("N");
  command->add_option("--last", options->last, "dump or compare only the last N positions of every window")
      ->type_name("N");
  command->add_option("--dump-logits", options->dump, "write the logits rows")->type_name("OUT.f32");
  command->add_option("--compare", options->compare, "compare with rows dumped before: KL, top-1 agreement")
      ->type_name("REF.f32");
  command->add_flag("--reference", options->reference,
                    "run the text in unquantised float32 as well: KL, top-1 agreement, perplexity ratio");
  command
      ->add_option("--reference-model", options->reference_model,
                   "the same, with another file of the same vocabulary in float32 as the reference")
      ->type_name("FILE");
  command
      ->add_option("--per-position", options->per_position,
                   "write one CSV line per scored token: nll of both, KL, whether the most likely tokens are equal")
      ->type_name("FILE.csv");
  command->add_flag("--lossy", options->lossy,
                    "run the text exact and with the lossy switches: total variation, KL, change of the top token");
  add_lossy_flags(*command, options->engine.lossy);
  add_sampling_flags(*command, options->sampling);
  command->add_flag("--json", options->json, "machine-readable result");
  command->callback([options, &make_ops, &make_reference_ops, &action] {
    action = [options, &make_ops, &make_reference_ops] { return eval(*options, make_ops, make_reference_ops); };
  });
}

}  // namespace tandem
