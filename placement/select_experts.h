// How many of its hottest experts each bank keeps on the card: the choice that the planner makes once all other bytes
// are known.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tandem {

// cost[n] is a bank's cost with `least + n` experts on the card; it covers every count that the bank allows.
struct BankCurve {
  int least = 0;             // pins and floor
  std::int64_t bytes = 0;    // of one expert
  std::vector<double> cost;  // at least one value
};

// Counts that minimise the sum of the banks' costs within `bytes` and `slots` (for all banks together, the least counts
// included). REQUIRES that the least counts fit.
//
// Steps of one more expert are taken in the order of cost saved; where a step saves less than a later one of the same
// bank, both count with their mean (the curve's lower hull). When the bytes do not suffice for that, they are taken in
// the order of cost saved per byte instead, and a step that does not fit closes its bank. A bank never keeps experts
// that make its cost higher.
// More bytes never give a higher sum, and with convex curves
//   equal sizes, or bytes or slots for all    the sum is the least possible;
//   unequal sizes, and slots for all          it is above that by less than the largest saving of one step.
std::vector<int> select_counts(std::span<const BankCurve> banks, std::int64_t bytes, int slots);

}  // namespace tandem
