// The norms of runtime/ops.h on the card, bit for bit those of ReferenceOps.
//
// When: every layer, about 10 launches each. How: a group of more than 256 values has a block, one warp per segment of
// 256 (R4), whose lanes meet in shared memory; smaller ones (heads) have a warp each. Measured: docs/performance.md.
#pragma once

#include "gpu/kernels/device_rows.h"

namespace tandem::gpu {

// Ops::rms_norm. y may be x. REQUIRES cols / groups <= 16384.
void rms_norm(ConstDeviceRows x, std::size_t groups, const float* gamma, float eps, DeviceRows y, DeviceStream stream);

// Ops::l2_norm. y may be x. REQUIRES dim <= 16384.
void l2_norm(ConstDeviceRows x, std::size_t dim, float eps, float scale, DeviceRows y, DeviceStream stream);

// Cosines and sines, [positions, rope_dims / 2] each, computed on the host (R6): row r of a launch uses row
// *first + r of them; null: row r.
struct DeviceRope {
  const float* cos = nullptr;
  const float* sin = nullptr;
  std::size_t half = 0;  // columns
  DeviceCount first = nullptr;
};

// Ops::norm_rope. REQUIRES dim <= 256, y not x.
void norm_rope(ConstDeviceRows x, std::size_t heads, std::size_t dim, std::size_t head_stride, const float* gamma,
               float eps, const DeviceRope& rope, DeviceRows y, DeviceStream stream);

// Ops::gdn_output. r may be o. REQUIRES dim <= 16384.
void gdn_output(ConstDeviceRows o, ConstDeviceRows z, const float* norm, std::size_t dim, float eps, DeviceRows r,
                DeviceStream stream);

}  // namespace tandem::gpu
