#include "cpu/packed_weights.h"

#include <vector>

#include "runtime/model_visit.h"

namespace tandem {

std::shared_ptr<void> PackedWeights::load(const Model& model, const ParallelFor& parallel,
                                          const LoadProgress& progress) {
  std::vector<const WeightView*> views;
  std::size_t total = 0, done = 0;
  for_each_matrix(model, [&](const WeightView& view) {
    if (!has_tile_layout(view.type)) return;
    views.push_back(&view);
    total += view.bytes();
  });
  std::vector<const std::uint8_t*> keys;
  for (const WeightView* view : views) {
    auto found = matrices_.find(view->data);
    if (found == matrices_.end()) {
      found = matrices_.emplace(view->data, Entry{pack_matrix(*view, parallel), 0}).first;
      model.release(view->data, view->bytes());
    }
    ++found->second.uses;
    keys.push_back(view->data);
    done += view->bytes();
    if (progress) progress(done, total);
  }
  const auto release = [this, keys](void*) {
    for (const std::uint8_t* key : keys)
      if (const auto found = matrices_.find(key); --found->second.uses == 0) matrices_.erase(found);
  };
  return {static_cast<void*>(this), release};
}

const PackedMatrix* PackedWeights::matrix(const WeightView& view) const {
  const auto found = matrices_.find(view.data);
  if (found == matrices_.end()) return nullptr;
  const PackedMatrix& packed = found->second.packed;
  return packed.type == view.type && packed.rows == view.rows && packed.cols == view.cols ? &packed : nullptr;
}

}  // namespace tandem
