// The dense matrices of loaded models on the card, found by the address of their data in the mapped file: block formats
// as tiles (the bytes of a PackedMatrix), float formats as they are.
#pragma once

#include <memory>
#include <unordered_map>

#include "gpu/cuda_memory.h"
#include "runtime/ops.h"
#include "runtime/packed_matrix.h"

namespace tandem {

class DeviceWeights {
 public:
  explicit DeviceWeights(MachineMemory& memory) : memory_(memory) {}
  // Puts there what is not there yet. The matrices stay until the returned token is released as often as they were
  // loaded. Throws InputError for a type that the card has no kernel for.
  std::shared_ptr<void> load(const Model& model, const ParallelFor& parallel, const LoadProgress& progress);
  // The matrix in the card's memory. REQUIRES that it is loaded.
  const std::uint8_t* data(const WeightView& view) const;

 private:
  struct Entry {
    Array<std::uint8_t> bytes;
    int uses = 0;
  };
  MachineMemory& memory_;
  std::unordered_map<const std::uint8_t*, Entry> matrices_;
};

}  // namespace tandem
