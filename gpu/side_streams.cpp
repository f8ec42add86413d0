#include "gpu/side_streams.h"

#include <cuda_runtime_api.h>

#include "gpu/cuda_check.h"
#include "placement/check.h"

namespace tandem {

SideStreams::SideStreams(DeviceStream main) : main_(main) {
  for (Side& side : side_) {
    CUDA_CHECK(cudaStreamCreateWithFlags(&side.stream, cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreateWithFlags(&side.forked, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreateWithFlags(&side.done, cudaEventDisableTiming));
  }
}

SideStreams::~SideStreams() {
  for (const Side& side : side_) {
    static_cast<void>(cudaStreamSynchronize(side.stream));
    static_cast<void>(cudaEventDestroy(side.forked));
    static_cast<void>(cudaEventDestroy(side.done));
    static_cast<void>(cudaStreamDestroy(side.stream));
  }
}

DeviceStream SideStreams::fork(std::size_t index) {
  Side& side = side_[index];
  CHECK(!side.open, "stream {} is open", index);
  CUDA_CHECK(cudaEventRecord(side.forked, main_));
  CUDA_CHECK(cudaStreamWaitEvent(side.stream, side.forked, 0));
  side.open = true;
  return side.stream;
}

void SideStreams::join(std::size_t index) {
  Side& side = side_[index];
  if (!side.open) return;
  side.open = false;
  CUDA_CHECK(cudaEventRecord(side.done, side.stream));
  CUDA_CHECK(cudaStreamWaitEvent(main_, side.done, 0));
}

void SideStreams::forget() {
  for (Side& side : side_) side.open = false;
}

}  // namespace tandem
