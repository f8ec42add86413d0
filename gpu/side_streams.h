// Streams beside the main one for launches that do not depend on each other. In a recorded pass they become branches of
// the graph.
#pragma once

#include <array>

#include "gpu/kernels/device_rows.h"

struct CUevent_st;

namespace tandem {

class SideStreams {
 public:
  static constexpr std::size_t kCount = 3;
  explicit SideStreams(DeviceStream main);
  ~SideStreams();
  SideStreams(const SideStreams&) = delete;
  SideStreams& operator=(const SideStreams&) = delete;

  // Stream `index`, which goes on from what the main stream has been given so far. REQUIRES that it is not open.
  DeviceStream fork(std::size_t index);
  // What the main stream is given from here on waits for the stream; nothing where it is not open.
  void join(std::size_t index);
  bool open(std::size_t index) const { return side_[index].open; }
  // All are closed without a wait: a pass that failed is forgotten.
  void forget();

 private:
  struct Side {
    DeviceStream stream = nullptr;
    CUevent_st* forked = nullptr;
    CUevent_st* done = nullptr;
    bool open = false;
  };
  DeviceStream main_;
  std::array<Side, kCount> side_;
};

}  // namespace tandem
