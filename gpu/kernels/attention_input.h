// From an attention layer's products to the KV storage in one launch (Ops::attention_input), bit for bit what norm_rope
// of q and k and kv_store give.
//
// When: once per attention layer. How: a warp per row and head of q, k and v. Measured: docs/decisions.md, 2026-11-30.
#pragma once

#include "gpu/kernels/attention.h"
#include "gpu/kernels/device_rows.h"
#include "gpu/kernels/norms.h"

namespace tandem::gpu {

// As AttentionInput of runtime/ops.h.
struct DeviceAttentionInput {
  std::size_t heads = 0, head_stride = 0;
  ConstDeviceRows q, k, v;
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  float eps = 0;
  DeviceRope rope;
  DeviceKv kv;
  DeviceCount position = nullptr;  // rows beyond the capacity are dropped
  DeviceRows q_rot;
};
// REQUIRES kv.head_dim <= 256, as norm_rope and kv_store.
void attention_input(const DeviceAttentionInput& in, DeviceStream stream);

}  // namespace tandem::gpu
