#include "gpu/pass_graphs.h"

#include <cuda_runtime_api.h>

#include <chrono>

#include "gpu/cuda_check.h"

namespace tandem {

PassGraphs::PassGraphs(DeviceStream stream, int device)
    : stream_(stream), launcher_([this, device] { launch_loop(device); }) {}

PassGraphs::~PassGraphs() {
  stop_.store(true);
  calls_.fetch_add(1);
  calls_.notify_one();
  launcher_.join();
  clear();
}

// Looks for work while passes follow each other (waking up costs more than a layer), and sleeps when they do not.
void PassGraphs::launch_loop(int device) {
  CUDA_CHECK(cudaSetDevice(device));
  using Clock = std::chrono::steady_clock;
  constexpr auto kAwake = std::chrono::milliseconds(2);
  auto last = Clock::now();
  for (;;) {
    const std::uint32_t seen = calls_.load();
    if (stop_.load()) return;
    CUgraphExec_st* graph = wanted_.load(std::memory_order_acquire);
    if (graph != nullptr) {
      CUDA_CHECK(cudaGraphLaunch(graph, stream_));
      wanted_.store(nullptr, std::memory_order_release);
      last = Clock::now();
    } else if (Clock::now() - last < kAwake) {
      std::this_thread::yield();
    } else {
      calls_.wait(seen);
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
  calls_.fetch_add(1);
  calls_.notify_one();
}

void PassGraphs::finish() {
  while (wanted_.load(std::memory_order_acquire) != nullptr) std::this_thread::yield();
}

}  // namespace tandem
