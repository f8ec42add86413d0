// The expert store against a pretended card; see tests/runtime/driven_store.h for what it is checked against.
#include "tests/runtime/driven_store.h"

namespace tandem::testing {
namespace {

TEST(ExpertStore, EveryBlobIsWholeWhileExpertsMove) {
  ASSERT_NE(bytes_of(0), bytes_of(1));
  ASSERT_EQ(bytes_of(0), bytes_of(4));
  for (const AdaptMode mode : {AdaptMode::kOff, AdaptMode::kLru, AdaptMode::kLfu, AdaptMode::kSwaps})
    for (const bool disk : {false, true})
      for (const int swaps : {1, 2, 6}) {
        SCOPED_TRACE(fmt::format("mode {}, disk {}, {} swaps", static_cast<int>(mode), disk, swaps));
        const ExpertPlacement start = thirds(static_cast<std::uint32_t>(swaps), disk);
        Driven run(settings(mode, swaps), start, 3);
        for (std::size_t round = 0; round < 60; ++round) run.round(1 + round % 3, round % 2 == 0);
        const ExpertStats& stats = run.store->stats();
        EXPECT_EQ(stats.prefill.hits + stats.decode.hits, run.expected_hits);
        EXPECT_EQ(stats.prefill.rows + stats.decode.rows, 120U);
        EXPECT_EQ(stats.prefill.rounds, 30U);
        EXPECT_EQ(stats.decode.rounds, 30U);
        const std::uint64_t moved = stats.prefill.swaps + stats.decode.swaps;
        EXPECT_EQ(moved == 0, mode == AdaptMode::kOff);
        EXPECT_EQ(run.card.starts == 0, mode == AdaptMode::kOff);
        for (int b = 0; b < kBanks; ++b)
          for (int e = 0; e < kExperts; ++e) {
            EXPECT_EQ(start.at(b, e) == Place::kDisk, run.store->placement().at(b, e) == Place::kDisk);
            EXPECT_EQ(start.at(b, e) == Place::kDisk, run.store->blob(b, e) == nullptr);
          }
        EXPECT_EQ(run.store->placement().count(Place::kCard), start.count(Place::kCard));
      }
}

// A cache that takes in every miss needs more moves in a round than there are spare places.
TEST(ExpertStore, MovesWithoutASparePlaceAreExchanges) {
  Driven run(settings(AdaptMode::kLru, 1), thirds(9), 4);
  for (int round = 0; round < 40; ++round) run.round(3);
  EXPECT_GT(run.card.exchanges, 20);
  EXPECT_GT(run.card.starts, 20);
  // What was decided is moved, but for what is still on its way.
  const ExpertCounts& counts = run.store->stats().decode;
  EXPECT_GT(counts.swap_bytes, counts.swaps * std::min(bytes_of(0), bytes_of(1)));
  Driven none(settings(AdaptMode::kLru, 0), thirds(9), 4);
  for (int round = 0; round < 40; ++round) none.round(3);
  EXPECT_EQ(none.card.starts, 0);
  EXPECT_GT(none.card.exchanges, run.card.exchanges);
  EXPECT_EQ(none.card_now(), run.card_now());
  EXPECT_EQ(none.store->stats().decode.swap_bytes, counts.swap_bytes);
}

// Between long passes memory is lent to experts, moved in swaps as others are; whatever is under way when a long pass
// begins.
TEST(ExpertStore, EveryBlobIsWholeWhileMemoryIsLent) {
  for (const AdaptMode mode : {AdaptMode::kOff, AdaptMode::kLru, AdaptMode::kLfu, AdaptMode::kSwaps})
    for (const int swaps : {0, 1, 4})
      for (const std::size_t pause : {1U, 2U, 3U, 17U}) {
        SCOPED_TRACE(fmt::format("mode {}, {} swaps, {} rounds", static_cast<int>(mode), swaps, pause));
        const ExpertPlacement start = thirds(static_cast<std::uint32_t>(swaps + 1), true);
        Lending lending;
        lending.bytes = static_cast<std::int64_t>(5 * bytes_of(0) + 100);
        lending.bytes_per_round = static_cast<std::int64_t>(2 * bytes_of(0));
        Driven run(settings(mode, swaps), start, 3, {}, lending);
        std::size_t most = 0;
        for (std::size_t round = 0; round < 60; ++round) {
          if (round % pause == pause - 1) run.long_round(100);
          run.round(1 + round % 3);
          most = std::max(most, run.store->lent());
          run.store->verify();
        }
        EXPECT_EQ(most == 0, pause == 1);  // copied when the next long pass begins
        if (pause == 17) {
          EXPECT_GE(most, 4U);  // one that was in the line may have come in by a swap
        }
        run.long_round(100);
        EXPECT_EQ(run.store->placement().count(Place::kCard), start.count(Place::kCard));
        EXPECT_EQ(run.store->placement().count(Place::kDisk), start.count(Place::kDisk));
      }
}

// The same beside a cache into which a sequence grows, a little or far at once, and begins anew; its rows stay what was
// written there, whatever is under way.
TEST(ExpertStore, EveryBlobIsWholeWhileTheCacheIsLent) {
  for (const AdaptMode mode : {AdaptMode::kOff, AdaptMode::kLru, AdaptMode::kLfu, AdaptMode::kSwaps})
    for (const bool prompts : {false, true}) {
      SCOPED_TRACE(fmt::format("mode {}, prompt memory {}", static_cast<int>(mode), prompts));
      std::mt19937 random(static_cast<std::uint32_t>(mode) * 2 + prompts);
      const ExpertPlacement start = thirds(static_cast<std::uint32_t>(random()), true);
      Lending lending;
      if (prompts) lending.bytes = static_cast<std::int64_t>(2 * bytes_of(0) + 100);
      lending.bytes_per_round = static_cast<std::int64_t>(2 * bytes_of(0));
      const auto bytes = static_cast<std::int64_t>(3 * bytes_of(0) + 640);
      lending.cache = {3, bytes, (bytes + 255) / 256 * 256, 64};
      lending.cache_ahead = 1;
      Driven run(settings(mode, 2), start, 3, {}, lending);
      EXPECT_EQ(run.store->lease_cache(), nullptr);  // another sequence has it
      const std::int64_t context = bytes / 64;
      std::int64_t position = 0;
      std::size_t most = 0, least = 100;
      for (std::size_t round = 0; round < 150; ++round) {
        const auto draw = random() % 20;
        position = draw == 0         ? 0
                   : draw == 1       ? position + context / 4
                   : round % 50 == 9 ? context
                                     : position + context / 90;
        run.need(std::min(position, context));
        if (prompts && random() % 16 == 0)
          run.long_round(100);
        else
          run.round(1 + round % 3);
        most = std::max(most, run.store->lent());
        if (position >= context) least = std::min(least, prompts ? 0 : run.store->lent());
        run.store->verify();
      }
      EXPECT_GE(most, 5U);
      EXPECT_EQ(least, 0U);
      run.need(0);
      for (int round = 0; round < 8; ++round) run.round(2);
      EXPECT_GE(run.store->lent(), 5U);
      run.lease.reset();
      EXPECT_GE(run.store->lent(), 5U);
      run.lease = run.store->lease_cache();  // the next sequence finds nobody there
      ASSERT_NE(run.lease, nullptr);
      EXPECT_EQ(run.store->lent() > 0, run.store->prompt_memory_lent());
      run.need(context);
      EXPECT_EQ(run.store->placement().count(Place::kCard), start.count(Place::kCard));
    }
}

// A swap that is decided at the end of a round holds after the next one, and its bytes are copied in between.
TEST(ExpertStore, MovesTakeEffectARoundLater) {
  ExpertPlacement start = all_in_ram(kBanks, kExperts);
  for (int b = 0; b < kBanks; ++b) start.at(b, 0) = start.at(b, 1) = Place::kCard;
  Driven run(settings(AdaptMode::kSwaps, 6), start, 5);
  const auto before = run.card_now();
  std::uint64_t decided = 0;
  for (int round = 0; round < 20 && decided == 0; ++round) {
    run.round(4);
    decided = run.store->stats().decode.swaps;
    EXPECT_EQ(run.card_now(), before);
  }
  ASSERT_GT(decided, 0U);
  EXPECT_TRUE(run.card.running());
  EXPECT_EQ(run.card.copied, 0U);
  run.round(1);
  EXPECT_NE(run.card_now(), before);
  std::uint64_t bytes = 0;
  for (const auto& [b, e] : run.card_now()) bytes += before.contains({b, e}) ? 0 : bytes_of(b);
  EXPECT_EQ(run.card.copied, 2 * bytes);
}

TEST(ExpertStore, PlacesOfEachSize) {
  ExpertPlacement start = all_in_ram(kBanks, kExperts);
  start.at(0, 0) = start.at(2, 5) = Place::kCard;  // large ones only
  start.at(1, 3) = Place::kDisk;
  const std::size_t large = bytes_of(0), small = bytes_of(1);
  const auto whole = [](std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; };
  Driven still(settings(AdaptMode::kOff, 3), start, 1);
  EXPECT_EQ(still.store->slots(), 2U);
  EXPECT_EQ(still.store->card_bytes(), 2 * large);
  EXPECT_EQ(still.store->ram_bytes(), whole(22 * large + 15 * small));
  // Only the size that has experts on both sides gets spare places.
  Driven moving(settings(AdaptMode::kSwaps, 3), start, 1);
  EXPECT_EQ(moving.store->card_bytes(), 5 * large);
  EXPECT_EQ(moving.store->ram_bytes(), whole(25 * large + 15 * small));
  for (int round = 0; round < 40; ++round) moving.round(2);
  EXPECT_FALSE(moving.store->on_card(1, 0));
  EXPECT_GT(moving.store->stats().decode.swaps, 0U);
}

TEST(ExpertStore, PinnedExpertsStay) {
  const ExpertPlacement start = thirds(2);
  std::vector<bool> movable(start.place.size());
  for (std::size_t i = 0; i < movable.size(); ++i) movable[i] = i % 3 != 0;
  Driven run(settings(AdaptMode::kLru, 2), start, 6, movable);
  for (int round = 0; round < 40; ++round) run.round(3);
  const ExpertPlacement end = run.store->placement();
  EXPECT_NE(end.place, start.place);
  for (std::size_t i = 0; i < movable.size(); i += 3) EXPECT_EQ(end.place[i], start.place[i]);
}

TEST(ExpertStore, WithoutACardEverythingIsAMiss) {
  Driven run(settings(AdaptMode::kSwaps, 2), thirds(1), 1);
  LoadOptions options;
  ExpertStore store(*two_sizes().model, options, nullptr, one_by_one);
  EXPECT_FALSE(store.has_card());
  std::vector<std::int32_t> ids{3, 1}, hits{9, 9}, misses{9, 9};
  std::vector<float> weight(2);
  const auto routes = [&](std::vector<std::int32_t>& list) { return Routes{list.data(), weight.data(), 1, 2}; };
  store.begin_round(true, 1);
  const RouteSplit split = store.split(0, routes(ids), routes(hits), routes(misses));
  EXPECT_FALSE(split.hits);
  EXPECT_TRUE(split.misses);
  EXPECT_EQ(misses, ids);
  store.end_round();
  EXPECT_EQ(store.stats().decode.rounds, 0U);
  store.verify();
  EXPECT_EQ(store.placement().count(Place::kRam), kBanks * kExperts);
}

// A bank of floats has no packed form: its experts stay in the file, wherever they were to go.
TEST(ExpertStore, BanksWithoutAPackedForm) {
  SyntheticOptions options;
  options.type = [](const tandem::TensorSpec& spec) {
    if (spec.form != TensorForm::kMatrix && spec.form != TensorForm::kBank) return DType::F32;
    return spec.form == TensorForm::kBank && spec.block == 2 ? DType::F32 : DType::Q8_0;
  };
  const BoundModel model = bind(synthetic_model(options));
  LoadOptions load;
  load.placement = all_in_ram(kBanks, kExperts);
  load.adapt = settings(AdaptMode::kLru, 2);
  for (const int b : {0, 2}) load.placement->at(b, 1) = load.placement->at(b, 5) = Place::kCard;
  FakeCard card;
  ExpertStore store(*model.model, load, &card, one_by_one);
  EXPECT_EQ(store.slots(), 2U);
  EXPECT_EQ(store.layout(2), nullptr);
  for (int round = 0; round < 30; ++round) {
    store.begin_round(true, 1);
    for (int b = 0; b < kBanks; ++b) {
      std::vector<std::int32_t> ids{round % kExperts, (round + 3) % kExperts}, hits(2), misses(2);
      std::vector<float> weight(2);
      const auto routes = [&](std::vector<std::int32_t>& list) { return Routes{list.data(), weight.data(), 1, 2}; };
      store.split(b, routes(ids), routes(hits), routes(misses));
      store.count(b, ids, 1);
      if (b == 2) {
        EXPECT_EQ(misses, ids);
      }
    }
    store.end_round();
  }
  EXPECT_GT(store.stats().decode.swaps, 10U);
  for (int e = 0; e < kExperts; ++e) {
    EXPECT_EQ(store.blob(2, e), nullptr);
    EXPECT_EQ(store.placement().at(2, e), Place::kDisk);
  }
}

TEST(ExpertStore, ProgressCountsTheBytesOfTheFile) {
  ExpertPlacement placement = all_in_ram(kBanks, kExperts);
  for (int e = 0; e < kExperts; ++e) placement.at(2, e) = Place::kDisk;
  placement.at(0, 4) = Place::kDisk;
  LoadOptions options;
  options.placement = placement;
  std::size_t expected = 0;
  int index = 0;
  for_each_bank(*two_sizes().model, [&](const ExpertBank& bank) {
    const std::size_t one = bank.gate.bytes() + bank.up.bytes() + bank.down.bytes();
    expected += one * (index == 2 ? 0 : index == 0 ? 7 : 8);
    ++index;
  });
  EXPECT_EQ(ExpertStore::load_bytes(*two_sizes().model, options), expected);
  std::vector<std::size_t> seen;
  options.progress = [&](std::size_t done, std::size_t total) {
    EXPECT_EQ(total, expected);
    seen.push_back(done);
  };
  ExpertStore store(*two_sizes().model, options, nullptr, one_by_one);
  EXPECT_EQ(seen.size(), 4U);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(seen.back(), expected);
}

TEST(ExpertStoreDeathTest, AWrongChecksumEndsTheProgram) {
  EXPECT_DEATH(
      {
        Driven run(settings(AdaptMode::kLru, 2), thirds(3), 7);
        run.card.damage = true;
        for (int round = 0; round < 10; ++round) run.round(3);
      },
      "expert [0-7] of layer [0-4], brought back from the card: checksum [0-9a-f]{16}, packed as [0-9a-f]{16}");
  EXPECT_DEATH(
      {
        Driven run(settings(AdaptMode::kLru, 0), thirds(3), 7);  // by exchange
        run.card.damage = true;
        for (int round = 0; round < 10; ++round) run.round(3);
      },
      "brought back from the card: checksum");
  ExpertPlacement start = all_in_ram(kBanks, kExperts);
  start.at(3, 6) = Place::kCard;
  Driven run(settings(AdaptMode::kOff, 2), start, 7);
  run.store->verify();
  const auto flip = [&](int b, int e) {
    const FakeCard::Open open(run.card);
    const_cast<std::uint8_t*>(run.store->blob(b, e))[5] ^= 1;
  };
  EXPECT_DEATH(
      {
        flip(4, 7);
        run.store->verify();
      },
      "expert 7 of layer 4, in RAM: checksum");
  flip(3, 6);
  EXPECT_DEATH(run.store->verify(), "expert 6 of layer 3, on the card: checksum");  // read back by the card
  run.card.readable = true;
  EXPECT_DEATH(
      {
        const FakeCard::Open open(run.card);
        run.store->verify();
      },
      "expert 6 of layer 3, on the card: checksum");
}

TEST(ExpertStoreDeathTest, MistakesOfTheCaller) {
  LoadOptions options;
  options.placement = all_in_ram(kBanks, kExperts - 1);
  EXPECT_DEATH(ExpertStore(*two_sizes().model, options, nullptr, one_by_one), "a placement of 5 x 7 experts for 5 x 8");
  options.placement = all_in_ram(kBanks, kExperts);
  options.placement->at(0, 0) = Place::kCard;
  EXPECT_DEATH(ExpertStore(*two_sizes().model, options, nullptr, one_by_one), "1 slots without a card");
  // The lent cache for a sequence of half its context.
  Lending lending;
  lending.cache = {2, 1024, 1024, 64};
  Driven run(settings(AdaptMode::kOff, 0), thirds(3), 7, {}, lending);
  const FakeCard::Open open(run.card);
  run.lease->memory().allocate(512);
  run.lease->memory().allocate(512);
  EXPECT_DEATH(run.lease->need(1), "arrays of 1024 bytes in a cache of 2048");
  run.lease->memory().allocate(1024);
  run.lease->need(1);
}

}  // namespace
}  // namespace tandem::testing
