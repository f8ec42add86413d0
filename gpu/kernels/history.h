// The rows that a layer keeps of its past, on the card: MachineMemory's histories (runtime/memory.h), the convolution
// over them (Ops::causal_conv), and copies of rows.
//
// When: every layer of a pass, and once after a window. How: a thread per element; where rows move within a history, a
// thread per column, from the oldest row on, so that they may move in place. Measured: docs/performance.md.
#pragma once

#include "gpu/kernels/device_rows.h"

namespace tandem::gpu {

// HistoryRows of runtime/memory.h.
struct DeviceHistory {
  float* rows = nullptr;    // [depth, width]
  float* window = nullptr;  // [kMaxWindow, width]
  std::size_t depth = 0, width = 0;
};

// Ops::causal_conv. With a window (not null): the rows of x are logged as its first ones by the same launch.
void causal_conv(ConstDeviceRows history, ConstDeviceRows x, ConstDeviceRows weights, std::size_t dilation,
                 DeviceRows y, float* window, DeviceStream stream);

// MachineMemory::commit_rows: the rows of x become the last of the history, whose oldest ones go. x must not overlap
// it.
void commit_rows(const DeviceHistory& history, ConstDeviceRows x, DeviceStream stream);

// MachineMemory::keep_rows: the first n rows of every window join its history. n is *count, or `n` where count is null.
// One launch for 64 histories.
void keep_rows(const DeviceHistory* list, std::size_t histories, DeviceCount count, std::size_t n, DeviceStream stream);

// MachineMemory::log_rows: x becomes the rows *at, *at + 1, ... of the window (at null: from row 0 on). REQUIRES that
// they fit into its `capacity` rows; those that do not are dropped.
void log_rows(const DeviceHistory& history, std::size_t capacity, DeviceCount at, ConstDeviceRows x,
              DeviceStream stream);

// to = from, for up to four pairs in one launch; `to` has room for all rows of `from`.
struct RowCopy {
  ConstDeviceRows from;
  DeviceRows to;
};
inline constexpr std::size_t kMaxRowCopies = 4;
void copy_rows(const RowCopy* copies, std::size_t count, DeviceStream stream);

}  // namespace tandem::gpu
