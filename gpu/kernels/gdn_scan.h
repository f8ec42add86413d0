// The delta rule on the card (Ops::gdn_scan), bit for bit that of ReferenceOps.
//
// When: once per GDN layer, for a pass of any number of rows. How: column j of a head's state depends on no other, so a
// block owns 32 columns of one head: a thread holds the 32 key elements of one segment of one column in registers over
// all rows, replayed ones first, and the segments of a column sit in neighbouring lanes (R7: chains of 32, tree over
// them). The state is read once and written once. Measured: docs/performance.md.
#pragma once

#include "gpu/kernels/device_rows.h"

namespace tandem::gpu {

struct DeviceGdnScan {
  std::size_t key_heads = 0, value_heads = 0, dim = 0;
  float* state = nullptr;                            // as GdnScan
  ConstDeviceRows replay_k, replay_u, replay_decay;  // room for the most rows that may be replayed
  DeviceCount replay_count = nullptr;                // how many are; null: all of replay_k.rows
  ConstDeviceRows q, k, v, decay, beta;
  DeviceRows out;
  DeviceRows log_u;  // as GdnScan; may be the memory of replay_u
};

// REQUIRES dim <= 128, replay_k.rows <= 16.
void gdn_scan(const DeviceGdnScan& scan, DeviceStream stream);

}  // namespace tandem::gpu
