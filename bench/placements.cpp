#include "bench/placements.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "placement/census.h"
#include "placement/check.h"

namespace tandem::bench {

ExpertPlacement random_placement(const Model& model, double share) {
  ExpertPlacement placement = all_in_ram(model.shape.layers + model.shape.mtp_layers, model.shape.experts);
  std::mt19937 random(5);
  std::uniform_real_distribution<double> draw(0.0, 1.0);
  for (Place& place : placement.place) place = draw(random) < share ? Place::kCard : Place::kRam;
  return placement;
}

ExpertPlacement hottest(const Model& model, const std::string& path, double share) {
  const Census census = load_census(path);
  ExpertPlacement placement = all_in_ram(model.shape.layers + model.shape.mtp_layers, model.shape.experts);
  if (census.banks < placement.banks || census.experts != placement.experts)
    fail_input("{}: expected {} x {} experts, found {} x {}", path, placement.banks, placement.experts, census.banks,
               census.experts);
  const CensusPart part{&census, {}, 1.0};
  const RouteShares shares = mix_shares({&part, 1});
  std::vector<int> order(static_cast<std::size_t>(placement.experts));
  for (int b = 0; b < placement.banks; ++b) {
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int x, int y) { return shares.at(b, x) > shares.at(b, y); });
    for (std::size_t i = 0; i < static_cast<std::size_t>(std::lround(share * placement.experts)); ++i)
      placement.at(b, order[i]) = Place::kCard;
  }
  return placement;
}

}  // namespace tandem::bench
