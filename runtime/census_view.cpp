#include "runtime/census_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "placement/census_stats.h"
#include "placement/check.h"

namespace tandem {
namespace {

constexpr double kFractions[] = {0.1, 0.2, 0.4};

struct Color {
  int r, g, b;
};

// Dark blue over magenta to light yellow: 0 .. 1.
Color heat_color(double x) {
  constexpr Color kStops[] = {{13, 8, 60}, {84, 2, 163}, {185, 50, 137}, {244, 136, 73}, {250, 235, 90}};
  const double at = std::clamp(x, 0.0, 1.0) * 4;
  const int i = std::min(3, static_cast<int>(at));
  const double f = at - i;
  const auto mix = [&](int a, int b) { return static_cast<int>(std::lround(a + f * (b - a))); };
  return {mix(kStops[i].r, kStops[i + 1].r), mix(kStops[i].g, kStops[i + 1].g), mix(kStops[i].b, kStops[i + 1].b)};
}

// One cell of heat x.
std::string cell(double x, HeatStyle style) {
  const Color c = heat_color(x);
  if (style == HeatStyle::kTrueColor) return fmt::format("\x1b[48;2;{};{};{}m ", c.r, c.g, c.b);
  if (style == HeatStyle::k256) {
    const auto six = [](int v) { return v < 48 ? 0 : v < 115 ? 1 : (v - 35) / 40; };  // the 6 x 6 x 6 cube
    return fmt::format("\x1b[48;5;{}m ", 16 + 36 * six(c.r) + 6 * six(c.g) + six(c.b));
  }
  constexpr std::string_view kRamp = " .:-=+*#%@";
  return std::string(1, kRamp[static_cast<std::size_t>(std::clamp(x, 0.0, 0.999) * 10)]);
}

std::string_view reset(HeatStyle style) {
  return style == HeatStyle::kAscii ? "" : "\x1b[0m";
}

// The scale of a map ends at this many times the even share: the hottest expert, within limits.
int scale_of(const RouteShares& shares, const std::vector<int>& banks) {
  double most = 0;
  for (const int b : banks) most = std::max(most, coverage(shares, b, 0) * shares.experts);
  return std::clamp(static_cast<int>(std::ceil(most)), 2, 16);
}

// Heat of a share: 0 for none, 1 for `scale` times the even share and more; logarithmic.
double heat(double share, int experts, int scale) {
  return std::log2(1 + share * experts) / std::log2(1.0 + scale);
}

std::string bank_label(const Census& census, int bank) {
  return fmt::format("{:>{}}", bank, census.banks > 100 ? 4 : 3);
}

std::string percent(double x) {
  return fmt::format("{:5.1f}%", 100 * x);
}

std::string header(const Census& census, const std::string& domain) {
  std::string text =
      fmt::format("{} ({:016x}): {} banks of {} experts, {} used\n", census.model.empty() ? "model" : census.model,
                  census.fingerprint, census.banks, census.experts, census.used);
  for (const auto& [name, counts] : census.domains)
    text += fmt::format("{} {:<16} {:>10} rows prefill {:>10} rows decode\n",
                        domain.empty() || domain == name ? "*" : " ", name, counts.prefill.rows, counts.decode.rows);
  return text;
}

RouteShares shares_of(const Census& census, const std::string& domain) {
  const CensusPart part{&census, domain, 1.0};
  return mix_shares({&part, 1});
}

// The hottest expert of each of `cells` groups of neighbours.
std::string heat_line(const RouteShares& shares, int bank, int cells, int scale, HeatStyle style) {
  std::string line;
  for (int c = 0; c < cells; ++c) {
    double most = 0;
    for (int e = c * shares.experts / cells; e < (c + 1) * shares.experts / cells; ++e)
      most = std::max(most, shares.at(bank, e));
    line += cell(heat(most, shares.experts, scale), style);
  }
  return line + std::string(reset(style));
}

std::string heat_map(const Census& census, const RouteShares& shares, const std::vector<int>& banks,
                     const CensusViewOptions& options) {
  const int label = static_cast<int>(bank_label(census, 0).size());
  const int cells = std::clamp(options.width - label - 2 - 24, 8, shares.experts);
  const int title = std::max(cells, 7), scale = scale_of(shares, banks);
  std::string text = fmt::format("{:>{}} {:<{}}  top 10%    20%    40%\n", "", label, "experts", title);
  double mean[3] = {};
  for (const int b : banks) {
    text += fmt::format("{} {}{:{}} ", bank_label(census, b), heat_line(shares, b, cells, scale, options.style), "",
                        title - cells);
    for (int i = 0; i < 3; ++i) {
      const double c = coverage(shares, b, kFractions[i]);
      mean[i] += c / static_cast<double>(banks.size());
      text += " " + percent(c);
    }
    text += '\n';
  }
  text += fmt::format("{:>{}} {:<{}}  {} {} {}\n", "", label, "mean", title, percent(mean[0]), percent(mean[1]),
                      percent(mean[2]));
  text += fmt::format("A cell is {}; ", cells == shares.experts
                                            ? "one expert"
                                            : fmt::format("the hottest of {} experts or more", shares.experts / cells));
  text += "no routes ";
  for (int i = 0; i < 10; ++i) text += cell((i + 0.5) / 10, options.style);
  text += fmt::format("{} {} times the even share{}.\n", reset(options.style), scale, scale == 16 ? " or more" : "");
  const std::vector<double> curve = hit_curve(shares, banks);
  text += "With the hottest experts of all banks on the card:";
  for (const int p : {10, 20, 40, 60}) {
    const auto n = static_cast<std::size_t>(std::lround(static_cast<double>(curve.size() - 1) * p / 100));
    text += fmt::format("{} {}% of them hit {:.1f}%", p == 10 ? "" : ",", p, 100 * curve[n]);
  }
  return text + " of the routes.\n";
}

// One bank, its experts from hottest to coldest.
std::string bank_detail(const RouteShares& shares, const CensusViewOptions& options) {
  const std::vector<int> order = hottest_first(shares, options.layer);
  const std::size_t shown = std::min<std::size_t>(order.size(), 24);
  std::string text = fmt::format("bank {}\n  expert   share  times the even share   together\n", options.layer);
  double sum = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const double share = shares.at(options.layer, order[i]);
    sum += share;
    if (i >= shown) continue;
    const int bar = static_cast<int>(
        std::lround(share / shares.at(options.layer, order[0]) * std::clamp(options.width - 46, 4, 40)));
    text += fmt::format("{:>8} {:>6.2f}% {:>21.2f} {:>9.1f}%  {:#<{}}\n", order[i], 100 * share, share * shares.experts,
                        100 * sum, "", bar);
  }
  if (shown < order.size()) text += fmt::format("     and {} more\n", order.size() - shown);
  return text;
}

}  // namespace

void require_domain(const Census& census, const std::string& domain, std::string_view where) {
  if (domain.empty() || census.domains.contains(domain)) return;
  std::string names;
  for (const auto& [name, counts] : census.domains) names += (names.empty() ? "" : ", ") + name;
  fail_input("{}: expected a domain of the census ({}), found \"{}\"", where, names.empty() ? "it has none" : names,
             domain);
}

std::string show_census(const Census& census, const CensusViewOptions& options) {
  require_domain(census, options.domain, "--domain");
  if (options.layer >= census.banks) fail_input("--layer: expected 0 to {}, found {}", census.banks - 1, options.layer);
  const RouteShares shares = shares_of(census, options.domain);
  const std::vector<int> banks = counted_banks(census, options.domain);
  std::string text = header(census, options.domain);
  if (banks.empty()) return text + "No routes were counted.\n";
  if (options.layer >= 0) return text + bank_detail(shares, options);
  return text + heat_map(census, shares, banks, options);
}

std::string census_summary(const Census& census) {
  std::string text = "domain           phase         rows   top 10%    20%    40% of the experts carry\n";
  for (const auto& [name, domain] : census.domains) {
    for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
      if (domain.of(phase).routes.empty()) continue;
      const CensusPart part{&census, name, 1.0};
      const RouteShares shares = mix_shares({&part, 1}, {&phase, 1});
      const std::vector<int> banks = counted_banks(census, name);
      double mean[3] = {};
      for (const int b : banks)
        for (int i = 0; i < 3; ++i) mean[i] += coverage(shares, b, kFractions[i]) / static_cast<double>(banks.size());
      text += fmt::format("{:<16} {:<8} {:>9}    {} {} {}\n", name, phase_name(phase), domain.of(phase).rows,
                          percent(mean[0]), percent(mean[1]), percent(mean[2]));
    }
  }
  return text;
}

std::string diff_census(const CensusSide& a, const CensusSide& b) {
  const RouteShares x = shares_of(*a.census, a.domain), y = shares_of(*b.census, b.domain);
  const std::vector<int> of_a = counted_banks(*a.census, a.domain), of_b = counted_banks(*b.census, b.domain);
  std::vector<int> banks;
  std::set_intersection(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(), std::back_inserter(banks));
  std::string text = fmt::format("A: {}\nB: {}\n", a.label, b.label);
  if (banks.empty()) return text + "No bank has routes on both sides.\n";
  text += "       same among the hottest    routes that\nbank    10%     20%     40%      go elsewhere\n";
  double mean[4] = {};
  const auto line = [](const std::string& label, const double* v) {
    return fmt::format("{} {}  {}  {}  {:>12}\n", label, percent(v[0]), percent(v[1]), percent(v[2]), percent(v[3]));
  };
  for (const int bank : banks) {
    double v[4];
    for (int i = 0; i < 3; ++i) v[i] = hot_overlap(x, y, bank, kFractions[i]);
    v[3] = total_variation(x, y, bank);
    for (int i = 0; i < 4; ++i) mean[i] += v[i] / static_cast<double>(banks.size());
    text += line(fmt::format("{:>4}", bank), v);
  }
  text += line("mean", mean);
  const std::vector<double> own = hit_curve(y, banks), other = hit_curve(y, x, banks);
  text += "B's routes that hit with the hottest experts on the card, chosen by A (by B itself):\n ";
  for (const int p : {20, 40, 60}) {
    const auto n = static_cast<std::size_t>(std::lround(static_cast<double>(own.size() - 1) * p / 100));
    text += fmt::format("{} {}% of the experts {:.1f}% ({:.1f}%)", p == 20 ? "" : ",", p, 100 * other[n], 100 * own[n]);
  }
  return text + "\n";
}

}  // namespace tandem
