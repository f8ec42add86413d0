#include "placement/census_stats.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "placement/check.h"

namespace tandem {

std::vector<int> counted_banks(const Census& census, const std::string& domain) {
  std::vector<int> banks;
  for (int b = 0; b < census.banks; ++b) {
    const auto first = static_cast<std::size_t>(b) * static_cast<std::size_t>(census.experts);
    const auto counted = [&](const RouteCounts& counts) {
      if (counts.routes.empty()) return false;
      const auto begin = counts.routes.begin() + static_cast<std::ptrdiff_t>(first);
      return std::any_of(begin, begin + census.experts, [](std::uint64_t n) { return n > 0; });
    };
    for (const auto& [name, counts] : census.domains) {
      if (!domain.empty() && name != domain) continue;
      if (!counted(counts.prefill) && !counted(counts.decode)) continue;
      banks.push_back(b);
      break;
    }
  }
  return banks;
}

int hottest_count(int experts, double fraction) {
  return std::clamp(static_cast<int>(std::lround(fraction * experts)), 1, experts);
}

std::vector<int> hottest_first(const RouteShares& shares, int bank) {
  std::vector<int> order(static_cast<std::size_t>(shares.experts));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return shares.at(bank, a) > shares.at(bank, b); });
  return order;
}

double coverage(const RouteShares& shares, int bank, double fraction) {
  const std::vector<int> order = hottest_first(shares, bank);
  double sum = 0;
  for (int i = 0; i < hottest_count(shares.experts, fraction); ++i)
    sum += shares.at(bank, order[static_cast<std::size_t>(i)]);
  return sum;
}

double hot_overlap(const RouteShares& a, const RouteShares& b, int bank, double fraction) {
  const int n = hottest_count(a.experts, fraction);
  const auto hot = [&](const RouteShares& shares) {
    std::vector<int> order = hottest_first(shares, bank);
    order.resize(static_cast<std::size_t>(n));
    std::sort(order.begin(), order.end());
    return order;
  };
  const std::vector<int> x = hot(a), y = hot(b);
  std::vector<int> both;
  std::set_intersection(x.begin(), x.end(), y.begin(), y.end(), std::back_inserter(both));
  return static_cast<double>(both.size()) / n;
}

double total_variation(const RouteShares& a, const RouteShares& b, int bank) {
  double sum = 0;
  for (int e = 0; e < a.experts; ++e) sum += std::fabs(a.at(bank, e) - b.at(bank, e));
  return sum / 2;
}

std::vector<double> hit_curve(const RouteShares& shares, const RouteShares& order, std::span<const int> banks) {
  CHECK(shares.banks == order.banks && shares.experts == order.experts);
  std::vector<std::size_t> slots;
  for (const int b : banks)
    for (int e = 0; e < shares.experts; ++e)
      slots.push_back(static_cast<std::size_t>(b) * static_cast<std::size_t>(shares.experts) +
                      static_cast<std::size_t>(e));
  std::stable_sort(slots.begin(), slots.end(),
                   [&](std::size_t a, std::size_t b) { return order.share[a] > order.share[b]; });
  std::vector<double> curve{0.0};
  double sum = 0;
  for (const std::size_t i : slots) {
    sum += shares.share[i];
    curve.push_back(sum / static_cast<double>(banks.size()));
  }
  return curve;
}

std::vector<double> hit_curve(const RouteShares& shares, std::span<const int> banks) {
  return hit_curve(shares, shares, banks);
}

}  // namespace tandem
