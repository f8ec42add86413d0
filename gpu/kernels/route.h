// The router on the card (Ops::route), bit for bit that of ReferenceOps; ties to the lower expert (R9).
//
// When: once per layer. How: a warp per row holds all logits in registers as ordered integers. The lanes' best bound
// what can be chosen; the few logits that reach the bound are ranked by counting. Where many are equal, the best is
// taken `used` times. Measured: docs/performance.md.
#pragma once

#include "gpu/kernels/device_rows.h"

namespace tandem::gpu {

// expert, weight [logits.rows, used]. *bad is lowered to the first row with a NaN (atomicMin: the caller sets it to
// INT32_MAX before); what is written for such a row means nothing. REQUIRES logits.cols <= 512, 1 <= used <= 32,
// used <= logits.cols.
void route(ConstDeviceRows logits, std::size_t used, std::int32_t* expert, float* weight, std::int32_t* bad,
           DeviceStream stream);

}  // namespace tandem::gpu
