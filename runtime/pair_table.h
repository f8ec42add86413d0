// A flat hash table from a pair of 32-bit numbers to a pair of 32-bit numbers, filled once and then only read.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "placement/check.h"

namespace tandem {

class PairTable {
 public:
  struct Value {
    std::uint32_t first, second;
  };

  // Room for `entries` insertions; at most half of the slots are ever filled, which keeps probe chains short.
  explicit PairTable(std::size_t entries = 0)
      : slots_(std::bit_ceil(entries * 2 + 2)),
        shift_(std::countl_zero(std::uint64_t{slots_.size() - 1})),
        room_(entries) {}

  // Adds the pair; false, and no change, when it is there already. REQUIRES (left, right) != (2^32-1, 2^32-1).
  bool insert(std::uint32_t left, std::uint32_t right, Value value) {
    Slot& slot = slots_[probe(key_of(left, right))];
    if (slot.key != kEmpty) return false;
    CHECK(room_ > 0);
    --room_;
    slot = {key_of(left, right), value};
    return true;
  }

  const Value* find(std::uint32_t left, std::uint32_t right) const {
    const Slot& slot = slots_[probe(key_of(left, right))];
    return slot.key == kEmpty ? nullptr : &slot.value;
  }

 private:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t key = kEmpty;
    Value value{};
  };

  static std::uint64_t key_of(std::uint32_t left, std::uint32_t right) { return std::uint64_t{left} << 32 | right; }

  // The slot that holds `key`, or the empty one where it would go. Fibonacci hashing, linear probing.
  std::size_t probe(std::uint64_t key) const {
    std::size_t at = static_cast<std::size_t>(key * 0x9E3779B97F4A7C15u >> shift_);
    while (slots_[at].key != key && slots_[at].key != kEmpty) at = (at + 1) & (slots_.size() - 1);
    return at;
  }

  std::vector<Slot> slots_;
  int shift_;
  std::size_t room_;
};

}  // namespace tandem
