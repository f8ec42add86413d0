#include "placement/select_experts.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "placement/check.h"

namespace tandem {
namespace {

struct Step {
  double saving;
  int number;  // within its bank
  int bank;
};

// Takes the steps in descending order of saving; equals in turn from all banks. Returns false when one did not fit in
// the bytes.
bool take_steps(std::span<const BankCurve> banks, std::vector<Step> steps, std::int64_t bytes, int slots,
                std::vector<int>& counts) {
  // Savings are differences of sums: what differs by less than their rounding is equal.
  constexpr double kLevels = 1e12;
  double largest = 0;
  for (const Step& step : steps) largest = std::max(largest, step.saving);
  for (Step& step : steps) step.saving = largest > 0 ? std::round(step.saving / largest * kLevels) : 0.0;
  std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) {
    return std::tuple(-a.saving, a.number, a.bank) < std::tuple(-b.saving, b.number, b.bank);
  });
  bool all_fit = true;
  for (const Step& step : steps) {
    if (slots == 0) break;
    const std::int64_t size = banks[static_cast<std::size_t>(step.bank)].bytes;
    if (size > bytes) {
      all_fit = false;
      continue;
    }
    ++counts[static_cast<std::size_t>(step.bank)];
    bytes -= size;
    --slots;
  }
  return all_fit;
}

// Savings of the steps of one curve, each replaced by the mean of its run on the lower hull: never increasing.
std::vector<double> hull_savings(const std::vector<double>& cost) {
  struct Run {
    double sum;
    std::size_t steps;
    double mean() const { return sum / static_cast<double>(steps); }
  };
  std::vector<Run> runs;
  for (std::size_t n = 1; n < cost.size(); ++n) {
    Run run{cost[n - 1] - cost[n], 1};
    while (!runs.empty() && runs.back().mean() < run.mean()) {
      run = {runs.back().sum + run.sum, runs.back().steps + run.steps};
      runs.pop_back();
    }
    runs.push_back(run);
  }
  std::vector<double> savings;
  savings.reserve(cost.size());
  for (const Run& run : runs) savings.insert(savings.end(), run.steps, run.mean());
  return savings;
}

}  // namespace

std::vector<int> select_counts(std::span<const BankCurve> banks, std::int64_t bytes, int slots) {
  std::vector<int> counts;
  std::vector<Step> steps;
  for (std::size_t b = 0; b < banks.size(); ++b) {
    const BankCurve& bank = banks[b];
    CHECK(!bank.cost.empty() && bank.bytes > 0, "bank {} of {} counts, {} bytes", b, bank.cost.size(), bank.bytes);
    counts.push_back(bank.least);
    bytes -= bank.least * bank.bytes;
    slots -= bank.least;
    int number = bank.least;
    for (const double saving : hull_savings(bank.cost)) {
      if (saving >= 0) steps.push_back({saving, number++, static_cast<int>(b)});
    }
  }
  CHECK(bytes >= 0 && slots >= 0, "least counts are {} bytes and {} slots too many", -bytes, -slots);
  const std::vector<int> least = counts;
  if (!take_steps(banks, steps, bytes, slots, counts)) {
    counts = least;
    for (Step& step : steps) step.saving /= static_cast<double>(banks[static_cast<std::size_t>(step.bank)].bytes);
    take_steps(banks, std::move(steps), bytes, slots, counts);
  }
  for (std::size_t b = 0; b < banks.size(); ++b) {
    const std::vector<double>& cost = banks[b].cost;
    int best = 0;  // the last of equals: an expert more costs nothing, and may be wanted by another text
    for (int n = 1; n <= counts[b] - banks[b].least; ++n) {
      if (cost[static_cast<std::size_t>(n)] <= cost[static_cast<std::size_t>(best)]) best = n;
    }
    counts[b] = banks[b].least + best;
  }
  return counts;
}

}  // namespace tandem
