// Which experts a benchmark puts on the card.
#pragma once

#include <string>

#include "placement/plan.h"
#include "runtime/model.h"

namespace tandem::bench {

// `share` of all experts, drawn at random: the same ones in every run.
ExpertPlacement random_placement(const Model& model, double share);
// The same share of every layer, those first that the census at `path` counts most.
ExpertPlacement hottest(const Model& model, const std::string& path, double share);

}  // namespace tandem::bench
