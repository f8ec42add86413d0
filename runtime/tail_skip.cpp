#include "runtime/tail_skip.h"

namespace tandem {

void TailSkip::apply(const Routes& routes, FunctionRef<bool(std::int32_t)> on_card) {
  for (std::size_t r = 0; r < routes.rows; ++r) {
    std::int32_t* expert = routes.expert + r * routes.used;
    const float* weight = routes.weight + r * routes.used;
    double dropped = 0;
    for (std::size_t k = routes.used; k > kProtected; --k) {
      if (on_card(expert[k - 1])) continue;
      const auto more = static_cast<double>(weight[k - 1]);
      if (dropped + more > budget_) break;
      dropped += more;
      expert[k - 1] = -1;
      ++counts_.skipped;
    }
    counts_.weight += dropped;
  }
  counts_.rows += routes.rows;
  counts_.routes += routes.rows * routes.used;
}

}  // namespace tandem
