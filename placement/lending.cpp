#include "placement/lending.h"

#include <algorithm>
#include <numeric>

#include "placement/check.h"

namespace tandem {
namespace {

constexpr std::int64_t kAlignment = 64;  // of a blob

}  // namespace

std::int64_t cache_rows_needed(std::int64_t position, std::int64_t rows) {
  constexpr std::int64_t kWindow = kWindowRows;  // as many drafts may follow a window
  return position + std::max(rows, kWindow) + kWindow;
}

LentPlaces::LentPlaces(const Lending& lending)
    : cache_(lending.cache), prompt_bytes_(lending.bytes), ahead_(lending.cache_ahead) {
  CHECK(cache_.count == 0 || cache_.position_bytes > 0, "{} areas of rows of {} bytes", cache_.count,
        cache_.position_bytes);
  for (int i = 0; i < cache_.count; ++i) areas_.push_back({i * cache_.stride, {}});
}

std::int64_t LentPlaces::top(const Area& area) const {
  return area.held.empty() ? cache_.bytes / kAlignment * kAlignment : area.held.back().at;
}

std::optional<LentPlaces::Place> LentPlaces::take(Index who, std::int64_t bytes) {
  const auto roomiest =
      std::max_element(areas_.begin(), areas_.end(), [this](const Area& a, const Area& b) { return top(a) < top(b); });
  if (roomiest != areas_.end() && top(*roomiest) >= bytes) {
    const std::int64_t at = (top(*roomiest) - bytes) / kAlignment * kAlignment;
    if (at >= (needed_ + ahead_) * cache_.position_bytes) {
      roomiest->held.push_back({who, at});
      return Place{1 + static_cast<int>(roomiest - areas_.begin()), roomiest->first + at};
    }
  }
  if (bytes > prompt_bytes_ - prompt_used_) return std::nullopt;
  prompt_.push_back({who, prompt_used_});
  prompt_used_ += bytes;
  return Place{0, prompt_.back().at};
}

void LentPlaces::hand_over(int area, Index from, Index to) {
  std::vector<Held>& held = area == 0 ? prompt_ : areas_[static_cast<std::size_t>(area - 1)].held;
  const auto place = std::find_if(held.begin(), held.end(), [from](const Held& h) { return h.who == from; });
  CHECK(place != held.end(), "expert {} has no place in area {}", from, area);
  place->who = to;
}

void LentPlaces::free_prompt_memory(std::vector<Index>& out) {
  for (const Held& held : prompt_) out.push_back(held.who);
  prompt_.clear();
  prompt_used_ = 0;
}

void LentPlaces::need_cache(std::int64_t positions, std::vector<Index>& out) {
  needed_ = positions;
  for (Area& area : areas_) {
    while (!area.held.empty() && area.held.back().at < positions * cache_.position_bytes) {
      out.push_back(area.held.back().who);
      area.held.pop_back();
    }
  }
}

std::size_t LentPlaces::in_cache() const {
  std::size_t count = 0;
  for (const Area& area : areas_) count += area.held.size();
  return count;
}

std::vector<std::int32_t> hottest_first(std::span<const double> heat, std::span<const std::int64_t> expert_bytes) {
  CHECK(heat.size() % expert_bytes.size() == 0, "{} {}", heat.size(), expert_bytes.size());
  const std::size_t experts = heat.size() / expert_bytes.size();
  std::vector<double> worth(heat.size());
  for (std::size_t i = 0; i < worth.size(); ++i) worth[i] = heat[i] / static_cast<double>(expert_bytes[i / experts]);
  std::vector<std::int32_t> order(heat.size());
  std::iota(order.begin(), order.end(), 0);
  const auto of = [&](std::int32_t i) { return worth[static_cast<std::size_t>(i)]; };
  std::sort(order.begin(), order.end(),
            [&](std::int32_t a, std::int32_t b) { return of(a) != of(b) ? of(a) > of(b) : a < b; });
  return order;
}

std::vector<std::int32_t> lent_experts(std::span<const std::int32_t> order, std::span<const char> may,
                                       std::span<const std::int64_t> expert_bytes, LentPlaces& places) {
  CHECK(order.size() == may.size(), "{} {}", order.size(), may.size());
  const std::size_t experts = may.size() / expert_bytes.size();
  std::vector<std::int32_t> chosen;
  for (const std::int32_t i : order) {
    const auto at = static_cast<std::size_t>(i);
    if (may[at] != 0 && places.take(i, expert_bytes[at / experts])) chosen.push_back(i);
  }
  return chosen;
}

}  // namespace tandem
