// The experts' slots on the card, and copies between them and RAM on a stream of their own, beside a running pass.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "gpu/cuda_memory.h"
#include "runtime/expert_store.h"

namespace tandem {

class CardSlots : public CardMemory {
 public:
  explicit CardSlots(CudaMemory& memory);
  ~CardSlots() override;
  CardSlots(const CardSlots&) = delete;
  CardSlots& operator=(const CardSlots&) = delete;

  std::shared_ptr<std::uint8_t> allocate(std::size_t bytes) override;
  void upload(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) override;
  void download(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) override;
  std::string pin(std::uint8_t* ram, std::size_t bytes) override;
  void unpin(std::uint8_t* ram) override;
  void start(std::span<const Copy> copies) override;
  void wait() override;
  bool host_readable() const override { return false; }
  void exchange(std::uint8_t* card, std::uint8_t* ram, std::size_t bytes) override;

 private:
  struct Staging;
  CudaMemory& memory_;
  DeviceStream stream_ = nullptr;  // of the copies
  std::mutex loading_;
  std::unique_ptr<Staging> staging_;
};

}  // namespace tandem
