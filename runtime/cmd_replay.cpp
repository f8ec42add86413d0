#include "runtime/cmd_replay.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <numeric>
#include <optional>

#include "placement/census.h"
#include "placement/check.h"
#include "placement/files.h"
#include "placement/replay.h"
#include "placement/units.h"
#include "runtime/census_view.h"
#include "runtime/output.h"
#include "runtime/replay_plan.h"

namespace tandem {
namespace {

struct Options {
  std::vector<std::string> traces, modes{"off", "lru", "lfu", "swaps"}, residency{"20%", "40%", "60%"}, slots;
  std::string census, csv, expert_size, model, hardware;
  std::vector<std::string> policies, vram;
  std::uint64_t start_rows = 256, curve = 0;
  AdaptSettings adapt;
};

// Rounds of several traces, one after the other.
class Traces {
 public:
  explicit Traces(const std::vector<std::string>& paths) : paths_(paths) {
    for (const std::string& path : paths) {
      const TraceHeader header = TraceReader(path).header();
      if (header_.banks == 0) header_ = header;
      if (header.banks != header_.banks || header.experts != header_.experts || header.used != header_.used)
        fail_input(
            "{}: expected a trace of the shape of {} ({} banks of {} experts, {} used), found {} banks of {}, {} "
            "used",
            path, paths.front(), header_.banks, header_.experts, header_.used, header.banks, header.experts,
            header.used);
    }
  }
  const TraceHeader& header() const { return header_; }
  bool next(TraceRound& round) {
    for (;;) {
      if (!reader_) {
        if (at_ == paths_.size()) return false;
        reader_.emplace(paths_[at_++]);
      }
      if (reader_->next(round)) return true;
      reader_.reset();
    }
  }

 private:
  const std::vector<std::string>& paths_;
  TraceHeader header_;
  std::optional<TraceReader> reader_;
  std::size_t at_ = 0;
};

AdaptMode parse_mode(const std::string& text) {
  if (text == "off") return AdaptMode::kOff;
  if (text == "lru") return AdaptMode::kLru;
  if (text == "lfu") return AdaptMode::kLfu;
  if (text == "swaps") return AdaptMode::kSwaps;
  fail_input("--mode: expected off, lru, lfu or swaps, found \"{}\"", text);
}

double parse_number(std::string text, const std::string& flag, const std::string& expected, double high) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error != std::errc{} || end != text.data() + text.size() || !(value >= 0) || value > high)
    fail_input("{}: expected {}, found \"{}\"", flag, expected, text);
  return value;
}

// How many experts are on the card, with the words for it.
std::vector<std::pair<std::string, std::int64_t>> card_sizes(const Options& options, std::int64_t experts) {
  std::vector<std::pair<std::string, std::int64_t>> sizes;
  if (!options.slots.empty()) {
    for (const std::string& text : options.slots) {
      const double n =
          parse_number(text, "--slots", fmt::format("a number from 0 to {}", experts), static_cast<double>(experts));
      if (n != std::floor(n)) fail_input("--slots: expected a whole number, found \"{}\"", text);
      sizes.emplace_back(text, static_cast<std::int64_t>(n));
    }
    return sizes;
  }
  for (const std::string& text : options.residency) {
    if (!text.ends_with('%')) fail_input("--residency: expected a share like 40%, found \"{}\"", text);
    const double share = parse_number(text.substr(0, text.size() - 1), "--residency", "0% to 100%", 100);
    sizes.emplace_back(text, std::llround(share / 100 * static_cast<double>(experts)));
  }
  return sizes;
}

// Shares by which the card is filled at the start: of a census, or of the first rows of the traces.
RouteShares start_shares(const Options& options) {
  Traces traces(options.traces);
  const TraceHeader& header = traces.header();
  Census census{header.model, header.fingerprint, header.banks, header.experts, header.used, {}};
  std::string domain;
  if (options.census.empty()) {
    TraceRound round;
    while (census.rows() < options.start_rows && traces.next(round))
      for (const TraceBlock& block : round.blocks) census.add(round.domain, round.phase, block.bank, block.ids);
  } else {
    std::string file = options.census;
    std::error_code ignored;
    if (const std::size_t colon = file.rfind(':');
        colon != std::string::npos && !std::filesystem::exists(file, ignored)) {
      domain = file.substr(colon + 1);
      file.resize(colon);
    }
    const Census loaded = load_census(file);
    check_same_shape(census, loaded, file);
    require_domain(loaded, domain, "--census " + options.census);
    census = loaded;
  }
  const CensusPart part{&census, domain, 1.0};
  return mix_shares({&part, 1});
}

std::vector<ReplayCase> make_cases(const Options& options, const TraceHeader& header, const RouteShares& shares) {
  const std::int64_t all = std::int64_t{header.banks} * header.experts;
  const std::int64_t bytes = options.expert_size.empty()
                                 ? 1
                                 : std::max<std::int64_t>(1, parse_bytes_or_fail(options.expert_size, "--expert-size"));
  const std::vector<std::int64_t> expert_bytes(static_cast<std::size_t>(header.banks), bytes);
  std::vector<ReplayCase> cases;
  for (const auto& [name, slots] : card_sizes(options, all)) {
    for (const std::string& mode : options.modes) {
      ReplayCase c{mode + " " + name, options.adapt,
                   hottest_on_card(shares, expert_bytes, slots, options.adapt.floor_per_bank), expert_bytes,
                   std::vector<bool>(static_cast<std::size_t>(all), true)};
      c.settings.mode = parse_mode(mode);
      cases.push_back(std::move(c));
    }
  }
  return cases;
}

double share(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

// A case with the predicted time of its rounds, where that is known.
struct Result {
  ReplayResult replay;
  std::optional<double> seconds;
};

std::string table(const std::vector<Result>& results, bool sized) {
  std::size_t width = 14;
  for (const Result& r : results) width = std::max(width, r.replay.name.size());
  std::string text =
      fmt::format("{:<{}}   slots   routes    bytes   decode   misses/round   swaps/round", "case", width);
  text += sized ? "   copied/round" : "";
  const bool timed = std::any_of(results.begin(), results.end(), [](const Result& r) { return r.seconds.has_value(); });
  text += timed ? "   decode round\n" : "\n";
  for (const auto& [r, seconds] : results) {
    const Adapter::Counts& c = r.counts;
    text +=
        fmt::format("{:<{}} {:>7}   {:5.1f}%   {:5.1f}%   {:>6}   {:>12.2f}   {:>11.2f}", r.name, width, r.slots,
                    100 * c.hit_rate(), 100 * share(c.hit_bytes, c.bytes),
                    r.decode_routes == 0 ? "-" : fmt::format("{:.1f}%", 100 * share(r.decode_hits, r.decode_routes)),
                    share(c.misses, c.rounds), share(c.swaps, c.rounds));
    if (sized) text += fmt::format("   {:>12}", format_bytes(std::llround(share(c.swap_bytes, c.rounds))));
    if (timed) text += fmt::format("   {:>12}", seconds ? fmt::format("{:.3f} ms", 1000 * *seconds) : "-");
    text += '\n';
  }
  return text;
}

std::string curve_table(const std::vector<Result>& results) {
  std::string text = "\nroutes that hit, by rounds\n    from  domain          ";
  for (const Result& r : results) text += fmt::format(" {:>10}", r.replay.name);
  text += '\n';
  const std::vector<ReplayWindow>& first = results.front().replay.curve;
  for (std::size_t i = 0; i < first.size(); ++i) {
    text += fmt::format("{:>8}  {:<16}", first[i].first_round, first[i].domain);
    for (const Result& r : results)
      text += fmt::format(" {:>{}.1f}%", 100 * r.replay.curve[i].hit_rate(),
                          std::max<std::size_t>(10, r.replay.name.size()) - 1);
    text += '\n';
  }
  return text;
}

std::string csv(const std::vector<Result>& results) {
  std::string text =
      "case,slots,first_round,rounds,domain,routes,hits,hit_rate,bytes,hit_bytes,decode_routes,decode_hits,misses,"
      "swaps,swap_bytes,decode_round_seconds\n";
  for (const auto& [r, seconds] : results) {
    const Adapter::Counts& c = r.counts;
    text += fmt::format("{},{},0,{},,{},{},{:.6f},{},{},{},{},{},{},{},{}\n", r.name, r.slots, c.rounds, c.routes,
                        c.hits, c.hit_rate(), c.bytes, c.hit_bytes, r.decode_routes, r.decode_hits, c.misses, c.swaps,
                        c.swap_bytes, seconds ? fmt::format("{:.9f}", *seconds) : "");
    for (const ReplayWindow& w : r.curve)
      text += fmt::format("{},{},{},{},{},{},{},{:.6f},,,,,{},{},,\n", r.name, r.slots, w.first_round, w.rounds,
                          w.domain, w.routes, w.hits, w.hit_rate(), w.misses, w.swaps);
  }
  return text;
}

// The cases that the flags ask for: plans of policies, or modes and sizes. Plans that do not fit are named and left
// out.
std::vector<PlannedCase> all_cases(const Options& options, const TraceHeader& header) {
  std::vector<PlannedCase> cases;
  if (options.policies.empty() && options.vram.empty()) {
    for (ReplayCase& c : make_cases(options, header, start_shares(options)))
      cases.push_back({std::move(c), {}, nullptr, nullptr});
    return cases;
  }
  if (options.model.empty())
    fail_input(
        "replay: expected --model FILE with --policy and --vram, found none. Fix: name the GGUF file; only its "
        "header is read");
  ReplayPlanOptions plan{options.model, options.hardware, options.policies, {}};
  for (const std::string& size : options.vram) plan.vram.push_back(parse_bytes_or_fail(size, "--vram"));
  for (PlannedCase& c : planned_cases(plan, header)) {
    if (c.shortfall.empty())
      cases.push_back(std::move(c));
    else
      write_stderr(fmt::format("tandem: note: {} does not fit: {}\n", c.replay.name, c.shortfall));
  }
  if (cases.empty()) fail_input("replay: expected a plan that fits, found none. Fix: more --vram, or another --policy");
  return cases;
}

std::vector<Result> run_cases(const std::vector<PlannedCase>& cases, Traces& traces, std::uint64_t window) {
  std::vector<ReplayCase> replays;
  for (const PlannedCase& c : cases) replays.push_back(c.replay);
  std::vector<Result> results;
  for (ReplayResult& r : replay([&](TraceRound& round) { return traces.next(round); }, replays, window)) {
    const PlannedCase& c = cases[results.size()];
    Result result{std::move(r), {}};
    if (c.cost && c.cost->known() && result.replay.decode_rounds > 0 && c.input->shares.banks == c.replay.start.banks)
      result.seconds = replayed_round_seconds(*c.cost, *c.input, c.replay.start, result.replay);
    results.push_back(std::move(result));
  }
  return results;
}

int run_replay(const Options& options) {
  if (options.adapt.half_life_rows <= 0) fail_input("--half-life: expected more than 0 rows");
  if (options.adapt.margin < 1) fail_input("--margin: expected 1 or more, found {}", options.adapt.margin);
  Traces traces(options.traces);
  const std::vector<PlannedCase> cases = all_cases(options, traces.header());
  const bool planned = cases.front().input != nullptr;
  const std::vector<Result> results = run_cases(cases, traces, options.curve);
  if (!options.csv.empty()) write_file(options.csv, csv(results));
  const TraceHeader& header = traces.header();
  const ReplayResult& first = results.front().replay;
  std::string text =
      fmt::format("{}: {} banks of {} experts, {} used; {} rounds, {} of them decode; started from {}\n", header.model,
                  header.banks, header.experts, header.used, first.counts.rounds, first.decode_rounds,
                  planned                  ? "each plan"
                  : options.census.empty() ? fmt::format("the first {} rows", options.start_rows)
                                           : options.census);
  text += table(results, planned || !options.expert_size.empty());
  if (options.curve > 0 && first.counts.rounds > 0) text += curve_table(results);
  write_stdout(text);
  return 0;
}

}  // namespace

void add_replay_command(CLI::App& app, std::function<int()>& action) {
  CLI::App* command = app.add_subcommand("replay", "Compare ways of keeping experts on the card over recorded routes");
  command->footer(
      "Examples:\n"
      "  tandem replay code.trace --residency 20%,40%\n"
      "  tandem replay code.trace chat.trace code.trace --mode off,swaps --curve 50 --census all.census.csv\n"
      "  tandem replay code.trace --model model.gguf --policy a.yaml b.yaml --vram 12GiB,24GiB --hardware pc.yaml\n"
      "Several traces are played one after the other. Without --census the card starts with the experts that the "
      "first\n"
      "rows use most. Bytes count every expert once in a round; without --expert-size all experts count the same.");
  const auto options = std::make_shared<Options>();
  command->add_option("TRACE", options->traces, "traces of one model")->required();
  command->add_option("--policy", options->policies, "plan by these policies instead of --mode and --residency")
      ->type_name("FILE...")
      ->expected(1, -1);
  command->add_option("--vram", options->vram, "plan for cards of these sizes")->delimiter(',')->type_name("SIZES");
  command->add_option("--model", options->model, "the model to plan for: the GGUF file, of which the header is read")
      ->type_name("FILE");
  command->add_option("--hardware", options->hardware, "the machine to plan for, for times as well")->type_name("FILE");
  command->add_option("--mode", options->modes, "off, lru, lfu, swaps (default all four)")
      ->delimiter(',')
      ->type_name("MODES");
  command->add_option("--residency", options->residency, "experts on the card (default 20%,40%,60%)")
      ->delimiter(',')
      ->type_name("SHARES");
  command->add_option("--slots", options->slots, "the same as numbers of experts")->delimiter(',')->type_name("N,...");
  command->add_option("--census", options->census, "fill the card by this census at the start")
      ->type_name("FILE[:DOMAIN]");
  command->add_option("--start-rows", options->start_rows, "without --census: rows counted to fill it")
      ->capture_default_str()
      ->type_name("N");
  command->add_option("--swaps", options->adapt.swaps_per_round, "mode swaps: most in a round")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(0, 1 << 20).description(""));
  command->add_option("--half-life", options->adapt.half_life_rows, "rows after which a route counts half")
      ->capture_default_str()
      ->type_name("ROWS");
  command->add_option("--margin", options->adapt.margin, "mode swaps: times as hot as the expert it replaces")
      ->capture_default_str()
      ->type_name("X");
  command->add_option("--floor", options->adapt.floor_per_bank, "experts that every bank keeps on the card")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(0, kMaxExperts).description(""));
  command->add_option("--expert-size", options->expert_size, "bytes of one expert, for the bytes copied")
      ->type_name("SIZE");
  command->add_option("--curve", options->curve, "show hits over windows of N rounds")->type_name("N");
  command->add_option("--csv", options->csv, "write all figures")->type_name("OUT.csv");
  command->callback([options, &action] { action = [options] { return run_replay(*options); }; });
}

}  // namespace tandem
