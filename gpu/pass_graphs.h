// Passes recorded as CUDA graphs: one per key, launched again with one call.
//
// The call is made by a thread of its own. A graph of the whole model is larger than the driver's queue, so the call
// returns only when the card has got on far enough; and the card may be waiting for the crew, which the calling thread
// has to serve meanwhile (seen with 48 layers on an H200: both sides waited for ever).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <thread>

#include "gpu/kernels/device_rows.h"
#include "runtime/function_ref.h"
#include "runtime/ops.h"

struct CUgraphExec_st;

namespace tandem {

class PassGraphs {
 public:
  PassGraphs(DeviceStream stream, int device);
  ~PassGraphs();
  PassGraphs(const PassGraphs&) = delete;
  PassGraphs& operator=(const PassGraphs&) = delete;

  bool has(const PassKey& key) const { return graphs_.count(key) > 0; }
  // Records what `launch` puts on the stream, without running it.
  void record(const PassKey& key, FunctionRef<void()> launch);
  // Begins to put the record on the stream, in its own thread; until finish() returns nothing else may be put there.
  // REQUIRES has(key).
  void start(const PassKey& key);
  bool launching() const { return wanted_.load(std::memory_order_acquire) != nullptr; }
  void finish();  // returns when all of it is on the stream
  void clear();   // REQUIRES that none is running
  std::size_t size() const { return graphs_.size(); }

 private:
  void launch_loop(int device);

  DeviceStream stream_;
  std::atomic<CUgraphExec_st*> wanted_{nullptr};  // null: nothing to launch
  std::atomic<std::uint32_t> calls_{0};           // changes with every order, so that the launcher can sleep on it
  std::atomic<bool> stop_{false};
  std::map<PassKey, CUgraphExec_st*> graphs_;
  std::thread launcher_;
};

}  // namespace tandem
