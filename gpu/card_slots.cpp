#include "gpu/card_slots.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "gpu/cuda_check.h"
#include "gpu/device_buffer.h"
#include "placement/units.h"

namespace tandem {

// Page-locked memory that uploads go through: from pageable memory the driver would copy them twice, at a third of the
// speed. Two halves, so that one is filled while the other is sent.
struct CardSlots::Staging {
  static constexpr std::size_t kHalf = std::size_t{8} << 20;
  PinnedBuffer<std::uint8_t> memory{2 * kHalf};
  cudaEvent_t sent[2];
  std::size_t next = 0;
  Staging() {
    for (cudaEvent_t& event : sent) CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }
  ~Staging() {
    for (cudaEvent_t event : sent) static_cast<void>(cudaEventDestroy(event));
  }
};

CardSlots::CardSlots(CudaMemory& memory) : memory_(memory), staging_(std::make_unique<Staging>()) {
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}
CardSlots::~CardSlots() {
  static_cast<void>(cudaStreamDestroy(stream_));
}

std::shared_ptr<std::uint8_t> CardSlots::allocate(std::size_t bytes) {
  std::shared_ptr<std::uint8_t> slots = memory_.allocate(bytes);
  // Zeroed by the machine's stream: uploads, on ours, must come later.
  CUDA_CHECK(cudaDeviceSynchronize());
  return slots;
}

void CardSlots::upload(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) {
  const std::lock_guard lock(loading_);
  for (std::size_t done = 0; done < bytes; done += Staging::kHalf) {
    const std::size_t count = std::min(Staging::kHalf, bytes - done), half = staging_->next++ % 2;
    std::uint8_t* const piece = staging_->memory.get() + half * Staging::kHalf;
    CUDA_CHECK(cudaEventSynchronize(staging_->sent[half]));
    std::memcpy(piece, from + done, count);
    CUDA_CHECK(cudaMemcpyAsync(to + done, piece, count, cudaMemcpyHostToDevice, stream_));
    CUDA_CHECK(cudaEventRecord(staging_->sent[half], stream_));
  }
}

void CardSlots::download(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) {
  const std::lock_guard lock(loading_);
  CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_));
  CUDA_CHECK(cudaStreamSynchronize(stream_));
}

std::string CardSlots::pin(std::uint8_t* ram, std::size_t bytes) {
  if (cudaHostRegister(ram, bytes, cudaHostRegisterPortable) == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());
  return fmt::format(
      "{} of experts in RAM could not be locked for the card, so the CPU waits for every copy of an expert that moves, "
      "computes long prompts' experts itself, several times slower than if they were sent to the card, and has none "
      "fetched ahead of its layer. Fix: more free RAM, or no experts that move (--adapt off, and "
      "memory.lend_prompt_memory and lend_kv_cache: false in the policy)",
      format_bytes(static_cast<std::int64_t>(bytes)));
}
void CardSlots::unpin(std::uint8_t* ram) {
  if (cudaHostUnregister(ram) != cudaSuccess) static_cast<void>(cudaGetLastError());  // it was refused
}

// RAM cells are page-locked where the arena could be registered; else these copies are slower, not wrong.
void CardSlots::start(std::span<const Copy> copies) {
  for (const Copy& copy : copies)
    CUDA_CHECK(cudaMemcpyAsync(copy.to, copy.from, copy.bytes, cudaMemcpyDefault, stream_));
}
void CardSlots::wait() {
  CUDA_CHECK(cudaStreamSynchronize(stream_));
}

void CardSlots::exchange(std::uint8_t* card, std::uint8_t* ram, std::size_t bytes) {
  const std::lock_guard lock(loading_);
  for (std::size_t done = 0; done < bytes; done += Staging::kHalf) {
    const std::size_t count = std::min(Staging::kHalf, bytes - done);
    CUDA_CHECK(cudaMemcpyAsync(staging_->memory.get(), card + done, count, cudaMemcpyDeviceToHost, stream_));
    CUDA_CHECK(cudaMemcpyAsync(card + done, ram + done, count, cudaMemcpyHostToDevice, stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    std::memcpy(ram + done, staging_->memory.get(), count);
  }
}

}  // namespace tandem
