// What the benchmarks of the card's products share: launches timed as one graph, matrices of random blocks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "bench/bench.h"
#include "bench/block_pool.h"
#include "gpu/cuda_check.h"
#include "runtime/packed_matrix.h"

namespace tandem::bench {

// A stream, and launches on it timed as one graph.
class Timer {
 public:
  Timer() {
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreate(&begin_));
    CUDA_CHECK(cudaEventCreate(&end_));
  }
  cudaStream_t stream() const { return stream_; }

  // Seconds of one launch: median over `samples` of a graph with launch(0) .. launch(count - 1).
  double time(std::size_t count, std::size_t samples, const std::function<void(std::size_t)>& launch) {
    CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (std::size_t i = 0; i < count; ++i) launch(i);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    std::vector<double> seconds;
    for (std::size_t i = 0; i <= samples; ++i) {  // the first one warms up
      CUDA_CHECK(cudaEventRecord(begin_, stream_));
      CUDA_CHECK(cudaGraphLaunch(exec, stream_));
      CUDA_CHECK(cudaEventRecord(end_, stream_));
      CUDA_CHECK(cudaEventSynchronize(end_));
      float ms = 0.0F;
      CUDA_CHECK(cudaEventElapsedTime(&ms, begin_, end_));
      if (i > 0) seconds.push_back(1e-3 * static_cast<double>(ms) / static_cast<double>(count));
    }
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(graph));
    return summarise(seconds).median;
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

inline std::vector<std::uint8_t> random_tiles(DType type, std::size_t rows, std::size_t cols) {
  const BlockPool pool(type, 0.02, 5);
  std::vector<std::uint8_t> file(rows * row_bytes(type, cols));
  pool.fill(9, file.data(), file.size());
  const WeightView view{file.data(), type, rows, cols, 1.0F, {}};
  const PackedMatrix packed = pack_matrix(view, [](std::size_t n, const std::function<void(std::size_t)>& body) {
    for (std::size_t i = 0; i < n; ++i) body(i);
  });
  return {packed.data(), packed.data() + packed.bytes()};
}

}  // namespace tandem::bench
