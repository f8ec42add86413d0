#include "gpu/zero_copy.h"

#include <algorithm>

namespace tandem {

namespace {
// Published and awaited with a miss, less the crew's own time (H200, bench_handoff: 20.5 us in all for an answer that
// takes no time).
constexpr double kMeeting = 20e-6;
// Looking at the work and waking up, where the line is not known: one number of experts says nothing of its slope.
constexpr double kCrewStart = 15e-6;
constexpr double kFade = 0.998;
constexpr double kLeast = 16;  // meetings before the line is trusted
}  // namespace

double ZeroCopyShare::Line::at(double experts) const {
  const double spread = mm - m * m / n;
  double slope = 0, start = kCrewStart;
  if (spread > 0.05 * n) {
    slope = (mt - m * t / n) / spread;
    start = (t - slope * m) / n;
  }
  if (slope <= 0 || start < 0) {  // noise, or all meetings alike
    start = std::min(kCrewStart, t / n);
    slope = (t / n - start) / (m / n);
  }
  return start + slope * experts;
}

void ZeroCopyShare::crew_took(std::size_t rows, std::size_t experts, double seconds) {
  Line& line = lines_[std::min(rows, kMaxWindow)];
  const auto x = static_cast<double>(experts);
  for (double* sum : {&line.n, &line.m, &line.mm, &line.t, &line.mt}) *sum *= kFade;
  line.n += 1;
  line.m += x;
  line.mm += x * x;
  line.t += seconds;
  line.mt += x * seconds;
}

std::size_t ZeroCopyShare::takes(std::size_t rows, std::size_t missed) const {
  const Line& line = lines_[rows];
  if (card_ <= 0 || line.n < kLeast) return 0;
  std::size_t best = 0;
  double least = 0;
  for (std::size_t z = 0; z <= missed; ++z) {
    const double crew = missed > z ? kMeeting + line.at(static_cast<double>(missed - z)) : 0.0;
    const double time = std::max(static_cast<double>(z) * card_, crew);
    if (z > 0 && time >= least) continue;
    best = z;
    least = time;
  }
  return best;
}

gpu::TakeTable ZeroCopyShare::table(std::size_t rows) const {
  gpu::TakeTable table;
  for (std::size_t m = 0; m < gpu::TakeTable::kEntries; ++m) table.take[m] = static_cast<std::uint8_t>(takes(rows, m));
  return table;
}

}  // namespace tandem
