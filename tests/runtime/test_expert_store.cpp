// The expert store against a card that is only pretended: memory that nobody but the card may touch once the model is
// loaded, copies that are done as late as is allowed, and places that hold rubbish until then. Checked against: each
// expert packed on its own, and a list of who is where.
#include "runtime/expert_store.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <map>
#include <random>
#include <set>

#include "placement/units.h"
#include "runtime/expert_report.h"
#include "runtime/model_visit.h"
#include "tests/runtime/model_cases.h"

namespace tandem::testing {
namespace {

// A round whose routes have been split already.
void close_round(ExpertStore& store, bool decode, std::size_t rows) {
  store.begin_round(decode, rows);
  store.end_round();
}

class FakeCard : public CardMemory {
 public:
  ~FakeCard() override { EXPECT_FALSE(running_) << "the store is gone, its copies are not"; }
  std::shared_ptr<std::uint8_t> allocate(std::size_t bytes) override {
    bytes_ = (bytes + 4095) / 4096 * 4096;
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    data_ = static_cast<std::uint8_t*>(memory);
    return {data_, [n = bytes_](std::uint8_t* p) { munmap(p, n); }};
  }
  void start(std::span<const Copy> copies) override {
    const Open open(*this);
    EXPECT_FALSE(running_) << "copies are still running";
    EXPECT_FALSE(copies.empty());
    running_ = true;
    ++starts;
    copies_.assign(copies.begin(), copies.end());
    sources_.clear();
    for (const Copy& copy : copies_) {
      EXPECT_NE(on_card(copy.to), on_card(copy.from)) << "a copy goes from one side to the other";
      sources_.emplace_back(copy.from, copy.from + copy.bytes);
      for (const Copy& other : copies_) {
        EXPECT_FALSE(overlap(copy.to, other.from, copy.bytes, other.bytes)) << "written and read at once";
        if (&other != &copy) {
          EXPECT_FALSE(overlap(copy.to, other.to, copy.bytes, other.bytes)) << "written twice at once";
        }
      }
    }
    for (const Copy& copy : copies_) std::memset(copy.to, 0xee, copy.bytes);
  }
  void wait() override {
    const Open open(*this);
    ++waits;
    if (!running_) return;
    running_ = false;
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      const Copy& copy = copies_[i];
      EXPECT_EQ(std::memcmp(copy.from, sources_[i].data(), copy.bytes), 0) << "a source changed while it was copied";
      std::memcpy(copy.to, copy.from, copy.bytes);
      if (damage && !on_card(copy.to)) copy.to[copy.bytes / 2] ^= 0x10;
      copied += copy.bytes;
    }
  }
  bool host_readable() const override { return readable; }
  void exchange(std::uint8_t* card, std::uint8_t* ram, std::size_t bytes) override {
    const Open open(*this);
    EXPECT_FALSE(running_);
    EXPECT_TRUE(on_card(card) && !on_card(ram));
    ++exchanges;
    std::swap_ranges(card, card + bytes, ram);
    if (damage) ram[bytes - 1] ^= 1;
  }

  bool on_card(const std::uint8_t* p) const { return p >= data_ && p < data_ + bytes_; }
  bool running() const { return running_; }
  // From now on only the card may touch its memory.
  void close() {
    closed_ = true;
    mprotect(data_, bytes_, PROT_NONE);
  }
  class Open {  // the card's own access
   public:
    explicit Open(FakeCard& card) : card_(card) { mprotect(card.data_, card.bytes_, PROT_READ | PROT_WRITE); }
    ~Open() {
      if (card_.closed_) mprotect(card_.data_, card_.bytes_, PROT_NONE);
    }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

   private:
    FakeCard& card_;
  };

  bool damage = false, readable = false;
  int starts = 0, waits = 0, exchanges = 0;
  std::size_t copied = 0;

 private:
  static bool overlap(const std::uint8_t* a, const std::uint8_t* b, std::size_t n, std::size_t m) {
    return a < b + m && b < a + n;
  }
  std::uint8_t* data_ = nullptr;
  std::size_t bytes_ = 0;
  bool running_ = false, closed_ = false;
  std::vector<Copy> copies_;
  std::vector<std::vector<std::uint8_t>> sources_;
};

void one_by_one(std::size_t n, const std::function<void(std::size_t)>& body) {
  for (std::size_t i = 0; i < n; ++i) body(i);
}

// Five banks of eight experts; banks 1 and 3 in Q4_0, the others in Q8_0: two sizes of blobs.
const BoundModel& two_sizes() {
  static const BoundModel model = [] {
    SyntheticOptions options;
    options.type = [](const tandem::TensorSpec& spec) {
      if (spec.form != TensorForm::kMatrix && spec.form != TensorForm::kBank) return DType::F32;
      return spec.form == TensorForm::kBank && spec.block % 2 == 1 ? DType::Q4_0 : DType::Q8_0;
    };
    return bind(synthetic_model(options));
  }();
  return model;
}
constexpr int kBanks = 5, kExperts = 8;

// One store, driven by made-up routes, with the truth beside it.
class Driven {
 public:
  Driven(AdaptSettings adapt, const ExpertPlacement& placement, std::uint32_t seed, std::vector<bool> movable = {})
      : random_(seed) {
    LoadOptions options;
    options.placement = placement;
    options.adapt = adapt;
    options.movable = std::move(movable);
    store.emplace(*two_sizes().model, options, &card, one_by_one);
    card.close();
    for_each_bank(*two_sizes().model, [&](const ExpertBank& bank) {
      const ExpertBlobLayout layout = ExpertBlobLayout::of(bank);
      for (int e = 0; e < kExperts; ++e) {
        std::vector<std::uint8_t>& blob = truth_.emplace_back(layout.bytes);
        pack_expert(bank, e, layout, blob.data());
      }
    });
    on_card_ = card_now();
  }

  // Some rows through every bank; returns the routes of a bank.
  void round(std::size_t rows, bool decode = true) {
    for (int b = 0; b < kBanks; ++b) {
      std::vector<std::int32_t> ids, hit(rows * 2, 7), miss(rows * 2, 7);
      for (std::size_t r = 0; r < rows; ++r) {
        const auto first = static_cast<std::int32_t>(random_() % kExperts);
        ids.push_back(first);
        ids.push_back((first + 1 + static_cast<std::int32_t>(random_() % (kExperts - 1))) % kExperts);
      }
      std::vector<float> weight(ids.size());
      const auto routes = [&](std::vector<std::int32_t>& list) { return Routes{list.data(), weight.data(), rows, 2}; };
      const ExpertStore::Split split = store->split(b, routes(ids), routes(hit), routes(miss));
      bool hits = false, misses = false;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const bool on = on_card_.contains({b, ids[i]});
        (on ? hits : misses) = true;
        EXPECT_EQ(hit[i], on ? ids[i] : -1);
        EXPECT_EQ(miss[i], on ? -1 : ids[i]);
        check_blob(b, ids[i]);
        expected_hits += on;
      }
      EXPECT_EQ(split.hits, hits);
      EXPECT_EQ(split.misses, misses);
    }
    close_round(*store, decode, rows);
    check_all();
    on_card_ = card_now();
  }

  void check_blob(int b, int e) {
    const std::uint8_t* blob = store->blob(b, e);
    const std::vector<std::uint8_t>& packed = truth_[static_cast<std::size_t>(b * kExperts + e)];
    if (blob == nullptr) {
      EXPECT_EQ(store->placement().at(b, e), Place::kDisk);
      return;
    }
    EXPECT_EQ(card.on_card(blob), store->on_card(b, e));
    const FakeCard::Open open(card);
    EXPECT_EQ(std::memcmp(blob, packed.data(), packed.size()), 0) << "expert " << e << " of bank " << b;
  }
  void check_all() {
    std::set<const std::uint8_t*> places;
    for (int b = 0; b < kBanks; ++b)
      for (int e = 0; e < kExperts; ++e) {
        if (store->blob(b, e) == nullptr) continue;
        check_blob(b, e);
        places.insert(store->blob(b, e));
        EXPECT_EQ(store->placement().at(b, e) == Place::kCard, store->on_card(b, e));
      }
    std::size_t loaded = 0;
    for (const Place place : store->placement().place) loaded += place != Place::kDisk;
    EXPECT_EQ(places.size(), loaded) << "two experts in one place";
  }
  std::set<std::pair<int, int>> card_now() const {
    std::set<std::pair<int, int>> now;
    for (int b = 0; b < kBanks; ++b)
      for (int e = 0; e < kExperts; ++e)
        if (store->on_card(b, e)) now.insert({b, e});
    return now;
  }

  FakeCard card;
  std::optional<ExpertStore> store;
  std::uint64_t expected_hits = 0;

 private:
  std::mt19937 random_;
  std::vector<std::vector<std::uint8_t>> truth_;
  std::set<std::pair<int, int>> on_card_;
};

ExpertPlacement thirds(std::uint32_t seed, bool disk = false) {
  ExpertPlacement placement = all_in_ram(kBanks, kExperts);
  std::mt19937 random(seed);
  for (Place& place : placement.place) {
    const auto draw = random() % 6;
    place = draw < 2 ? Place::kCard : disk && draw == 2 ? Place::kDisk : Place::kRam;
  }
  return placement;
}
AdaptSettings settings(AdaptMode mode, int swaps) {
  AdaptSettings adapt;
  adapt.mode = mode;
  adapt.swaps_per_round = swaps;
  adapt.half_life_rows = 10;
  adapt.margin = 1.0;
  return adapt;
}
std::size_t bytes_of(int bank) {
  std::size_t bytes = 0;
  int index = 0;
  for_each_bank(*two_sizes().model, [&](const ExpertBank& b) {
    if (index++ == bank) bytes = ExpertBlobLayout::of(b).bytes;
  });
  return bytes;
}

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
  const ExpertStore::Split split = store.split(0, routes(ids), routes(hits), routes(misses));
  EXPECT_FALSE(split.hits);
  EXPECT_TRUE(split.misses);
  EXPECT_EQ(misses, ids);
  close_round(store, true, 1);
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
    for (int b = 0; b < kBanks; ++b) {
      std::vector<std::int32_t> ids{round % kExperts, (round + 3) % kExperts}, hits(2), misses(2);
      std::vector<float> weight(2);
      const auto routes = [&](std::vector<std::int32_t>& list) { return Routes{list.data(), weight.data(), 1, 2}; };
      store.split(b, routes(ids), routes(hits), routes(misses));
      if (b == 2) {
        EXPECT_EQ(misses, ids);
      }
    }
    close_round(store, true, 1);
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
  run.store->verify();  // the card is not readable, and is left alone
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
  run.store->verify();
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
}

// ---- in words
// ---------------------------------------------------------------------------------------------------------

ExpertStats made_up() {
  ExpertStats stats;
  stats.prefill = {2, 40, 800, 200, 4096, 1024, 30, 6, 3 << 20, 0.5, 0.002};
  stats.decode = {10, 12, 160, 147, 8192, 7168, 21, 4, 1 << 20, 0.0031, 0.0004};
  return stats;
}

TEST(ExpertReport, StatusOfTheAnswer) {
  ExpertStats stats = made_up();
  EXPECT_EQ(expert_status(stats), "91.9 % hits, 2.1 misses a round, crew wait 0.31 ms, 4 swaps");
  stats.decode.swaps = 1;
  EXPECT_EQ(expert_status(stats), "91.9 % hits, 2.1 misses a round, crew wait 0.31 ms, 1 swap");
  stats.decode = {};
  EXPECT_EQ(expert_status(stats), "");
  EXPECT_EQ(expert_status({}), "");
}

TEST(ExpertReport, BetweenTwoLooks) {
  const ExpertStats one = made_up();
  ExpertStats two = one;
  two.decode += one.decode;
  two.decode += one.decode;
  const ExpertStats between = two - one;
  EXPECT_EQ(between.prefill.rounds, 0U);
  const ExpertCounts& d = between.decode;
  const std::vector<std::uint64_t> found{d.rounds,    d.rows,   d.routes, d.hits,      d.bytes,
                                         d.hit_bytes, d.misses, d.swaps,  d.swap_bytes};
  EXPECT_EQ(found, (std::vector<std::uint64_t>{20, 24, 320, 294, 16384, 14336, 42, 8, 2 << 20}));
  EXPECT_DOUBLE_EQ(d.crew_wait_seconds, 0.0062);
  EXPECT_DOUBLE_EQ(d.copy_wait_seconds, 0.0008);
}

TEST(ExpertReport, Lines) {
  ExpertPlacement start = all_in_ram(kBanks, kExperts);
  start.at(0, 0) = start.at(0, 1) = start.at(1, 1) = Place::kCard;
  start.at(4, 4) = Place::kDisk;
  Driven run(settings(AdaptMode::kOff, 0), start, 1);
  const auto text = [&](const ExpertStats& stats) {
    std::string all;
    for (const ReportLine& line : expert_report(*run.store, stats)) all += line.label + ": " + line.text + "\n";
    return all;
  };
  const std::string where = fmt::format("experts: 3 on the card ({}), 36 in RAM ({}, 0 B locked), 1 in the file\n",
                                        format_bytes(static_cast<std::int64_t>(run.store->card_bytes())),
                                        format_bytes(static_cast<std::int64_t>(run.store->ram_bytes())));
  EXPECT_EQ(text(made_up()),
            where +
                "prompt hits: 25.0 % of routes and 25.0 % of expert bytes on the card, 15.0 misses a round, 6 swaps "
                "(3.00 MiB), 40 tokens in 2 rounds\n"
                "answer hits: 91.9 % of routes and 87.5 % of expert bytes on the card, 2.1 misses a round, 4 swaps "
                "(1.00 MiB), 12 tokens in 10 rounds\n"
                "waiting: 0.31 ms a round for the crew, 0.04 ms for moves (answer)\n");
  ExpertStats prompt = made_up();
  prompt.decode = {};
  EXPECT_NE(text(prompt).find("waiting: 250.00 ms a round for the crew, 1.00 ms for moves\n"), std::string::npos);
  EXPECT_EQ(text({}), where + "waiting: 0.00 ms a round for the crew, 0.00 ms for moves\n");
  ExpertStore none(*two_sizes().model, {}, nullptr, one_by_one);
  EXPECT_EQ(expert_report(none, {}).size(), 1U);
}

// The waits belong to the phase of the round in which they were.
TEST(ExpertReport, WaitsByPhase) {
  Driven run(settings(AdaptMode::kOff, 0), thirds(1), 1);
  run.store->add_crew_wait(1.0);
  run.store->add_crew_wait(0.5);
  run.round(3, false);
  run.store->add_crew_wait(0.25);
  run.round(1, true);
  run.round(1, true);
  EXPECT_EQ(run.store->stats().prefill.crew_wait_seconds, 1.5);
  EXPECT_EQ(run.store->stats().decode.crew_wait_seconds, 0.25);
}

}  // namespace
}  // namespace tandem::testing
