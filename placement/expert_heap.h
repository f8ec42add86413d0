// A binary heap of expert indices that knows where each of them sits, so that one whose key changed can be moved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace tandem {

// The top is the expert with the smallest key (kLargestFirst: the largest), ties to the lower index. Keys and positions
// belong to the caller: position[i] is -1 for an expert in no heap, and an expert is in one heap at most.
template <bool kLargestFirst>
class ExpertHeap {
 public:
  ExpertHeap(std::span<const double> key, std::span<std::int32_t> position, std::size_t capacity)
      : key_(key), position_(position) {
    heap_.reserve(capacity);
  }

  bool empty() const { return heap_.empty(); }
  std::int32_t top() const { return heap_.front(); }

  void push(std::int32_t expert) {
    heap_.push_back(expert);
    place(heap_.size() - 1, expert);
    rise(heap_.size() - 1);
  }
  void pop() {
    position(heap_.front(), -1);
    const std::int32_t last = heap_.back();
    heap_.pop_back();
    if (heap_.empty()) return;
    place(0, last);
    sink(0);
  }
  // An expert of this heap leaves it.
  void remove(std::int32_t expert) {
    const std::size_t at = position(expert);
    position(expert, -1);
    const std::int32_t last = heap_.back();
    heap_.pop_back();
    if (last == expert) return;
    place(at, last);
    update(last);
  }
  // The key of this expert has changed.
  void update(std::int32_t expert) {
    rise(position(expert));
    sink(position(expert));
  }
  // All keys have changed.
  void rebuild() {
    for (std::size_t i = heap_.size() / 2; i-- > 0;) sink(i);
  }

 private:
  std::size_t position(std::int32_t expert) const {
    return static_cast<std::size_t>(position_[static_cast<std::size_t>(expert)]);
  }
  void position(std::int32_t expert, std::int32_t at) { position_[static_cast<std::size_t>(expert)] = at; }
  void place(std::size_t at, std::int32_t expert) {
    heap_[at] = expert;
    position(expert, static_cast<std::int32_t>(at));
  }
  bool before(std::int32_t a, std::int32_t b) const {
    const double x = key_[static_cast<std::size_t>(a)], y = key_[static_cast<std::size_t>(b)];
    if (x != y) return kLargestFirst ? x > y : x < y;
    return a < b;
  }
  void rise(std::size_t at) {
    const std::int32_t expert = heap_[at];
    for (; at > 0 && before(expert, heap_[(at - 1) / 2]); at = (at - 1) / 2) place(at, heap_[(at - 1) / 2]);
    place(at, expert);
  }
  void sink(std::size_t at) {
    const std::int32_t expert = heap_[at];
    for (std::size_t child = 2 * at + 1; child < heap_.size(); child = 2 * at + 1) {
      if (child + 1 < heap_.size() && before(heap_[child + 1], heap_[child])) ++child;
      if (!before(heap_[child], expert)) break;
      place(at, heap_[child]);
      at = child;
    }
    place(at, expert);
  }

  std::span<const double> key_;
  std::span<std::int32_t> position_;
  std::vector<std::int32_t> heap_;
};

}  // namespace tandem
