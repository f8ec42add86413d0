// Key/value storage and attention over lists of positions on the card (Ops::kv_store, Ops::attention), bit for bit
// those of ReferenceOps.
//
// When: once per attention layer. How: three launches. (1) Scores: a block takes one or more segments of 64 list
// entries of a row and up to 6 heads of one kv head, a warp per entry, whose lanes are those of R4. (2) Sums: a thread
// per value column runs the entries of a segment in order, and an extra warp the weights. (3) The tree over the
// segments, the division and the gate. List lengths are read on the card: the grid is sized for the longest, idle
// blocks leave at once. Measured: docs/performance.md.
#pragma once

#include "gpu/kernels/device_rows.h"

namespace tandem::gpu {

// KvView on the card: position-major rows of kv_heads * head_dim values, half floats or floats.
struct DeviceKv {
  bool half = true;
  void* k = nullptr;
  void* v = nullptr;
  std::size_t kv_heads = 0;
  std::size_t head_dim = 0;
  std::size_t capacity = 0;  // positions
};

// Ops::kv_store at positions *position .. *position + k.rows - 1; rows beyond the capacity are dropped.
void kv_store(const DeviceKv& kv, DeviceCount position, ConstDeviceRows k, ConstDeviceRows v, DeviceStream stream);

// Bytes of work memory that `attention` needs for `rows` rows of `heads` heads whose lists have at most `longest`
// entries.
std::size_t attention_bytes(std::size_t rows, std::size_t heads, std::size_t head_dim, std::size_t longest);

// Ops::attention. `longest` bounds the lists' lengths (of a list with more entries only so many count); `work` has
// attention_bytes(q.rows, heads, head_dim, longest) bytes, aligned to 16. REQUIRES head_dim <= 256.
void attention(ConstDeviceRows q, const DeviceKv& kv, const DeviceLists& lists, std::size_t longest, float scale,
               ConstDeviceRows gate, std::size_t gate_stride, DeviceRows out, void* work, DeviceStream stream);

}  // namespace tandem::gpu
