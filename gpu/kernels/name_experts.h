// Which experts a layer will probably ask for, named while the layer before it still runs: the router of the next layer
// on the input of this one's.
//
// When: once per layer of a recorded pass, where experts in RAM are fetched ahead (gpu/expert_fetch.h), beside the
// layer's own router, on another stream. How: the grid is that of the product; the last block to end routes each row,
// takes what is off the card, the largest sums of weights first, and tells the host. No result depends on it. Measured:
// docs/decisions.md, 2026-12-01.
#pragma once

#include "gpu/kernels/device_rows.h"
#include "gpu/kernels/float_matmul.h"

namespace tandem::gpu {

inline constexpr std::size_t kNames = 4;  // experts named for a layer, at most

struct NameArgs {
  FloatType type = FloatType::kF32;
  FloatMatmul router;  // of the next layer; y: work memory [x.rows, experts]
  ConstDeviceRows x;
  std::size_t used = 0;                        // experts of a row
  const std::uint8_t* const* slots = nullptr;  // [experts] of the next layer: null off the card
  // The names, the best first, -1: no more; in the card's memory, and in page-locked host memory, where then the
  // meeting's number is stored to `bell` (st.release.sys).
  std::int32_t* list = nullptr;  // [kNames]
  std::int32_t* told = nullptr;  // [kNames]
  std::uint32_t* bell = nullptr;
  std::uint32_t index = 0;                      // of the next layer's meeting, as gpu/kernels/meeting.h has it
  const std::uint32_t* first_number = nullptr;  // of the pass, in the card's memory
  std::int32_t* bad_row = nullptr;              // a word that nobody reads
  std::uint32_t* arrived = nullptr;             // a word that is 0, and is again afterwards
};
// REQUIRES what gpu::router requires of x and used.
void name_experts(const NameArgs& args, DeviceStream stream);

// The experts that were fetched for a meeting, for its router: list[i] is at places + i * stride where tag[i] is the
// meeting's number.
struct FetchedExperts {
  const std::uint32_t* tag = nullptr;  // [kNames], as list, in the card's memory; null: none are fetched
  const std::int32_t* list = nullptr;
  const std::uint8_t* places = nullptr;
  std::size_t stride = 0;
};

}  // namespace tandem::gpu
