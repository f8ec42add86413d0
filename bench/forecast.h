// What the cost model says of the passes that bench_round times, and how far it is off.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "placement/cost_model.h"
#include "runtime/model.h"

namespace tandem::bench {

// The planner's input for passes on this machine, which REQUIRES a card. Routes fall as the census says; empty: evenly.
PlanInput forecast_input(const Model& model, const Hardware& hardware, const std::string& census);

struct PassForecast {
  double seconds = 0;  // of a pass that is not sampled and drafts nothing
  double crew = 0;     // the crew's computing in it, as bench_round counts it
};
// REQUIRES a cost model that is known(), and its loads of a pass of `rows` rows.
PassForecast forecast(const CostModel& costs, const std::vector<BankLoad>& loads, std::size_t rows, double start_us);

// The fields of one line of a CSV file; quotes around a field and doubled ones within are taken off.
std::vector<std::string> csv_fields(const std::string& line);

// Where f is least, from `start` on, by the simplex of Nelder and Mead; `steps` are the first distances, none 0.
// REQUIRES start.size() == steps.size() > 0.
std::vector<double> minimise(const std::function<double(std::span<const double>)>& f, std::vector<double> start,
                             std::span<const double> steps, std::size_t evaluations);

}  // namespace tandem::bench
