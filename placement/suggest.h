// "Did you mean": the nearest of a list of names.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tandem {

// Insertions, deletions, substitutions and swaps of neighbours that turn one into the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

// The name with the smallest distance, or empty when none is nearer than half its length. An extension of `given`
// ("/he" for "/help") counts as near. Ties go to the earlier name.
std::string nearest_name(std::string_view given, std::span<const std::string> names);

}  // namespace tandem
