// Memory that is lent to experts: who has which place in it, and the adapter that lends it.
#include "placement/lending.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "placement/adapt.h"
#include "placement/check.h"

namespace tandem {
namespace {

struct Rig {
  AdaptSettings settings;
  ExpertPlacement start;
  std::vector<bool> movable;
  Lending lending;
};
// One bank of experts of 100 bytes, expert 0 on the card.
Rig one_bank(AdaptMode mode, int experts) {
  Rig rig;
  rig.settings.mode = mode;
  rig.start = {1, experts, std::vector<Place>(static_cast<std::size_t>(experts), Place::kRam)};
  rig.start.at(0, 0) = Place::kCard;
  rig.movable.assign(static_cast<std::size_t>(experts), true);
  return rig;
}
Adapter make_adapter(const Rig& rig) {
  return Adapter(rig.settings, rig.start, {100}, rig.movable, rig.lending);
}
std::vector<int> on_card(const Adapter& adapter) {
  std::vector<int> experts;
  for (int e = 0; e < adapter.experts(); ++e)
    if (adapter.on_card(0, e)) experts.push_back(e);
  return experts;
}

// Two experts of 100 bytes fit into 250; one a round is copied. A prompt takes the memory back at any time.
TEST(Lending, LendsMemoryBetweenPrompts) {
  Rig rig = one_bank(AdaptMode::kOff, 5);
  rig.movable[3] = false;  // banned
  rig.lending = {.bytes = 250, .bytes_per_round = 150, .rows = 4, .expected = {0.9, 0.1, 0.4, 0.8, 0.2}, .cache = {}};
  Adapter adapter = make_adapter(rig);
  adapter.end_round(false);  // of a prompt
  EXPECT_TRUE(adapter.loans().empty());
  adapter.end_round(true);
  EXPECT_EQ(adapter.loans(), (std::vector<Loan>{{0, 2, 0}}));
  EXPECT_EQ(on_card(adapter), (std::vector<int>{0}));
  EXPECT_FALSE(adapter.lent(0, 2));
  adapter.end_round(true);
  EXPECT_EQ(adapter.loans(), (std::vector<Loan>{{0, 4, 100}}));
  EXPECT_EQ(on_card(adapter), (std::vector<int>{0, 2}));
  EXPECT_TRUE(adapter.lent(0, 2));
  adapter.reclaim();  // while expert 4 is copied
  EXPECT_EQ(on_card(adapter), (std::vector<int>{0}));
  adapter.end_round(true);
  EXPECT_EQ(adapter.loans(), (std::vector<Loan>{{0, 2, 0}}));
  adapter.end_round(true);
  adapter.end_round(true);
  EXPECT_TRUE(adapter.loans().empty());  // 50 bytes are left
  EXPECT_EQ(on_card(adapter), (std::vector<int>{0, 2, 4}));
  EXPECT_FALSE(adapter.lent(0, 0));
}

// A lent expert gives way to a hotter one: it leaves at once, and the memory may be taken back while that is copied.
TEST(Lending, ALentExpertGivesWay) {
  for (const bool taken_back : {false, true}) {
    Rig rig = one_bank(AdaptMode::kLfu, 4);
    rig.lending = {.bytes = 100, .bytes_per_round = 100, .rows = 4, .expected = {}, .cache = {}};
    Adapter adapter = make_adapter(rig);
    adapter.observe(0, std::vector<std::int32_t>{0, 0, 0, 0}, 4);
    adapter.end_round(true);
    EXPECT_EQ(adapter.loans(), (std::vector<Loan>{{0, 1, 0}}));
    adapter.observe(0, std::vector<std::int32_t>{3, 3}, 2);
    EXPECT_EQ(adapter.end_round(true), (std::vector<Swap>{{0, 3, 0, 1, true}}));
    EXPECT_FALSE(adapter.on_card(0, 1));
    EXPECT_FALSE(adapter.on_card(0, 3));
    if (taken_back) adapter.reclaim();
    EXPECT_EQ(adapter.swaps().size(), taken_back ? 0U : 1U);
    adapter.end_round(true);
    EXPECT_EQ(adapter.on_card(0, 3), !taken_back);
    EXPECT_EQ(adapter.lent(0, 3), !taken_back);
    if (taken_back) {
      EXPECT_EQ(adapter.loans(), (std::vector<Loan>{{0, 3, 0}}));  // the hottest off the card now
    }
    EXPECT_TRUE(adapter.on_card(0, 0) && !adapter.lent(0, 0));
  }
}

// Two areas of 40 rows of 10 bytes, of which the first three are in use: two experts fit into each, from the ends down,
// in step; then the prompt memory. As the sequence grows the places go in the opposite order, those of the prompt
// memory stay; when it begins anew, what is free is lent again.
TEST(Lending, TheCacheIsLentAheadOfTheSequence) {
  Rig rig = one_bank(AdaptMode::kOff, 9);
  rig.lending.bytes = 130;
  rig.lending.bytes_per_round = 1000;
  rig.lending.cache = {2, 400, 512, 10};
  rig.lending.cache_ahead = 2;
  rig.lending.expected = {0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8};
  Adapter adapter = make_adapter(rig);
  EXPECT_TRUE(adapter.need_cache(3).empty());
  adapter.end_round(true);
  // Places begin at multiples of 64: 256 and 128 of each area. A third would begin at 0; 3 + 2 rows are left free.
  EXPECT_EQ(
      adapter.loans(),
      (std::vector<Loan>{
          {0, 8, 256, true}, {0, 7, 512 + 256, true}, {0, 6, 128, true}, {0, 5, 512 + 128, true}, {0, 4, 0, false}}));
  adapter.end_round(true);
  EXPECT_EQ(on_card(adapter), (std::vector<int>{0, 4, 5, 6, 7, 8}));
  EXPECT_TRUE(adapter.need_cache(12).empty());  // 120 bytes
  const auto lost = adapter.need_cache(13);
  EXPECT_EQ(std::vector<int>(lost.begin(), lost.end()), (std::vector<int>{6, 5}));
  EXPECT_EQ(on_card(adapter), (std::vector<int>{0, 4, 7, 8}));
  adapter.end_round(true);
  EXPECT_TRUE(adapter.loans().empty());  // nothing has become free
  adapter.reclaim();
  EXPECT_EQ(on_card(adapter), (std::vector<int>{0, 7, 8}));
  adapter.need_cache(26);  // byte 259 is of a place at 256
  EXPECT_EQ(on_card(adapter), (std::vector<int>{0}));
  adapter.need_cache(1);
  adapter.end_round(true);
  EXPECT_EQ(adapter.loans().size(), 5U);
  adapter.need_cache(15);  // while they are copied
  EXPECT_EQ(adapter.loans().size(), 3U);
  adapter.end_round(true);
  EXPECT_EQ(on_card(adapter), (std::vector<int>{0, 4, 7, 8}));
}

// An expert that has come into the cache by a swap has the place of the one that left, and loses it with the rows; so
// does one that is on its way there.
TEST(Lending, SwapsWithinTheCache) {
  for (const int grown : {0, 1, 2}) {  // never; while the newcomer is copied; after it
    Rig rig = one_bank(AdaptMode::kLfu, 5);
    rig.movable[0] = false;
    rig.lending.cache = {1, 256, 256, 1};
    rig.lending.cache_ahead = 0;
    rig.lending.expected = {0.0, 0.02, 0.01, 0.0, 0.0};
    rig.settings.half_life_rows = 1e9;
    Adapter adapter = make_adapter(rig);
    adapter.end_round(true);
    EXPECT_EQ(adapter.loans(), (std::vector<Loan>{{0, 1, 128, true}, {0, 2, 0, true}}));
    adapter.observe(0, std::vector<std::int32_t>{1}, 1);
    adapter.end_round(true);
    adapter.observe(0, std::vector<std::int32_t>{3}, 1);
    EXPECT_EQ(adapter.end_round(true), (std::vector<Swap>{{0, 3, 0, 2, true}}));
    EXPECT_EQ(on_card(adapter), (std::vector<int>{0, 1}));
    const auto grow = [&](int when) {
      if (grown != when) return;
      const auto lost = adapter.need_cache(1);
      EXPECT_EQ(std::vector<int>(lost.begin(), lost.end()), std::vector<int>{3});
      EXPECT_TRUE(adapter.swaps().empty());
    };
    grow(1);
    adapter.end_round(true);
    grow(2);
    EXPECT_EQ(on_card(adapter), grown == 0 ? (std::vector<int>{0, 1, 3}) : (std::vector<int>{0, 1}));
    adapter.need_cache(128);
    EXPECT_EQ(on_card(adapter), (std::vector<int>{0, 1}));
    adapter.need_cache(129);
    EXPECT_EQ(on_card(adapter), (std::vector<int>{0}));
  }
}

// The sequence grows while memory is lent bit by bit: whoever no longer fits is passed over, and smaller ones after him
// are not.
TEST(Lending, WhoNoLongerFitsDoesNotHoldUpOthers) {
  Rig rig = one_bank(AdaptMode::kOff, 2);
  rig.start = {2, 2, {Place::kCard, Place::kRam, Place::kRam, Place::kRam}};
  rig.movable.assign(4, true);
  rig.lending.bytes = 60;
  rig.lending.bytes_per_round = 1;
  rig.lending.cache = {1, 256, 256, 1};
  rig.lending.cache_ahead = 0;
  rig.lending.expected = {0.0, 0.4, 0.3, 0.1};  // for their bytes: expert 0 of bank 1, 1 of bank 0, 1 of bank 1
  Adapter adapter(rig.settings, rig.start, {100, 50}, rig.movable, rig.lending);
  adapter.end_round(true);
  EXPECT_EQ(adapter.loans(), (std::vector<Loan>{{1, 0, 192, true}}));
  EXPECT_TRUE(adapter.need_cache(65).empty());  // the next one would begin at 64
  adapter.end_round(true);
  EXPECT_EQ(adapter.loans(), (std::vector<Loan>{{1, 1, 128, true}}));
  adapter.end_round(true);
  EXPECT_TRUE(adapter.on_card(1, 0) && adapter.on_card(1, 1) && !adapter.on_card(0, 1));
}

// A sequence that only grows never needs fewer rows than before, whatever passes it grows by: else memory would seem to
// become free every other round.
TEST(Lending, ASequenceThatGrowsNeedsNoFewerRows) {
  std::mt19937 random(3);
  std::int64_t position = 0, before = 0;
  for (int round = 0; round < 5000; ++round) {
    const auto rows = static_cast<std::int64_t>(random() % 8 == 0 ? 1 + random() % 200 : 1 + random() % 16);
    const std::int64_t needed = cache_rows_needed(position, rows);
    EXPECT_GE(needed, before);
    EXPECT_GE(needed, position + rows + 16);  // drafts after the pass
    before = needed;
    position += rows > 16 ? rows : static_cast<std::int64_t>(1 + random() % static_cast<std::uint64_t>(rows));
  }
}

// Whatever comes and goes, places do not overlap, lie in their areas and outside of what is needed.
TEST(Lending, PlacesDoNotOverlap) {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    Lending lending;
    lending.bytes = 64 * pick(0, 20);
    const std::int64_t row = pick(1, 70), bytes = row * pick(1, 60);
    lending.cache = {pick(0, 5), bytes, (bytes + 255) / 256 * 256, row};
    lending.cache_ahead = pick(0, 10);
    LentPlaces places(lending);
    struct Held {
      LentPlaces::Place place;
      std::int64_t size;
    };
    std::vector<std::pair<std::int32_t, Held>> held;
    std::int32_t next = 0;
    std::int64_t needed = 0;
    const auto forget = [&](const std::vector<std::int32_t>& gone, auto&& which) {
      std::vector<std::int32_t> expected;
      for (const auto& [who, h] : held)
        if (which(h)) expected.push_back(who);
      std::vector<std::int32_t> sorted = gone;
      std::sort(sorted.begin(), sorted.end());
      std::sort(expected.begin(), expected.end());
      EXPECT_EQ(sorted, expected) << seed;
      std::erase_if(held, [&](const auto& entry) { return which(entry.second); });
    };
    for (int step = 0; step < 60; ++step) {
      const int kind = pick(0, 9);
      std::vector<std::int32_t> gone;
      if (kind == 0) {
        places.free_prompt_memory(gone);
        forget(gone, [](const Held& h) { return h.place.area == 0; });
      } else if (kind < 3) {
        needed = pick(0, 3) == 0 ? pick(0, 70) : needed + pick(0, 5);
        places.need_cache(needed, gone);
        forget(gone, [&](const Held& h) {
          return h.place.area > 0 && h.place.at - (h.place.area - 1) * lending.cache.stride < needed * row;
        });
      } else if (kind == 3 && !held.empty()) {
        auto& [who, h] = held[static_cast<std::size_t>(pick(0, static_cast<int>(held.size()) - 1))];
        places.hand_over(h.place.area, who, next);
        who = next++;
      } else {
        const std::int64_t size = pick(1, 400);
        const auto place = places.take(next, size);
        if (!place) continue;
        const std::int64_t end = place->at + size;
        if (place->area == 0) {
          EXPECT_LE(end, lending.bytes);
        } else {
          const std::int64_t first = (place->area - 1) * lending.cache.stride;
          EXPECT_LE(end, first + bytes);
          EXPECT_GE(place->at, first + (needed + lending.cache_ahead) * row);
          EXPECT_EQ(place->at % 64, 0);
        }
        for (const auto& [who, h] : held) {
          if ((h.place.area == 0) == (place->area == 0)) {
            EXPECT_TRUE(end <= h.place.at || h.place.at + h.size <= place->at) << seed;
          }
        }
        held.push_back({next++, {*place, size}});
      }
      std::size_t in_cache = 0;
      for (const auto& [who, h] : held) in_cache += h.place.area > 0 ? 1U : 0U;
      EXPECT_EQ(places.in_cache(), in_cache);
    }
  }
}

}  // namespace
}  // namespace tandem
