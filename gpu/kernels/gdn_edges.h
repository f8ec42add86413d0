// What a GDN layer does before and after its scan, in a launch each (Ops::gdn_input, Ops::gdn_result), bit for bit what
// the single operations give.
//
// When: once per GDN layer. How: a warp per row and head. It convolves a head's columns and norms them without leaving
// its registers; after the scan it norms, gates and quantises them. Warps beyond the heads do the gates and the log.
// Measured: docs/decisions.md, 2026-11-30.
#pragma once

#include "gpu/kernels/device_rows.h"

namespace tandem::gpu {

// Heads that both take, and taps.
inline constexpr std::size_t kMaxEdgeDim = 256, kMaxEdgeTaps = 8;

// As GdnInput of runtime/ops.h. The columns of the keys and queries of `conv` are not written. window: the rows of qkv
// become its first ones; null: no log.
struct DeviceGdnInput {
  std::size_t key_heads = 0, dim = 0;
  DeviceRows alpha, beta;
  const float* dt_bias = nullptr;
  const float* a = nullptr;
  ConstDeviceRows qkv, taps, history;
  float* window = nullptr;
  float eps = 0, scale = 0;
  DeviceRows conv, q, k;
};
// REQUIRES dim <= kMaxEdgeDim, taps.rows <= kMaxEdgeTaps, history.rows = taps.rows - 1.
void gdn_input(const DeviceGdnInput& in, DeviceStream stream);

// As GdnResult of runtime/ops.h. q_codes null: not wanted. *bad is lowered to the first row that holds a value that is
// not finite, as by launch_quantize.
struct DeviceGdnResult {
  std::size_t dim = 0;
  DeviceRows o;
  ConstDeviceRows z;
  const float* norm = nullptr;
  float eps = 0;
  std::int8_t* q_codes = nullptr;
  float* q_scales = nullptr;
  std::int32_t* q_sums = nullptr;
  std::int32_t* bad = nullptr;
  ConstDeviceRows k, decay;
  float* log_k = nullptr;
  float* log_decay = nullptr;
};
// REQUIRES dim <= kMaxEdgeDim, dim % 32 == 0 where q_codes is given.
void gdn_result(const DeviceGdnResult& r, DeviceStream stream);

}  // namespace tandem::gpu
