#include "gpu/pass_graphs.h"

#include <cuda_runtime_api.h>

#include "gpu/cuda_check.h"

namespace tandem {

PassGraphs::~PassGraphs() {
  clear();
}

void PassGraphs::clear() {
  for (const auto& [key, graph] : graphs_) static_cast<void>(cudaGraphExecDestroy(graph));
  graphs_.clear();
}

void PassGraphs::record(const PassKey& key, FunctionRef<void()> launch) {
  cudaGraph_t graph = nullptr;
  // Relaxed: work memory may grow while the first pass of a kind is recorded.
  CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
  try {
    launch();
  } catch (...) {
    static_cast<void>(cudaStreamEndCapture(stream_, &graph));
    if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
    throw;
  }
  CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
  cudaGraphExec_t ready = nullptr;
  CUDA_CHECK(cudaGraphInstantiate(&ready, graph, 0));
  CUDA_CHECK(cudaGraphDestroy(graph));
  CUDA_CHECK(cudaGraphUpload(ready, stream_));
  graphs_[key] = ready;
}

void PassGraphs::run(const PassKey& key) const {
  CUDA_CHECK(cudaGraphLaunch(graphs_.at(key), stream_));
}

}  // namespace tandem
