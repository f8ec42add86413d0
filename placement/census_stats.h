// Figures about shares of routes: how concentrated they are, how much two of them agree, what a card would hit.
#pragma once

#include <span>
#include <vector>

#include "placement/census.h"

namespace tandem {

// Banks that have counts in `domain` (empty: in any), over prefill and decode.
std::vector<int> counted_banks(const Census& census, const std::string& domain);

// How many experts a fraction of `experts` is: the nearest number, at least 1.
int hottest_count(int experts, double fraction);
// The experts of a bank by share, the largest first; ties to the lower index.
std::vector<int> hottest_first(const RouteShares& shares, int bank);
// Share of the bank's routes that its hottest `fraction` of experts carries.
double coverage(const RouteShares& shares, int bank, double fraction);

// Of the hottest `fraction` of experts in both, the part that is the same.
double hot_overlap(const RouteShares& a, const RouteShares& b, int bank, double fraction);
// Half the sum of |a - b|: the part of the routes that goes elsewhere. 0 for equal shares, 1 for disjoint ones.
double total_variation(const RouteShares& a, const RouteShares& b, int bank);

// Share of all routes of `banks` that hits when the `slots` experts with the largest shares over all of them are on the
// card: element n is for n slots, 0 .. banks * experts. Experts of one size are assumed.
std::vector<double> hit_curve(const RouteShares& shares, std::span<const int> banks);
// The same with the order taken from `order`: a card filled for one text and used for another.
std::vector<double> hit_curve(const RouteShares& shares, const RouteShares& order, std::span<const int> banks);

}  // namespace tandem
