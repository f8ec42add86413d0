// Memory of the card that is needed now and then only, and lent to experts in between (placement/adapt.h decides to
// whom):
//   prompt memory   work memory of long passes and the experts on their way; taken back as a whole before a long pass
//   cache memory    the rows of a KV cache that the sequence has not reached; taken back row by row as it grows
// A lent expert stays in RAM as well, so taking memory back copies nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "placement/footprint.h"

namespace tandem {

struct Lending {
  std::int64_t bytes = 0;  // of prompt memory; 0: none is lent
  std::int64_t bytes_per_round = std::int64_t{64} << 20;
  int rows = kShortRows;         // a pass of more rows needs the prompt memory itself
  std::vector<double> expected;  // [banks * experts] routes of a row; empty: all alike
  CacheAreas cache;              // no areas: none of the cache is lent
  // Rows of the cache that are left free ahead of the sequence: a shorter loan is not worth its copy.
  std::int64_t cache_ahead = 512;
  bool any() const { return bytes > 0 || cache.count > 0; }
};
// What a census says weighs as much as this many rows of the text at hand: a third of what the counts come to with the
// usual half-life.
inline constexpr double kExpectedRows = 1000;

// Rows of the cache that a round may write which begins at `position` with a pass of `rows` rows: its own, and the
// drafts after them. A round after this one that begins where this one has ended never needs fewer.
std::int64_t cache_rows_needed(std::int64_t position, std::int64_t rows);

// Who has a place in lent memory. The cache comes first, from its end towards the sequence, all areas in step: such
// places last longest. The prompt memory is filled from its start.
class LentPlaces {
 public:
  using Index = std::int32_t;  // of an expert: bank * experts + expert
  explicit LentPlaces(const Lending& lending);
  struct Place {
    int area = 0;         // 0: prompt memory; 1 ..: of the cache
    std::int64_t at = 0;  // byte of the prompt memory, or of the cache memory
  };
  std::optional<Place> take(Index who, std::int64_t bytes);
  // REQUIRES that `from` has a place in `area`.
  void hand_over(int area, Index from, Index to);
  // All of the prompt memory is needed; appends those that had places there.
  void free_prompt_memory(std::vector<Index>& out);
  // The first `positions` rows of the cache are needed; appends those whose places reach into them.
  void need_cache(std::int64_t positions, std::vector<Index>& out);
  std::int64_t cache_needed() const { return needed_; }
  // Of those that have places now, how many in the cache.
  std::size_t in_cache() const;

 private:
  struct Held {
    Index who;
    std::int64_t at;  // in its area
  };
  struct Area {
    std::int64_t first = 0;  // byte of the cache memory
    std::vector<Held> held;  // from the end down
  };
  std::int64_t top(const Area& area) const;  // end of what is free in it
  CacheAreas cache_;
  std::int64_t prompt_bytes_, prompt_used_ = 0, ahead_, needed_ = 0;
  std::vector<Held> prompt_;
  std::vector<Area> areas_;
};

// All experts (bank * experts + expert), the largest heat for their bytes first, ties to the lower index. heat has
// banks * experts values, expert_bytes one for each bank.
std::vector<std::int32_t> hottest_first(std::span<const double> heat, std::span<const std::int64_t> expert_bytes);

// Gives the places that are free in `places` away in the given order (hottest_first), and returns who has got one: of
// those of which `may` [banks * experts] is not 0. Those that no longer fit are left out.
std::vector<std::int32_t> lent_experts(std::span<const std::int32_t> order, std::span<const char> may,
                                       std::span<const std::int64_t> expert_bytes, LentPlaces& places);

}  // namespace tandem
