#include "runtime/cmd_bench.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>

#include "placement/check.h"
#include "placement/files.h"
#include "runtime/draft_report.h"
#include "runtime/drafting.h"
#include "runtime/expert_store.h"
#include "runtime/generate.h"
#include "runtime/interrupt.h"
#include "runtime/output.h"
#include "runtime/progress.h"
#include "runtime/session_options.h"
#include "runtime/stated_head.h"

namespace tandem {
namespace {

struct BenchOptions {
  EngineOptions engine;
  SamplingChoices sampling;
  std::string text;
  std::vector<std::string> drafts{"auto"};
  bool forced = true, free = true;
  std::string rounds;
  std::optional<double> acceptance;  // of drafts of the head, stated instead of met
  std::size_t prompt_tokens = 128, tokens = 128, segments = 4, repeats = 3;
};

// A drafter whose rounds are written down.
class LoggedDrafter : public Drafter {
 public:
  // `place`: the fields of a line before the round's own; repeat and segment change.
  LoggedDrafter(Drafter& inner, std::string& lines, const std::string& place)
      : inner_(inner), lines_(lines), place_(place) {}
  void start(std::span<const TokenId> prefix, std::size_t answer_start, const SamplerSettings& sampling,
             std::span<const TokenId> stop_ids) override {
    round_ = 0;
    inner_.start(prefix, answer_start, sampling, stop_ids);
  }
  std::span<const Draft> propose(std::vector<TokenId>& prefix, std::size_t most) override {
    return inner_.propose(prefix, most);
  }
  void settle(const DraftRound& round) override {
    lines_ += fmt::format("{},{},{},{},{:.4f},{:.4f},{:.0f}\n", place_, round_++, round.rows, round.truth.size(),
                          1e3 * round.pass_seconds, 1e3 * round.round_seconds, round.misses);
    inner_.settle(round);
  }
  static constexpr std::string_view kHeader = "text,drafts,repeat,segment,round,rows,tokens,pass_ms,round_ms,misses\n";

 private:
  Drafter& inner_;
  std::string& lines_;
  const std::string& place_;
  std::size_t round_ = 0;
};

// One way of drafting, and what it did.
struct Configuration {
  std::string name;
  DraftSettings settings;
  SequenceState state;
  SequenceDrafter drafter;
  // With a stated acceptance: the head of `drafter` with other guesses, and a scheduler above it.
  std::optional<StatedHead> stated;
  std::optional<Speculator> stated_drafter;
  std::string place, lines;  // with --rounds
  std::optional<LoggedDrafter> logged;
  PipelineDecoder decoder;
  std::vector<double> rates;                  // tokens a second, one a repeat
  std::vector<std::vector<double>> segments;  // seconds of each segment, one a repeat
  DraftStats stats;
  double seconds = 0, crew_wait = 0;
  std::uint64_t misses = 0;

  Configuration(Engine& engine, std::string name_, const DraftSettings& settings_, std::optional<double> acceptance)
      : name(std::move(name_)),
        settings(settings_),
        state(engine.new_state()),
        drafter(engine.pipeline(), state, settings),
        decoder(engine.pipeline(), state, engine.prefill_chunk(), nullptr, drafter.head()) {
    if (!acceptance || drafter.head() == nullptr) return;
    stated.emplace(*drafter.head(), *acceptance, 1);
    stated_drafter.emplace(settings, &*stated);
  }
  Drafter* plain() { return stated_drafter ? &*stated_drafter : drafter.drafter(); }
  Drafter* rounds() { return logged ? &*logged : plain(); }
  const Speculator* speculator() const { return stated_drafter ? &*stated_drafter : drafter.speculator(); }
};

DraftSettings parse_drafts(const std::string& word, DraftSettings settings) {
  settings.depth.reset();
  if (word == "auto") return settings;
  if (word == "off") {
    settings.depth = 0;
    settings.lookup = false;
    return settings;
  }
  if (word.size() != 1 || word[0] < '0' || word[0] > '8')
    fail_input("--drafts: expected auto, off or 0 to 8, several separated by commas, found \"{}\"", word);
  settings.depth = word[0] - '0';
  return settings;
}

std::vector<TokenId> read_text(const BenchOptions& options, const Tokenizer& tokenizer) {
  std::ifstream file(options.text, std::ios::binary);
  if (!file) fail_input("--text {}: expected a readable file, found none", options.text);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::vector<TokenId> tokens = tokenizer.encode(text, false);
  const std::size_t segment = options.prompt_tokens + options.tokens;
  if (tokens.size() < segment)
    fail_input(
        "--text {}: expected at least {} tokens, found {}. Fix: a longer text, or fewer --prompt-tokens and "
        "--tokens",
        options.text, segment, tokens.size());
  return tokens;
}

// Reads the prompt of a segment and generates; returns the seconds of the rounds, or a negative number when stopped.
double run_segment(const BenchOptions& options, Engine& engine, Configuration& way, std::span<const TokenId> segment,
                   bool forced) {
  way.state.reset();
  Sampler sampler(resolve_sampling(options.sampling, engine.model().sampling_plain, 0));
  GenerateOptions limits;
  limits.max_tokens = options.tokens;
  limits.answer_start = options.prompt_tokens;
  limits.drafter = way.rounds();
  if (way.stated) way.stated->set_text(segment);
  limits.biased_acceptance = engine.lossy().biased_acceptance;
  if (forced) limits.forced = segment.subspan(options.prompt_tokens);
  GenerateHooks hooks;
  hooks.token_bytes = [&](TokenId id) { return engine.tokenizer().bytes(id); };
  hooks.cancelled = interrupted;
  const ExpertStats before = engine.experts() != nullptr ? engine.experts()->stats() : ExpertStats{};
  const GenerateResult result = generate(way.decoder, sampler, segment.first(options.prompt_tokens), limits, hooks);
  if (result.reason == EndReason::kCancelled) return -1;
  if (engine.experts() != nullptr) {
    const ExpertStats met = engine.experts()->stats() - before;
    way.misses += met.decode.misses;
    way.crew_wait += met.decode.crew_wait_seconds;
  }
  way.stats += result.drafts;
  return result.decode_seconds;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n == 0 ? 0.0 : n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

// Every configuration walks a segment before the next one comes, so that what the machine does meanwhile meets all. The
// first repeat is not counted: caches get warm, and automatic depths learn. False when stopped.
bool run_mode(const BenchOptions& options, Engine& engine, const std::vector<TokenId>& tokens, bool forced,
              std::vector<std::unique_ptr<Configuration>>& ways) {
  const std::size_t segment = options.prompt_tokens + options.tokens;
  const std::size_t stride = (tokens.size() - segment) / std::max<std::size_t>(1, options.segments - 1);
  Progress progress(forced ? "forced text" : "free text", "segments");
  for (auto& way : ways) way->segments.resize(options.segments);
  for (std::size_t repeat = 0; repeat <= options.repeats; ++repeat) {
    std::vector<double> seconds(ways.size()), count(ways.size());
    if (repeat == 1) {
      for (auto& way : ways) {
        way->stats = {};
        way->crew_wait = 0;
        way->misses = 0;
      }
    }
    for (std::size_t s = 0; s < options.segments; ++s)
      for (std::size_t i = 0; i < ways.size(); ++i) {
        // Another one begins each time.
        const std::size_t w = (i + s + repeat) % ways.size();
        const std::uint64_t before = ways[w]->stats.tokens;
        ways[w]->place = fmt::format("{},{},{},{}", forced ? "forced" : "free", ways[w]->name, repeat, s);
        const double spent =
            run_segment(options, engine, *ways[w], std::span(tokens).subspan(s * stride, segment), forced);
        if (spent < 0) return false;
        seconds[w] += spent;
        count[w] += static_cast<double>(ways[w]->stats.tokens - before);
        if (repeat > 0) ways[w]->segments[s].push_back(spent);
        progress.update((repeat * options.segments + s) * ways.size() + i + 1,
                        (options.repeats + 1) * options.segments * ways.size());
      }
    for (std::size_t w = 0; w < ways.size() && repeat > 0; ++w) {
      ways[w]->seconds += seconds[w];
      ways[w]->rates.push_back(count[w] / seconds[w]);
    }
  }
  return true;
}

void print_table(const std::string& title, const std::vector<std::unique_ptr<Configuration>>& ways) {
  write_stdout(fmt::format("{}\n  {:<7}{:>8}{:>16}{:>9}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}  {}\n", title, "drafts", "tok/s",
                           "(low-high)", "tok/rnd", "draft", "pass", "(wait)", "sample", "round", "misses",
                           "accepted by place"));
  for (const auto& way : ways) {
    const double rounds = static_cast<double>(std::max<std::uint64_t>(1, way->stats.rounds));
    const auto ms = [&](double seconds) { return 1e3 * seconds / rounds; };
    double usual = 0;  // seconds of all segments, each at its median
    for (const std::vector<double>& segment : way->segments) usual += median(segment);
    const double tokens = static_cast<double>(way->stats.tokens) / static_cast<double>(way->rates.size());
    const auto [low, high] = std::minmax_element(way->rates.begin(), way->rates.end());
    write_stdout(fmt::format("  {:<7}{:>8.1f}{:>16}{:>9.2f}{:>8.2f}{:>8.2f}{:>8.2f}{:>8.2f}{:>8.2f}{:>8.1f}  {}\n",
                             way->name, tokens / usual, fmt::format("({:.1f}-{:.1f})", *low, *high),
                             way->stats.tokens_per_round(), ms(way->stats.draft_seconds), ms(way->stats.pass_seconds),
                             ms(way->crew_wait), ms(way->stats.sample_seconds), ms(way->seconds),
                             static_cast<double>(way->misses) / rounds, acceptance_by_place(way->stats)));
  }
  for (const auto& way : ways) {
    const Speculator* const auto_drafts = way->settings.depth ? nullptr : way->speculator();
    if (auto_drafts == nullptr || !way->settings.head || !auto_drafts->clock().known()) continue;
    const Speculator::Beliefs b = auto_drafts->beliefs();
    write_stdout(fmt::format(
        "  {} goes by passes of {:.2f} ms without drafts (timed {} times) and {:.2f} ms with one ({}), {:.2f} "
        "ms for a draft, right with a chance of {:.0f} %: worth {:+.2f} tokens a round\n",
        way->name, 1e3 * b.plain, b.plain_count, 1e3 * b.drafted, b.drafted_count, 1e3 * b.head, 100 * b.chance,
        b.gain));
  }
}

int bench(const BenchOptions& options, const OpsFactory& make_ops) {
  for (const std::string& word : options.drafts) parse_drafts(word, {});
  if (!options.rounds.empty()) AtomicFile probe(options.rounds);  // better refused before the weights are loaded
  Engine engine(options.engine, make_ops);
  for (const std::string& warning : engine.warnings()) write_stderr("tandem: warning: " + warning + "\n");
  if (options.acceptance && (options.free || !engine.model().mtp))
    fail_input("--acceptance: expected --mode forced and a model with a draft head, found {}",
               options.free ? "free text" : "no head");
  const std::vector<TokenId> tokens = read_text(options, engine.tokenizer());
  if (options.prompt_tokens + options.tokens > engine.context())
    fail_input("bench: expected --prompt-tokens and --tokens within the context of {}, found {} and {}",
               engine.context(), options.prompt_tokens, options.tokens);
  catch_interrupts(InterruptMode::kOnce);
  std::string lines(LoggedDrafter::kHeader);
  write_stdout(fmt::format("{}\n{}, {} tokens; {} segments of {} + {} tokens, {} repeats; times in ms a round\n",
                           engine.ops().describe(), options.text, tokens.size(), options.segments,
                           options.prompt_tokens, options.tokens, options.repeats));
  if (const std::string vocabulary = describe(engine.draft_vocabulary()); !vocabulary.empty())
    write_stdout(fmt::format("the draft head chooses among {}\n", vocabulary));
  for (const bool forced : {true, false}) {
    if (!(forced ? options.forced : options.free)) continue;
    std::vector<std::unique_ptr<Configuration>> ways;
    for (const std::string& word : options.drafts)
      ways.push_back(
          std::make_unique<Configuration>(engine, word, parse_drafts(word, engine.drafting()), options.acceptance));
    for (auto& way : ways)
      if (!options.rounds.empty() && way->plain() != nullptr)
        way->logged.emplace(*way->plain(), way->lines, way->place);
    const bool done = run_mode(options, engine, tokens, forced, ways);
    for (const auto& way : ways) lines += way->lines;
    if (!options.rounds.empty()) write_file(options.rounds, lines);  // what there is, when stopped
    if (!done) {
      engine.close();
      return 130;
    }
    if (const std::string note = engine.card_memory_note(static_cast<std::int64_t>(ways.size())); !note.empty())
      write_stdout(note + "\n");
    if (const std::uint64_t compared = engine.ops().experts_compared(); compared > 0)
      write_stdout(fmt::format("experts computed on both sides: {}, all equal\n", compared));
    print_table(forced ? "forced text (every configuration walks the file)" : "free text (the model's own)", ways);
  }
  engine.close();
  return 0;
}

}  // namespace

void add_bench_command(CLI::App& app, const OpsFactory& make_ops, std::function<int()>& action) {
  CLI::App* group = app.add_subcommand("bench", "Measure");
  group->require_subcommand(1);
  CLI::App* command = group->add_subcommand("decode", "Speed of generation by ways of drafting, over a text");
  command->footer(
      "Example:\n"
      "  tandem bench decode model.gguf --text letters.txt --drafts auto,0,3 --slots 2000\n"
      "In forced mode every configuration walks the text of the file: drafts are checked against it instead of what "
      "the\n"
      "sampler picks. In free mode the model writes. Columns: draft, pass, sample: time of a round; wait: of the pass, "
      "for\n"
      "the crew; misses: different experts off the card. tok/s takes each segment at the median of its repeats; the "
      "range\n"
      "is that of whole repeats. One repeat more is run first and not counted.");
  const auto options = std::make_shared<BenchOptions>();
  add_engine_flags(*command, options->engine);
  command->add_option("--text", options->text, "file with the text")->required()->type_name("FILE");
  command
      ->add_option("--drafts", options->drafts,
                   "auto, 0 to 8, or off (no lookup either); several are run in turns (default auto)")
      ->delimiter(',')
      ->type_name("N,...");
  command
      ->add_option("--acceptance", options->acceptance,
                   "forced text: the chance that each draft of the head is right, stated; the head works for its time "
                   "alone")
      ->type_name("P")
      ->check(CLI::Range(0.0, 1.0).description(""));
  command
      ->add_option(
          "--rounds", options->rounds,
          "write every round to this file (CSV): its rows, tokens, milliseconds and misses, those of the first "
          "repeat too")
      ->type_name("OUT.csv");
  add_words(*command, "--mode", {"both", "forced", "free"}, "both, forced or free (default both)", "MODE",
            [options](std::size_t word) {
              options->forced = word != 2;
              options->free = word != 1;
            });
  add_words(*command, "--lookup", {"on", "off"}, "on or off: guess that repeated text goes on as before (default on)",
            "HOW", [options](std::size_t word) { options->engine.drafting.lookup = word == 0; });
  const auto count = [&](const std::string& name, std::size_t& target, const std::string& help, std::size_t most) {
    command->add_option(name, target, help)->type_name("N")->check(CLI::Range(std::size_t{1}, most).description(""));
  };
  count("--prompt-tokens", options->prompt_tokens, "tokens read before each measurement (default 128)", 1 << 20);
  count("--tokens", options->tokens, "tokens generated in each measurement (default 128)", 1 << 20);
  count("--segments", options->segments, "places of the text, spread evenly (default 4)", 1 << 16);
  count("--repeats", options->repeats, "times that everything is done (default 3)", 1 << 16);
  add_lossy_flags(*command, options->engine.lossy);
  add_sampling_flags(*command, options->sampling);
  command->callback(
      [options, &make_ops, &action] { action = [options, &make_ops] { return bench(*options, make_ops); }; });
}

}  // namespace tandem
