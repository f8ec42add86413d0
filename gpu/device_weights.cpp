#include "gpu/device_weights.h"

#include <vector>

#include "runtime/model_visit.h"

namespace tandem {

std::shared_ptr<void> DeviceWeights::load(const Model& model, const ParallelFor& parallel,
                                          const LoadProgress& progress) {
  std::vector<const WeightView*> views;
  std::size_t total = 0, done = 0;
  for_each_matrix(model, [&](const WeightView& view) {
    if (!has_tile_layout(view.type) && dtype_info(view.type).kind != DTypeKind::kFloat)
      fail_input(
          "tensor {}: expected a type that the card has kernels for, found {}. Fix: --device cpu, or a file of "
          "another type",
          view.name, dtype_name(view.type));
    views.push_back(&view);
    total += view.bytes();
  });
  std::vector<const std::uint8_t*> keys;
  for (const WeightView* view : views) {
    auto found = matrices_.find(view->data);
    if (found == matrices_.end()) {
      Entry entry;
      if (has_tile_layout(view->type)) {
        const PackedMatrix packed = pack_matrix(*view, parallel);
        entry.bytes = Array<std::uint8_t>::of(memory_, {packed.data(), packed.bytes()});
      } else {
        entry.bytes = Array<std::uint8_t>::of(memory_, {view->data, view->bytes()});
      }
      model.release(view->data, view->bytes());
      found = matrices_.emplace(view->data, std::move(entry)).first;
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

const std::uint8_t* DeviceWeights::data(const WeightView& view) const {
  const auto found = matrices_.find(view.data);
  CHECK(found != matrices_.end(), "{} is not on the card", view.name);
  return found->second.bytes.data();
}

}  // namespace tandem
