// The card's memory as a machine's memory. All copies and kernels of a machine go through one stream, so they take
// effect in the order of the calls. No CUDA type here.
#pragma once

#include <atomic>
#include <vector>

#include "gpu/kernels/history.h"
#include "runtime/memory.h"

namespace tandem {

class CudaMemory : public MachineMemory {
 public:
  explicit CudaMemory(DeviceStream stream) : stream_(stream) {}
  // The rows of an open window before the pass, on the card (PassNumbers::pending); before the first log_rows.
  void set_pending(DeviceCount pending) { pending_ = pending; }
  std::size_t bytes() const { return *bytes_; }  // that are allocated now

  std::size_t allocations() const { return allocations_; }  // ever made, of the card's or staging memory

  bool is_host() const override { return false; }
  std::shared_ptr<std::uint8_t> allocate(std::size_t bytes) override;
  std::shared_ptr<std::uint8_t> allocate_staging(std::size_t bytes) override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  void zero(void* to, std::size_t bytes) override;
  void write(void* to, const void* host, std::size_t bytes) override;
  void read(void* host, const void* from, std::size_t bytes) override;
  void send(void* to, const void* staging, std::size_t bytes) override;
  void fetch(void* staging, const void* from, std::size_t bytes) override;
  void commit_rows(const HistoryRows& history, ConstRows x) override;
  void keep_rows(std::span<const HistoryRows> list, std::size_t n) override;
  void log_rows(const HistoryRows& history, std::size_t at, ConstRows x) override;

 private:
  DeviceStream stream_;
  DeviceCount pending_ = nullptr;
  std::size_t allocations_ = 0;
  std::shared_ptr<std::atomic<std::size_t>> bytes_ = std::make_shared<std::atomic<std::size_t>>(0);
  std::vector<gpu::DeviceHistory> kept_;  // scratch of keep_rows
};

}  // namespace tandem
