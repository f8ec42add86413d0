// The GPU as an Ops. No CUDA type here: callers build the same with and without CUDA.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/ops.h"
#include "runtime/packed_matrix.h"

namespace tandem {

struct GpuOptions {
  int device = 0;
  bool graphs = true;           // record passes of a window's width once and run the record again
  bool early_starts = true;     // kernels may come before the one ahead has ended, on cards that can
  bool verify_experts = false;  // compute one expert of every layer and pass on the CPU too (gpu/expert_check.h)
  // The CPU machine that computes the experts off the card, and a loop over its workers for loading.
  std::shared_ptr<Ops> crew;
  ParallelFor parallel;
};

// Null when the device cannot be used; *why_not then holds the reason as the end of a sentence ("this build has no GPU
// support").
std::unique_ptr<Ops> make_gpu_ops(const GpuOptions& options, std::string* why_not);

// One card, as the driver tells.
struct GpuCard {
  int device = 0;
  std::string name;
  int major = 0, minor = 0;  // compute capability
  std::size_t bytes = 0, free_bytes = 0;
  std::string problem;  // why it cannot be used, as the end of a sentence; empty: it can
};
// What is known of a card without measuring: name, architecture, memory. REQUIRES a card that can be used.
Hardware::Gpu card_facts(int device);
// The same with bandwidths measured: of its memory, and of PCIe both ways. None with the reason in *why_not when it
// cannot be used.
std::optional<Hardware::Gpu> probe_gpu(int device, std::string* why_not);
// All cards; empty with the reason in *why_not when there are none.
std::vector<GpuCard> list_gpus(std::string* why_not);

}  // namespace tandem
