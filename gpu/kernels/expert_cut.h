// How many warps of a block take units of an item of the card's experts (expert_product.cuh). Inside gpu/kernels only.
#pragma once

#include "gpu/kernels/tile_kernel_table.h"

namespace tandem {

// Shared memory of a block beside that of its warps: the table, and the sums of two items of `units` units and `rows`
// activation rows.
constexpr int expert_rest(int table_bytes, int units, int rows) {
  return kExpertHeadBytes + table_bytes + 2 * 2 * units * rows * 64;
}

// As many as share the units evenly in as few rounds as possible, at most `most_warps`, so that what a warp holds and
// what the block holds beside (`rest`) fit into `bytes` of shared memory; 0 when not even one fits. REQUIRES units
// >= 1.
constexpr int expert_warps(int units, int most_warps, int warp_bytes, int rest, int bytes) {
  for (int rounds = (units + most_warps - 1) / most_warps; rounds <= units; ++rounds) {
    const int warps = (units + rounds - 1) / rounds;
    if (warps * warp_bytes + rest <= bytes) return warps;
  }
  return 0;
}

}  // namespace tandem
