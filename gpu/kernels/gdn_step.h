// A GDN layer between its first products and its last one, in one launch (Ops::gdn_step), bit for bit what gdn_input,
// gdn_scan and gdn_result give.
//
// When: once per GDN layer, passes of up to 4 rows: with more, what a block per head leaves idle of the card costs more
// than two launches. How: a block owns a value head, all columns of it, so nothing that follows the delta rule needs
// another block. It convolves and norms its columns (those of a key head once for each of its value heads), runs the
// rows with the state in registers, and norms, gates and quantises what comes out. Measured: docs/decisions.md,
// 2026-12-01.
#pragma once

#include "gpu/kernels/gdn_edges.h"
#include "gpu/kernels/gdn_scan.h"

namespace tandem::gpu {

inline constexpr std::size_t kStepRows = 4, kStepTaps = 4;

// As of their launches, for the same rows. in.alpha and in.beta are not written; in.q, in.k, in.conv, scan.q, scan.k,
// scan.v, scan.decay, scan.beta, scan.out, result.k and result.decay are not looked at.
struct DeviceGdnStep {
  DeviceGdnInput in;
  DeviceGdnScan scan;
  DeviceGdnResult result;
  std::uint32_t* arrived = nullptr;  // [key heads], zero before and after
};

// Whether it suits: the number of rows, heads of 32, 64 or 128, what is read aligned to 16 bytes.
bool can_step(const DeviceGdnStep& step);
// REQUIRES can_step(), and that the launch before this one writes nothing of the state, the history, the rows to replay
// and their count.
void gdn_step(const DeviceGdnStep& step, DeviceStream stream);

}  // namespace tandem::gpu
