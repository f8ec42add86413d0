#include "bench/forecast.h"

#include <algorithm>
#include <cmath>

#include "placement/check.h"
#include "runtime/plan_report.h"

namespace tandem::bench {

PlanInput forecast_input(const Model& model, const Hardware& hardware, const std::string& census) {
  PlacementChoices choices;
  choices.card = hardware.gpu;
  Policy policy = resolve_policy(choices);
  if (!census.empty()) policy.census.emplace_back().file = census;
  constexpr std::int64_t kPrefillRows = 512;  // changes no time of a pass
  PlanReport report = plan_report(model, policy, choices, kPrefillRows);
  report.input.hardware = hardware;
  return report.input;
}

PassForecast forecast(const CostModel& costs, const std::vector<BankLoad>& loads, std::size_t rows, double start_us) {
  const RoundTime time = costs.round(loads, static_cast<int>(rows) - 1);
  PassForecast forecast{time.total - time.draft - time.sampling, time.crew};
  for (const BankLoad& load : loads) forecast.crew += start_us * 1e-6 * (1.0 - std::exp(-load.misses));
  return forecast;
}

std::vector<std::string> csv_fields(const std::string& line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += line[++i];
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else if (c != '\r') {
      fields.back() += c;
    }
  }
  return fields;
}

std::vector<double> minimise(const std::function<double(std::span<const double>)>& f, std::vector<double> start,
                             std::span<const double> steps, std::size_t evaluations) {
  const std::size_t n = start.size();
  CHECK(n > 0 && steps.size() == n, "{} values, {} steps", n, steps.size());
  struct Corner {
    double value;
    std::vector<double> at;
  };
  std::vector<Corner> corners{{f(start), start}};
  for (std::size_t i = 0; i < n; ++i) {
    std::vector<double> at = start;
    at[i] += steps[i];
    corners.push_back({f(at), at});
  }
  const auto by_value = [](const Corner& a, const Corner& b) { return a.value < b.value; };
  // A point on the line from the worst corner through the middle of the others: -1 is the corner, 0 the middle.
  const auto along = [&](double t) {
    std::vector<double> at(n, 0.0);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t c = 0; c < n; ++c) at[i] += corners[c].at[i] / static_cast<double>(n);
      at[i] += t * (at[i] - corners[n].at[i]);
    }
    return Corner{f(at), at};
  };
  for (std::size_t used = n + 1; used < evaluations; used += 2) {
    std::stable_sort(corners.begin(), corners.end(), by_value);
    Corner next = along(1);
    if (next.value < corners[0].value) {
      if (Corner farther = along(2); farther.value < next.value) next = farther;
    } else if (next.value >= corners[n - 1].value) {
      next = along(next.value < corners[n].value ? 0.5 : -0.5);
    }
    if (next.value < corners[n].value) {
      corners[n] = next;
      continue;
    }
    for (std::size_t c = 1; c <= n; ++c, ++used) {  // all towards the best
      for (std::size_t i = 0; i < n; ++i) corners[c].at[i] = (corners[c].at[i] + corners[0].at[i]) / 2;
      corners[c].value = f(corners[c].at);
    }
  }
  return std::min_element(corners.begin(), corners.end(), by_value)->at;
}

}  // namespace tandem::bench
