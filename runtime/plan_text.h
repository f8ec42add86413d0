// A plan for people and for programs: what `tandem plan` and `/plan` print.
#pragma once

#include <string>
#include <vector>

#include "placement/plan.h"

namespace tandem {

// Another plan of the same model, beside the first: --what-if vram=16GiB,ram=32GiB.
struct WhatIf {
  std::string label;
  Plan plan;
};

struct PlanReport {
  std::string model;     // file
  std::string hardware;  // name of the machine, or "this machine"
  PlanInput input;
  Plan plan;
  std::vector<WhatIf> what_ifs;
};

// At most 100 columns, ends with a newline.
std::string plan_text(const PlanReport& report);
// The experts of one layer that are on the card, hottest first, with their share of the layer's routes.
// REQUIRES 0 <= bank < number of banks.
std::string explain_layer(const PlanReport& report, int bank);
std::string plan_json(const PlanReport& report);

}  // namespace tandem
