// The memory that a machine's operations work on: the host's, or a card's. Everything a pass touches lies in it: work
// memory, what a sequence leaves behind, the small vectors of the layers. Host code reads and writes it only through
// these calls, and through staging areas, which both sides see.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "runtime/tensor.h"

namespace tandem {

// The last `depth` committed rows of a stream, oldest first, and up to kMaxWindow rows of an open window.
struct HistoryRows {
  float* rows = nullptr;    // [depth, width]
  float* window = nullptr;  // [kMaxWindow, width]
  std::size_t depth = 0, width = 0;
};

// Calls take effect in the order of the machine's operations. Pointers lie in this memory unless they say "host".
class MachineMemory {
 public:
  virtual ~MachineMemory() = default;
  // Whether it is host memory: pointers into it may be followed by anybody.
  virtual bool is_host() const = 0;
  // Zeros, aligned to 64 bytes at least, freed with the last owner. On the host, pages are touched when used. Throws
  // InputError when there is not enough.
  virtual std::shared_ptr<std::uint8_t> allocate(std::size_t bytes) = 0;
  // Host memory that send and fetch may use; zeros. A host machine needs none of its own: see Staged.
  virtual std::shared_ptr<std::uint8_t> allocate_staging(std::size_t bytes) = 0;

  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;  // must not overlap
  virtual void zero(void* to, std::size_t bytes) = 0;
  // Host memory of any kind; the call returns when it has been done.
  virtual void write(void* to, const void* host, std::size_t bytes) = 0;
  virtual void read(void* host, const void* from, std::size_t bytes) = 0;
  // Staging memory; may return at once. What was sent must stay unchanged, and what is fetched be left alone, until the
  // pass has ended.
  virtual void send(void* to, const void* staging, std::size_t bytes) = 0;
  virtual void fetch(void* staging, const void* from, std::size_t bytes) = 0;

  // Rows that leave a history at the old end and join it at the new one: all of x; the first n of the open windows.
  virtual void commit_rows(const HistoryRows& history, ConstRows x) = 0;
  virtual void keep_rows(std::span<const HistoryRows> list, std::size_t n) = 0;
  // x becomes the rows at, at + 1, ... of the open window. A machine that replays recorded passes takes `at` from
  // PassNumbers::pending (runtime/ops.h).
  virtual void log_rows(const HistoryRows& history, std::size_t at, ConstRows x) = 0;
};

MachineMemory& host_memory();

// A number that nothing else of this process has: addresses come back, numbers do not.
std::uint64_t new_identity();

// An array of T in a machine's memory. Copies share it.
template <typename T>
class Array {
 public:
  Array() = default;
  Array(MachineMemory& memory, std::size_t n)
      : memory_(&memory), owner_(memory.allocate(n * sizeof(T))), data_(reinterpret_cast<T*>(owner_.get())), n_(n) {}
  T* data() const { return data_; }
  std::size_t size() const { return n_; }
  std::size_t bytes() const { return n_ * sizeof(T); }
  bool empty() const { return n_ == 0; }
  MachineMemory& memory() const { return *memory_; }
  // One with the same contents.
  Array clone() const {
    if (n_ == 0) return {};
    Array other(*memory_, n_);
    memory_->copy(other.data_, data_, bytes());
    return other;
  }
  void assign(const Array& other) const {
    CHECK(other.n_ == n_, "{} and {} elements", n_, other.n_);
    if (n_ > 0) memory_->copy(data_, other.data_, bytes());
  }
  static Array of(MachineMemory& memory, std::span<const T> values) {
    Array array(memory, values.size());
    if (!values.empty()) memory.write(array.data_, values.data(), values.size_bytes());
    return array;
  }

 private:
  MachineMemory* memory_ = nullptr;
  std::shared_ptr<std::uint8_t> owner_;
  T* data_ = nullptr;
  std::size_t n_ = 0;
};

// An array that host and machine exchange: `host` is filled and sent, or fetched and read. On the host both are one.
template <typename T>
class Staged {
 public:
  Staged() = default;
  Staged(MachineMemory& memory, std::size_t n) : array_(memory, n) {
    if (!memory.is_host()) staging_ = memory.allocate_staging(n * sizeof(T));
  }
  T* data() const { return array_.data(); }
  T* host() const { return staging_ ? reinterpret_cast<T*>(staging_.get()) : array_.data(); }
  std::size_t size() const { return array_.size(); }
  std::size_t bytes() const { return array_.bytes(); }
  void send(std::size_t first, std::size_t n) const {
    if (staging_ && n > 0) array_.memory().send(data() + first, host() + first, n * sizeof(T));
  }
  void fetch(std::size_t first, std::size_t n) const {
    if (staging_ && n > 0) array_.memory().fetch(host() + first, data() + first, n * sizeof(T));
  }

 private:
  Array<T> array_;
  std::shared_ptr<std::uint8_t> staging_;
};

}  // namespace tandem
