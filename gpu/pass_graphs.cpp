#include "gpu/pass_graphs.h"

#include <cuda_runtime_api.h>

#include <chrono>

#include "gpu/cuda_check.h"

namespace tandem {

PassGraphs::PassGraphs(DeviceStream stream, int device)
    : stream_(stream), launcher_([this, device] { launch_loop(device); }) {}

PassGraphs::~PassGraphs() {
  stop_.store(true);
  launcher_.join();
  clear();
}

// Looks for work often while passes follow each other, and rarely when they do not.
void PassGraphs::launch_loop(int device) {
  CUDA_CHECK(cudaSetDevice(device));
  using Clock = std::chrono::steady_clock;
  constexpr auto kAwake = std::chrono::milliseconds(2);
  auto last = Clock::now();
  while (!stop_.load()) {
    CUgraphExec_st* graph = wanted_.load(std::memory_order_acquire);
    if (graph != nullptr) {
      CUDA_CHECK(cudaGraphLaunch(graph, stream_));
      wanted_.store(nullptr, std::memory_order_release);
      last = Clock::now();
    } else if (Clock::now() - last < kAwake) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
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

void PassGraphs::start(const PassKey& key) {
  CHECK(wanted_.load() == nullptr, "a pass is being launched");
  wanted_.store(graphs_.at(key), std::memory_order_release);
}

void PassGraphs::finish() {
  while (wanted_.load(std::memory_order_acquire) != nullptr) std::this_thread::yield();
}

}  // namespace tandem
