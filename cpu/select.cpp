#include "cpu/select.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace tandem {

void top_k_sorted(const float* scores, std::size_t n, std::size_t k, std::int32_t* out) {
  thread_local std::vector<std::int32_t> order;
  order.resize(n);
  std::iota(order.begin(), order.end(), 0);
  const auto before = [scores](std::int32_t a, std::int32_t b) {
    return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
  };
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k), order.end(), before);
  std::copy_n(order.begin(), k, out);
}

std::int32_t write_positions(const float* scores, std::size_t complete, std::size_t visible, std::size_t ratio,
                             std::size_t blocks, std::int32_t* out) {
  std::int32_t count = 0;
  if (complete <= blocks) {
    for (std::size_t p = 0; p < visible; ++p) out[count++] = static_cast<std::int32_t>(p);
    return count;
  }
  thread_local std::vector<std::int32_t> chosen;
  chosen.resize(blocks);
  top_k_sorted(scores, complete, blocks, chosen.data());
  std::sort(chosen.begin(), chosen.end());
  for (const std::int32_t block : chosen)
    for (std::size_t j = 0; j < ratio; ++j)
      out[count++] = block * static_cast<std::int32_t>(ratio) + static_cast<std::int32_t>(j);
  for (std::size_t p = complete * ratio; p < visible; ++p) out[count++] = static_cast<std::int32_t>(p);
  return count;
}

}  // namespace tandem
