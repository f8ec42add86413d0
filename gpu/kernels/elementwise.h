// The element-by-element operations of runtime/ops.h on the card, bit for bit those of ReferenceOps.
//
// When: every layer. How: a thread per column and row; what they cost is the launch. Measured: docs/performance.md.
#pragma once

#include "gpu/kernels/device_rows.h"

namespace tandem::gpu {

// Ops::hc_low, hc_mix, hc_write.
void hc_low(DeviceRows lo, int streams, DeviceStream stream);
void hc_mix(ConstDeviceRows normed, ConstDeviceRows gate, int streams, DeviceRows mixed, DeviceStream stream);
void hc_write(DeviceRows x, ConstDeviceRows y, ConstDeviceRows inject, int streams, DeviceStream stream);

// Ops::gdn_gates.
void gdn_gates(DeviceRows alpha, DeviceRows beta, const float* dt_bias, const float* a, DeviceStream stream);

// Rows of y that the crew has: those with miss >= 0, in host memory that both sides map, tight. They are read past all
// caches, as the other side has written them while the pass ran.
struct CrewRows {
  const std::int32_t* miss = nullptr;  // [rows, used]; null: there are none
  const float* y = nullptr;            // [rows * used, d]
};
// Ops::combine. expert, weight [rows, used], y [rows * used, d].
void combine(const std::int32_t* expert, const float* weight, std::size_t used, ConstDeviceRows y,
             ConstDeviceRows shared_logit, ConstDeviceRows shared, DeviceRows out, DeviceStream stream,
             const CrewRows& crew = {});

// Ops::add2, tile_streams, add_streams, pair_streams, mean_pool.
void add2(DeviceRows x, ConstDeviceRows a, ConstDeviceRows b, DeviceStream stream);
void tile_streams(ConstDeviceRows a, int streams, DeviceRows x, DeviceStream stream);
void add_streams(DeviceRows x, ConstDeviceRows a, int streams, DeviceStream stream);
void pair_streams(ConstDeviceRows a, ConstDeviceRows h, int streams, DeviceRows out, DeviceStream stream);
void mean_pool(ConstDeviceRows x, std::size_t ratio, DeviceRows y, DeviceStream stream);

}  // namespace tandem::gpu
