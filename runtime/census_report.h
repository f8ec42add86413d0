// A census as one web page that needs nothing else: heat map, coverage, domains, predicted hits.
#pragma once

#include <string>

#include "placement/census.h"

namespace tandem {

std::string census_report(const Census& census, const std::string& name);

}  // namespace tandem
