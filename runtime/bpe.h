// Byte pair merging: a piece of text becomes one token per byte, and then the adjacent pair with the lowest merge rank
// (the leftmost of equals) is joined until no pair has a rank.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/pair_table.h"

namespace tandem {

class Bpe {
 public:
  struct Merge {
    std::int32_t left, right, merged;  // token ids; the rank is the position in the list
  };

  Bpe() = default;
  // `byte_tokens[b]` is the token of byte b. A pair that is listed twice keeps its first rank.
  Bpe(const std::array<std::int32_t, 256>& byte_tokens, const std::vector<Merge>& merges);

  // Appends the tokens of `piece` to `out`: quadratic for short pieces, which it is faster for, and O(n log n) for long
  // ones.
  void encode(std::string_view piece, std::vector<std::int32_t>& out) const;

  // What the merges make, by rank.
  std::span<const std::uint32_t> merged() const { return merged_; }

 private:
  void encode_short(std::string_view piece, std::vector<std::int32_t>& out) const;
  void encode_long(std::string_view piece, std::vector<std::int32_t>& out) const;
  std::uint32_t rank_of(std::uint32_t left, std::uint32_t right) const;

  std::array<std::uint32_t, 256> byte_tokens_{};
  PairTable ranks_;                    // (left, right) -> (rank, merged)
  std::vector<std::uint32_t> merged_;  // by rank
};

}  // namespace tandem
