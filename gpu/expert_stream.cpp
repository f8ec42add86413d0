#include "gpu/expert_stream.h"

#include <cuda_runtime_api.h>

#include "gpu/cuda_check.h"
#include "gpu/kernels/tile_gemm.h"

namespace tandem {

ExpertStream::ExpertStream(DeviceStream main) : main_(main) {
  CUDA_CHECK(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking));
  for (auto* events : {&sent_, &used_})
    for (auto& event : *events) CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
}

ExpertStream::~ExpertStream() {
  static_cast<void>(cudaStreamSynchronize(copies_));
  for (auto* events : {&sent_, &used_})
    for (auto* event : *events) static_cast<void>(cudaEventDestroy(event));
  static_cast<void>(cudaStreamDestroy(copies_));
}

void ExpertStream::reserve(MachineMemory& memory, std::size_t bytes) {
  if (bytes <= memory_area_.bytes()) return;
  CHECK(!open_, "a ring of {} bytes within a pass", bytes);
  memory_area_ = {};
  memory_area_ = {memory, bytes};
  CUDA_CHECK(cudaStreamSynchronize(main_));  // it is zeroed there
}

void ExpertStream::begin(std::vector<Source> sources) {
  CHECK(!open_, "two passes stream");
  open_ = true;
  sources_ = std::move(sources);
  pieces_.clear();
  next_sent_ = next_used_ = 0;
  const std::size_t place = memory_area_.bytes() / kPlaces;
  for (std::size_t i = 0; i < sources_.size();) {
    std::size_t count = 0, bytes = 0;
    while (i + count < sources_.size() && sources_[i + count].bank == sources_[i].bank &&
           bytes + sources_[i + count].bytes <= place && count < kBatchExperts)
      bytes += sources_[i + count++].bytes;
    CHECK(count > 0, "an expert of {} bytes for places of {}", sources_[i].bytes, place);
    pieces_.push_back({i, count});
    i += count;
  }
  send_ahead();
}

// Neighbours in RAM are copied as one.
void ExpertStream::send_ahead() {
  for (; next_sent_ < pieces_.size() && next_sent_ < next_used_ + kPlaces; ++next_sent_) {
    const std::size_t at = next_sent_ % kPlaces;
    const Piece& piece = pieces_[next_sent_];
    std::uint8_t* to = memory_area_.data() + at * (memory_area_.bytes() / kPlaces);
    CUDA_CHECK(cudaStreamWaitEvent(copies_, used_[at], 0));  // at once where it was never recorded
    for (std::size_t i = 0; i < piece.count;) {
      const Source* const first = &sources_[piece.first + i];
      std::size_t bytes = 0;
      for (; i < piece.count && sources_[piece.first + i].blob == first->blob + bytes; ++i)
        bytes += sources_[piece.first + i].bytes;
      CUDA_CHECK(cudaMemcpyAsync(to, first->blob, bytes, cudaMemcpyHostToDevice, copies_));
      to += bytes;
    }
    CUDA_CHECK(cudaEventRecord(sent_[at], copies_));
  }
}

ExpertStream::Batch ExpertStream::next(int bank) {
  if (next_used_ == pieces_.size()) return {};
  const Piece& piece = pieces_[next_used_];
  if (sources_[piece.first].bank != bank) return {};
  const std::size_t at = next_used_ % kPlaces;
  CUDA_CHECK(cudaStreamWaitEvent(main_, sent_[at], 0));
  return {std::span(sources_).subspan(piece.first, piece.count),
          memory_area_.data() + at * (memory_area_.bytes() / kPlaces)};
}

void ExpertStream::used() {
  CUDA_CHECK(cudaEventRecord(used_[next_used_ % kPlaces], main_));
  ++next_used_;
  send_ahead();
}

void ExpertStream::end() {
  if (!open_) return;
  open_ = false;
  CUDA_CHECK(cudaStreamSynchronize(copies_));
  sources_.clear();
  pieces_.clear();
  next_sent_ = next_used_ = 0;
}

}  // namespace tandem
