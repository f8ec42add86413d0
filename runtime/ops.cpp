#include "runtime/ops.h"

#include <algorithm>

#include "runtime/expert_store.h"

namespace tandem {

LoadedModel Ops::load(const Model&, const LoadOptions&) {
  return {};
}

RouteSplit Ops::split_routes(const ExpertBank&, const ExpertStore* store, int index, const Routes& routes,
                             const Routes& hits, const Routes& misses, std::int32_t* log) {
  const std::size_t count = routes.rows * routes.used;
  std::copy_n(routes.expert, count, log);
  if (store != nullptr) return store->split(index, routes, hits, misses);
  std::copy_n(routes.expert, count, hits.expert);
  return {.hits = true, .misses = false};
}

}  // namespace tandem
