// A census as text for a terminal: heat map, coverage, comparison.
#pragma once

#include <string>

#include "placement/census.h"

namespace tandem {

enum class HeatStyle { kAscii, k256, kTrueColor };

struct CensusViewOptions {
  std::string domain;  // empty: all together
  int layer = -1;      // >= 0: this bank in detail
  HeatStyle style = HeatStyle::kAscii;
  int width = 80;
};

// Throws InputError for a domain or layer that the census does not have.
std::string show_census(const Census& census, const CensusViewOptions& options);

// One line per domain and phase with the share of routes that the hottest experts carry.
std::string census_summary(const Census& census);

// Two sides of the same shape; domain empty: all together.
struct CensusSide {
  const Census* census = nullptr;
  std::string domain, label;
};
std::string diff_census(const CensusSide& a, const CensusSide& b);

// Throws InputError for a domain that the census lacks; it names those that it has.
void require_domain(const Census& census, const std::string& domain, std::string_view where);

}  // namespace tandem
