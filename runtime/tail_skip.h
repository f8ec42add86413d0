// The lossy switch `lossy.tail_route_skip`: routes of little weight to experts off the card are not computed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/function_ref.h"
#include "runtime/ops.h"

namespace tandem {

// In each row, from the last rank up to rank kProtected, routes to experts off the card are dropped as long as the
// weights dropped come to at most the budget; the first one that does not fit ends it. The other weights stay as they
// are (docs/drafting.md, "Lossy switches", says why they are not scaled up).
class TailSkip {
 public:
  static constexpr std::size_t kProtected = 5;  // ranks that are always computed

  struct Counts {
    std::uint64_t rows = 0;  // rows of all banks: the weight that was routed
    std::uint64_t routes = 0, skipped = 0;
    double weight = 0;  // that was skipped
    double weight_share() const { return rows == 0 ? 0.0 : weight / static_cast<double>(rows); }
    double route_share() const {
      return routes == 0 ? 0.0 : static_cast<double>(skipped) / static_cast<double>(routes);
    }
    Counts operator-(const Counts& earlier) const {
      return {rows - earlier.rows, routes - earlier.routes, skipped - earlier.skipped, weight - earlier.weight};
    }
  };

  void set_budget(double budget) { budget_ = budget; }  // of 1, the weight of a row; 0: off
  double budget() const { return budget_; }
  bool on() const { return budget_ > 0; }
  // Puts -1 in the place of every expert that is dropped.
  void apply(const Routes& routes, FunctionRef<bool(std::int32_t)> on_card);
  const Counts& counts() const { return counts_; }

 private:
  double budget_ = 0;
  Counts counts_;
};

}  // namespace tandem
