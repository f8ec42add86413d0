// The gate of the n-gram embedding on the card (Ops::ple_gate), bit for bit that of ReferenceOps.
//
// When: in the one layer that has it. How: a block per row and stream, a warp per segment of the product (R4).
// Measured: docs/performance.md.
#pragma once

#include "gpu/kernels/device_rows.h"

namespace tandem::gpu {

// REQUIRES value.cols <= 16384.
void ple_gate(ConstDeviceRows key, ConstDeviceRows query, ConstDeviceRows value, int streams, DeviceRows gv,
              DeviceStream stream);

}  // namespace tandem::gpu
