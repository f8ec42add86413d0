#include "placement/plan.h"

#include <algorithm>

namespace tandem {

std::int64_t ExpertPlacement::count(Place where) const {
  return std::count(place.begin(), place.end(), where);
}

ExpertPlacement all_in_ram(int banks, int experts) {
  return {banks, experts,
          std::vector<Place>(static_cast<std::size_t>(banks) * static_cast<std::size_t>(experts), Place::kRam)};
}

}  // namespace tandem
