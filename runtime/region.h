// Memory of a machine whose arrays are laid out in one block, so that all of it can be put to another use between
// passes (runtime/expert_store.h lends it to experts).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "runtime/memory.h"

namespace tandem {

// What is allocated lies in the block, one after the other, and stays there; what does not fit lies outside of it, in
// the machine's other memory. Everything else is the machine's.
class Region : public MachineMemory {
 public:
  Region(MachineMemory& memory, std::size_t bytes) : Region(memory, memory.allocate(bytes), bytes) {}
  Region(MachineMemory& memory, std::shared_ptr<std::uint8_t> block, std::size_t bytes)
      : memory_(memory), block_(std::move(block)), bytes_(bytes) {}
  std::uint8_t* data() const { return block_.get(); }
  std::size_t bytes() const { return bytes_; }
  std::size_t used() const { return used_; }

  bool is_host() const override { return memory_.is_host(); }
  std::shared_ptr<std::uint8_t> allocate(std::size_t bytes) override {
    if (bytes > bytes_ - used_) return memory_.allocate(bytes);
    std::uint8_t* const at = data() + used_;
    used_ = std::min(bytes_, (used_ + bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (bytes > 0) memory_.zero(at, bytes);  // others may have been here
    return {block_, at};
  }
  std::shared_ptr<std::uint8_t> allocate_staging(std::size_t bytes) override { return memory_.allocate_staging(bytes); }
  void copy(void* to, const void* from, std::size_t bytes) override { memory_.copy(to, from, bytes); }
  void zero(void* to, std::size_t bytes) override { memory_.zero(to, bytes); }
  void write(void* to, const void* host, std::size_t bytes) override { memory_.write(to, host, bytes); }
  void read(void* host, const void* from, std::size_t bytes) override { memory_.read(host, from, bytes); }
  void send(void* to, const void* staging, std::size_t bytes) override { memory_.send(to, staging, bytes); }
  void fetch(void* staging, const void* from, std::size_t bytes) override { memory_.fetch(staging, from, bytes); }
  void commit_rows(const HistoryRows& history, ConstRows x) override { memory_.commit_rows(history, x); }
  void keep_rows(std::span<const HistoryRows> list, std::size_t n) override { memory_.keep_rows(list, n); }
  void log_rows(const HistoryRows& history, std::size_t at, ConstRows x) override { memory_.log_rows(history, at, x); }

  static constexpr std::size_t kAlignment = 256;  // the card's own

 private:
  MachineMemory& memory_;
  std::shared_ptr<std::uint8_t> block_;
  std::size_t bytes_, used_ = 0;
};

}  // namespace tandem
