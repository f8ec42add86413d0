// select_counts against every combination of counts.
#include "placement/select_experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "tests/placement/plan_cases.h"

namespace tandem::testing {
namespace {

double sum_of(const std::vector<BankCurve>& banks, const std::vector<int>& counts) {
  double sum = 0;
  for (std::size_t b = 0; b < banks.size(); ++b)
    sum += banks[b].cost.at(static_cast<std::size_t>(counts[b] - banks[b].least));
  return sum;
}

std::int64_t bytes_of(const std::vector<BankCurve>& banks, const std::vector<int>& counts) {
  std::int64_t bytes = 0;
  for (std::size_t b = 0; b < banks.size(); ++b) bytes += counts[b] * banks[b].bytes;
  return bytes;
}

double least_sum(const std::vector<BankCurve>& banks, std::int64_t bytes, int slots) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<int> counts;
  const std::function<void(std::int64_t, int)> go = [&](std::int64_t left, int free) {
    if (left < 0 || free < 0) return;
    if (counts.size() == banks.size()) {
      best = std::min(best, sum_of(banks, counts));
      return;
    }
    const BankCurve& bank = banks[counts.size()];
    for (int n = bank.least; n < bank.least + static_cast<int>(bank.cost.size()); ++n) {
      counts.push_back(n);
      go(left - n * bank.bytes, free - n);
      counts.pop_back();
    }
  };
  go(bytes, slots);
  return best;
}

// Savings that never grow make a convex curve; the last ones may be losses.
std::vector<BankCurve> random_curves(Random& random, bool convex, bool equal_sizes) {
  std::vector<BankCurve> banks(static_cast<std::size_t>(pick(random, 1, 4)));
  for (BankCurve& bank : banks) {
    bank.least = pick(random, 0, 2);
    bank.bytes = equal_sizes ? 10 : pick(random, 1, 20);
    std::vector<double> savings(static_cast<std::size_t>(pick(random, 0, 6)));
    for (double& saving : savings) saving = uniform(random, -1, 4);
    if (convex) std::sort(savings.rbegin(), savings.rend());
    bank.cost = {uniform(random, -5, 30)};
    for (const double saving : savings) bank.cost.push_back(bank.cost.back() - saving);
  }
  return banks;
}

TEST(SelectCounts, ConvexCurves) {
  Random random(1);
  int exact = 0, unequal = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    const bool equal_sizes = trial % 2 == 0;
    const std::vector<BankCurve> banks = random_curves(random, true, equal_sizes);
    std::int64_t least_bytes = 0;
    int least = 0;
    double largest = 0;
    for (const BankCurve& bank : banks) {
      least_bytes += bank.least * bank.bytes;
      least += bank.least;
      for (std::size_t n = 1; n < bank.cost.size(); ++n) largest = std::max(largest, bank.cost[n - 1] - bank.cost[n]);
    }
    const std::int64_t bytes = least_bytes + pick(random, 0, 120);
    const int slots = least + (equal_sizes ? pick(random, 0, 12) : 100);
    const std::vector<int> counts = select_counts(banks, bytes, slots);
    EXPECT_LE(bytes_of(banks, counts), bytes);
    const double sum = sum_of(banks, counts), best = least_sum(banks, bytes, slots);
    EXPECT_LE(sum, best + (equal_sizes ? 1e-9 : largest)) << trial;
    exact += !equal_sizes && sum <= best + 1e-9 ? 1 : 0;
    unequal += equal_sizes ? 0 : 1;
  }
  EXPECT_GT(exact, unequal * 3 / 4);
}

// A limit of slots alone is met exactly, whatever the sizes.
TEST(SelectCounts, SlotsAlone) {
  Random random(2);
  for (int trial = 0; trial < 1000; ++trial) {
    const std::vector<BankCurve> banks = random_curves(random, true, false);
    const int slots = 8 + pick(random, 0, 10);
    const std::vector<int> counts = select_counts(banks, 1000000, slots);
    EXPECT_NEAR(sum_of(banks, counts), least_sum(banks, 1000000, slots), 1e-9) << trial;
  }
}

TEST(SelectCounts, MoreBytesNeverCostMore) {
  Random random(3);
  for (int trial = 0; trial < 1500; ++trial) {
    const bool convex = trial % 3 != 0;
    // Curves that are not convex keep the promise for equal sizes.
    const std::vector<BankCurve> banks = random_curves(random, convex, !convex || trial % 2 == 0);
    double last = std::numeric_limits<double>::infinity();
    for (std::int64_t bytes = 160; bytes < 400; bytes += 3) {
      const double sum = sum_of(banks, select_counts(banks, bytes, 100));
      EXPECT_LE(sum, last + 1e-9) << trial << " " << bytes;
      last = sum;
    }
  }
}

// The first expert of bank 0 saves little, both together much: the hull sees it.
TEST(SelectCounts, LooksPastASmallFirstStep) {
  const std::vector<BankCurve> banks{{0, 10, {10.0, 9.9, 0.0}}, {0, 10, {5.0, 4.0, 3.9}}};
  EXPECT_EQ(select_counts(banks, 20, 9), (std::vector<int>{2, 0}));
  EXPECT_EQ(select_counts(banks, 1000, 2), (std::vector<int>{2, 0}));
  EXPECT_EQ(select_counts(banks, 30, 9), (std::vector<int>{2, 1}));
}

TEST(SelectCounts, EqualSavingsAreSpreadAndLossesLeftOut) {
  const BankCurve flat{1, 10, {3.0, 2.0, 1.0, 0.0}};
  EXPECT_EQ(select_counts(std::vector<BankCurve>{flat, flat, flat}, 60, 100), (std::vector<int>{2, 2, 2}));
  EXPECT_EQ(select_counts(std::vector<BankCurve>{{0, 10, {3.0, 1.0, 1.0, 2.0}}}, 60, 100), (std::vector<int>{2}));
}

}  // namespace
}  // namespace tandem::testing
