#include "placement/suggest.h"

#include <algorithm>
#include <vector>

namespace tandem {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Rows of the usual table: before_previous, previous, current.
  std::vector<std::size_t> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) current[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, previous);
    std::swap(previous, current);
    current[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0U : 1U);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        current[j] = std::min(current[j], before[j - 2] + 1);
      }
    }
  }
  return current[b.size()];
}

std::string nearest_name(std::string_view given, std::span<const std::string> names) {
  std::string best;
  std::size_t best_distance = 0;
  for (const std::string& name : names) {
    const bool extends = !given.empty() && name.starts_with(given);
    const std::size_t distance = extends ? 0 : edit_distance(given, name);
    if (2 * distance > name.size()) continue;
    if (best.empty() || distance < best_distance) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace tandem
