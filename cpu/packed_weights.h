// The dense block-format matrices of loaded models in tile form, found by the address of their data in the mapped file.
#pragma once

#include <memory>
#include <unordered_map>

#include "runtime/ops.h"
#include "runtime/packed_matrix.h"

namespace tandem {

class PackedWeights {
 public:
  // Packs what is not packed yet. The matrices stay until the returned token is released as often as they were loaded.
  // `progress` hears of the bytes of this call alone.
  std::shared_ptr<void> load(const Model& model, const ParallelFor& parallel, const LoadProgress& progress);

  const PackedMatrix* matrix(const WeightView& view) const;  // nullptr: not loaded, or no tile layout

 private:
  struct Entry {
    PackedMatrix packed;
    int uses;
  };
  std::unordered_map<const std::uint8_t*, Entry> matrices_;
};

}  // namespace tandem
