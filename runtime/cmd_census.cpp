#include "runtime/cmd_census.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <numeric>

#include "placement/check.h"
#include "placement/files.h"
#include "runtime/census_report.h"
#include "runtime/census_view.h"
#include "runtime/environment.h"
#include "runtime/output.h"

namespace tandem {
namespace {

struct ShowOptions {
  std::string file, domain, report;
  int layer = -1;
};

int run_show(const ShowOptions& options) {
  const Census census = load_census(options.file);
  CensusViewOptions view;
  view.domain = options.domain;
  view.layer = options.layer;
  view.width = terminal_width(STDOUT_FILENO);
  if (terminal_can_color(STDOUT_FILENO))
    view.style = environment().true_color ? HeatStyle::kTrueColor : HeatStyle::k256;
  const std::string text = show_census(census, view);
  if (!options.report.empty()) write_file(options.report, census_report(census, options.file));
  write_stdout(text);
  return 0;
}

// "FILE:SUFFIX", unless a file has the whole text as its name.
std::pair<std::string, std::string> split_suffix(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  std::error_code ignored;
  if (colon == std::string::npos || std::filesystem::exists(text, ignored)) return {text, ""};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

// A weight in thousandths: "2", "0.5", "1.25".
std::uint64_t parse_weight(const std::string& text, const std::string& where) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  const double thousandths = value * 1000;
  if (error != std::errc{} || end != text.data() + text.size() || !(value >= 0) || value > 1e6 ||
      std::fabs(thousandths - std::round(thousandths)) > 1e-6)
    fail_input("{}: expected a weight from 0 to 1000000 with at most three decimals, found \"{}\"", where, text);
  return static_cast<std::uint64_t>(std::llround(thousandths));
}

int run_merge(const std::vector<std::string>& inputs, const std::string& output) {
  std::vector<Census> parts;
  std::vector<std::uint64_t> weights;
  std::uint64_t common = 0;
  for (const std::string& input : inputs) {
    const auto [file, weight] = split_suffix(input);
    weights.push_back(weight.empty() && file == input ? 1000 : parse_weight(weight, "census merge " + input));
    common = std::gcd(common, weights.back());
    parts.push_back(load_census(file));
    check_same_shape(parts.front(), parts.back(), file);
  }
  if (common == 0) fail_input("census merge: expected a weight above 0, found none");
  Census merged = parts.front();
  merged.domains.clear();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].fingerprint != parts.front().fingerprint)
      write_stderr(fmt::format("tandem: warning: {} was taken on another model file than {}\n", inputs[i], inputs[0]));
    merge_census(merged, parts[i], weights[i] / common);
  }
  save_census(merged, output);
  write_stdout(census_summary(merged));
  return 0;
}

int run_diff(const std::string& a, const std::string& b) {
  const auto side = [](const std::string& text, Census& census) {
    const auto [file, domain] = split_suffix(text);
    census = load_census(file);
    require_domain(census, domain, text);
    return CensusSide{&census, domain, text};
  };
  Census first, second;
  const CensusSide x = side(a, first), y = side(b, second);
  check_same_shape(first, second, y.label);
  write_stdout(diff_census(x, y));
  return 0;
}

}  // namespace

void add_census_command(CLI::App& app, std::function<int()>& action) {
  CLI::App* command = app.add_subcommand("census", "Show, merge and compare counts of routes");
  command->require_subcommand(0, 1);
  command->callback([command, &action] {
    if (!command->get_subcommands().empty()) return;
    action = [command] {
      write_stdout(command->help());
      return 0;
    };
  });
  command->footer(
      "Examples:\n"
      "  tandem census show my.census.csv --domain code\n"
      "  tandem census show my.census.csv --report my.html\n"
      "  tandem census merge code.census.csv:2 chat.census.csv -o both.census.csv\n"
      "  tandem census diff my.census.csv:code my.census.csv:chat");

  CLI::App* show = command->add_subcommand("show", "A heat map of banks and experts, and how concentrated routes are");
  const auto options = std::make_shared<ShowOptions>();
  show->add_option("FILE", options->file, "census")->required();
  show->add_option("--domain", options->domain, "only this domain (default: all together)")->type_name("NAME");
  show->add_option("--layer", options->layer, "the experts of this layer, hottest first")
      ->type_name("N")
      ->check(CLI::Range(0, kMaxBanks).description(""));
  show->add_option("--report", options->report, "write a page with heat map and curves")->type_name("OUT.html");
  show->callback([options, &action] { action = [options] { return run_show(*options); }; });

  CLI::App* merge = command->add_subcommand("merge", "Add counts up, with weights");
  const auto inputs = std::make_shared<std::vector<std::string>>();
  const auto output = std::make_shared<std::string>();
  merge->add_option("FILES", *inputs, "FILE or FILE:WEIGHT; a weight multiplies the counts (default 1)")->required();
  merge->add_option("-o,--output", *output, "the census to write")->type_name("C.census.csv")->required();
  merge->callback([inputs, output, &action] { action = [inputs, output] { return run_merge(*inputs, *output); }; });

  CLI::App* diff = command->add_subcommand("diff", "How far two agree: hottest experts in common, routes that differ");
  const auto sides = std::make_shared<std::pair<std::string, std::string>>();
  diff->add_option("A", sides->first, "FILE or FILE:DOMAIN")->required();
  diff->add_option("B", sides->second, "FILE or FILE:DOMAIN")->required();
  diff->callback([sides, &action] { action = [sides] { return run_diff(sides->first, sides->second); }; });
}

}  // namespace tandem
