#include "bench/noise.h"

#include <cmath>
#include <numbers>

namespace tandem::bench {

double Draws::normal() {
  const double radius = std::sqrt(-2.0 * std::log(uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * uniform());
}

}  // namespace tandem::bench
