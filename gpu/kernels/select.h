// Which positions a row attends to, on the card (Ops::select_positions, Ops::all_positions), and the pooled indexer
// keys that the selection reads. Bit for bit ReferenceOps; ties to the lower block (R9).
//
// When: once per attention layer. How: two launches. (1) Scores: a warp per four pooled blocks, up to 16 (row, head)
// products summed over its lanes at once. (2) One block of threads per row finds the score of rank `blocks` bit by bit,
// two bits a step, counting in registers (up to 16384 blocks; from memory beyond), and writes the positions in order.
// Measured: docs/performance.md.
#pragma once

#include "gpu/kernels/device_rows.h"
#include "gpu/kernels/history.h"

namespace tandem::gpu {

// Ops::select_positions with the position read on the card. pooled [most complete blocks, dim] is the whole cache;
// scores is work memory [q.rows, pooled.rows]. A row of `bad` is lowered to the first row with a score that is not
// finite (atomicMin: the caller sets it to INT32_MAX before). Lists have room for blocks * ratio + ratio - 1 positions.
// REQUIRES dim <= 256, ratio >= 1.
void select_positions(ConstDeviceRows q, std::size_t heads, ConstDeviceRows pooled, DeviceCount position,
                      std::size_t ratio, std::size_t blocks, const DeviceLists& lists, float* scores, std::int32_t* bad,
                      DeviceStream stream);

// Ops::all_positions; `most` bounds *position + lists.rows, and positions beyond the lists' stride are not written.
void all_positions(DeviceCount position, std::size_t most, const DeviceLists& lists, DeviceStream stream);

// Ops::index_blocks: IndexBlocks of runtime/ops.h, with the scalars read on the card.
struct DeviceIndexBlocks {
  DeviceHistory raw;
  DeviceCount pending = nullptr;  // null: 0
  ConstDeviceRows keys;
  DeviceCount position = nullptr;
  std::size_t ratio = 1;
  const float* gamma = nullptr;
  float eps = 0;
  ConstDeviceRows cos, sin;  // row i: the first position of block *position / ratio + i
  DeviceRows pooled;         // all of the cache; blocks beyond it are dropped
};
// REQUIRES keys.cols <= 256.
void index_blocks(const DeviceIndexBlocks& blocks, DeviceStream stream);

}  // namespace tandem::gpu
