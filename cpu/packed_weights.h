// The block-format matrices of loaded models in tile form, found by the address of their data in the mapped file.
#pragma once

#include <memory>
#include <unordered_map>

#include "runtime/expert_blob.h"
#include "runtime/ops.h"

namespace tandem {

// The routed experts of one layer, one blob each.
class PackedBank {
 public:
  PackedBank(const ExpertBank& bank, const ParallelFor& parallel);
  const ExpertBlobLayout& layout() const { return layout_; }
  const std::uint8_t* blob(std::int32_t expert) const {
    return memory_.get() + static_cast<std::size_t>(expert) * layout_.bytes;
  }

 private:
  ExpertBlobLayout layout_;
  std::unique_ptr<std::uint8_t, void (*)(void*)> memory_;
};

class PackedWeights {
 public:
  // Packs what is not packed yet. The matrices stay until the returned token is released as often as they were loaded.
  std::shared_ptr<void> load(const Model& model, const ParallelFor& parallel, const LoadProgress& progress);

  const PackedMatrix* matrix(const WeightView& view) const;  // nullptr: not loaded, or no tile layout
  const PackedBank* bank(const ExpertBank& bank) const;

 private:
  template <typename T>
  struct Entry {
    T packed;
    int uses;
  };
  std::unordered_map<const std::uint8_t*, Entry<PackedMatrix>> matrices_;
  std::unordered_map<const std::uint8_t*, Entry<PackedBank>> banks_;
};

}  // namespace tandem
