// READ of a hyper-connection module in three launches (Ops::hc_read): the WRITE that waits, norm and R2; down, inject
// and R2 of the low rank; up, mix and R2 of the result. The bits are those of the sequence of single operations.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/kernels/device_rows.h"
#include "gpu/kernels/float_matmul.h"
#include "gpu/kernels/tile_product.h"

namespace tandem {

// Rows to be quantised, and the word that notes the first one that is not finite (as launch_quantize).
struct HcQuant {
  std::int8_t* q = nullptr;
  float* d = nullptr;
  std::int32_t* s = nullptr;
  std::int32_t* bad = nullptr;
};

inline constexpr std::size_t kHcRows = 16, kHcStreams = 4;

// Work memory of a READ: one READ at a time. `arrived` is zero before and after.
struct HcScratch {
  HcQuant normed_q, low_q;
  float* partial = nullptr;
  std::uint32_t* arrived = nullptr;
  std::size_t arrived_bytes = 0;
};
// For modules of at most `wide` = streams * d columns and that rank. `memory`: aligned to 256 bytes; the caller zeroes
// `arrived` once.
std::size_t hc_scratch_bytes(std::size_t wide, std::size_t rank);
HcScratch make_hc_scratch(void* memory, std::size_t wide, std::size_t rank);

struct DeviceHcRead {
  float eps = 0;
  const float* gamma = nullptr;
  DeviceRows x;
  ConstDeviceRows written, written_inject;  // empty: nothing waits
  DeviceTiles down, up;
  // [streams, D] of a float type, or null: the module has none, or its product is somebody else's
  const void* inject_weights = nullptr;
  gpu::FloatType inject_type = gpu::FloatType::kF32;
  float inject_scale = 1.0F;
  DeviceRows normed, low, inject, mixed;
  HcQuant mixed_q;
  HcScratch scratch;  // with the words for values that are not finite
};

// Whether there are kernels for it: the types, shapes and widths that occur. Otherwise: the single operations.
bool can_fuse_hc_read(DType down, DType up, std::size_t rows, std::size_t streams, std::size_t d, std::size_t rank);
// Once per device, not within a pass.
void load_hc_kernels();
// The three launches, in this order. The first does everything for x, normed and its quantised form.
void launch_hc_norm(const DeviceHcRead& read, DeviceStream stream);
void launch_hc_down(const DeviceHcRead& read, DeviceStream stream);
void launch_hc_up(const DeviceHcRead& read, DeviceStream stream);

}  // namespace tandem
