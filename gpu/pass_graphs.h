// Passes recorded as CUDA graphs: one per key, launched again with one call.
#pragma once

#include <map>

#include "gpu/kernels/device_rows.h"
#include "runtime/function_ref.h"
#include "runtime/ops.h"

struct CUgraphExec_st;

namespace tandem {

class PassGraphs {
 public:
  explicit PassGraphs(DeviceStream stream) : stream_(stream) {}
  ~PassGraphs();
  PassGraphs(const PassGraphs&) = delete;
  PassGraphs& operator=(const PassGraphs&) = delete;

  bool has(const PassKey& key) const { return graphs_.count(key) > 0; }
  // Records what `launch` puts on the stream, without running it.
  void record(const PassKey& key, FunctionRef<void()> launch);
  void run(const PassKey& key) const;  // REQUIRES has(key)
  void clear();                        // REQUIRES that none is running
  std::size_t size() const { return graphs_.size(); }

 private:
  DeviceStream stream_;
  std::map<PassKey, CUgraphExec_st*> graphs_;
};

}  // namespace tandem
