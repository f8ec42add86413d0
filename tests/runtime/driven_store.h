// The expert store with a card that is only pretended: memory that nobody but the card may touch once the model is
// loaded, copies that are done as late as is allowed, and places that hold rubbish until then. Driven by made-up
// routes, with the truth beside it: each expert packed on its own, and a list of who is where.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "runtime/expert_store.h"
#include "runtime/model_visit.h"
#include "tests/runtime/model_cases.h"

namespace tandem::testing {

class FakeCard : public CardMemory {
 public:
  ~FakeCard() override { EXPECT_FALSE(running_) << "the store is gone, its copies are not"; }
  std::shared_ptr<std::uint8_t> allocate(std::size_t bytes) override {
    // All of it in one block, so that what lies on the card is a range.
    const std::size_t size = (bytes + 4095) / 4096 * 4096;
    if (data_ == nullptr) {
      void* memory = mmap(nullptr, kMost, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      CHECK(memory != MAP_FAILED);
      data_ = static_cast<std::uint8_t*>(memory);
      block_ = {data_, [](std::uint8_t* p) { munmap(p, kMost); }};
    }
    CHECK(bytes_ + size <= kMost, "{} bytes more", size);
    bytes_ += size;
    return {block_, data_ + bytes_ - size};
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
  void upload(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) override {
    const Open open(*this);
    EXPECT_TRUE(on_card(to) && !on_card(from));
    std::memcpy(to, from, bytes);
  }
  void download(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) override {
    const Open open(*this);
    EXPECT_TRUE(!on_card(to) && on_card(from));
    std::memcpy(to, from, bytes);
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
  static constexpr std::size_t kMost = 64 << 20;
  std::shared_ptr<std::uint8_t> block_;
  std::uint8_t* data_ = nullptr;
  std::size_t bytes_ = 0;
  bool running_ = false, closed_ = false;
  std::vector<Copy> copies_;
  std::vector<std::vector<std::uint8_t>> sources_;
};

inline void one_by_one(std::size_t n, const std::function<void(std::size_t)>& body) {
  for (std::size_t i = 0; i < n; ++i) body(i);
}

// Five banks of eight experts; banks 1 and 3 in Q4_0, the others in Q8_0: two sizes of blobs.
inline const BoundModel& two_sizes() {
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
inline constexpr int kBanks = 5, kExperts = 8;

// One store, driven by made-up routes, with the truth beside it.
class Driven {
 public:
  Driven(AdaptSettings adapt, const ExpertPlacement& placement, std::uint32_t seed, std::vector<bool> movable = {},
         Lending lending = {})
      : random_(seed) {
    LoadOptions options;
    options.placement = placement;
    options.adapt = adapt;
    options.movable = std::move(movable);
    options.lending = std::move(lending);
    const auto region = [this](std::int64_t n) {
      const auto bytes = static_cast<std::size_t>(n);
      return bytes > 0 ? std::make_shared<Region>(host_memory(), card.allocate(bytes), bytes) : nullptr;
    };
    LentMemory lent;
    lent.prompt = region(options.lending.bytes);
    lent.cache = region(options.lending.cache.total());
    areas_ = options.lending.cache;
    store.emplace(*two_sizes().model, options, &card, one_by_one, lent);
    card.close();
    lease = store->lease_cache();
    EXPECT_EQ(lease != nullptr, areas_.count > 0);
    for_each_bank(*two_sizes().model, [&](const ExpertBank& bank) {
      const ExpertBlobLayout layout = ExpertBlobLayout::of(bank);
      for (int e = 0; e < kExperts; ++e) {
        std::vector<std::uint8_t>& blob = truth_.emplace_back(layout.bytes);
        pack_expert(bank, e, layout, blob.data());
      }
    });
    on_card_ = card_now();
  }

  // A long pass: work memory lies where experts were.
  void long_round(std::size_t rows) {
    store->begin_round(false, rows);
    store->reclaim();
    EXPECT_FALSE(store->prompt_memory_lent());
    EXPECT_TRUE(areas_.count > 0 || store->lent() == 0);
    const Region& memory = *store->lent_memory().prompt;
    {
      const FakeCard::Open open(card);
      std::memset(memory.data(), 0x55, memory.bytes());
    }
    check_all();
    store->end_round();
    check_all();
    {
      const FakeCard::Open open(card);
      EXPECT_TRUE(std::all_of(memory.data(), memory.data() + memory.bytes(), [](std::uint8_t b) { return b == 0x55; }))
          << "a copy went to memory that was taken back";
    }
    on_card_ = card_now();
  }

  // The sequence needs so many rows of the cache, and writes all of them; copies to elsewhere may go on.
  void need(std::int64_t positions) {
    lease->need(positions);
    needed_ = positions;
    for_rows([](std::uint8_t* rows, std::size_t n) { std::memset(rows, 0x66, n); });
    check_all();
    on_card_ = card_now();
  }

  // Some rows through every bank; returns the routes of a bank.
  void round(std::size_t rows, bool decode = true) {
    store->begin_round(decode, rows);
    for (int b = 0; b < kBanks; ++b) {
      std::vector<std::int32_t> ids, hit(rows * 2, 7), miss(rows * 2, 7);
      for (std::size_t r = 0; r < rows; ++r) {
        const auto first = static_cast<std::int32_t>(random_() % kExperts);
        ids.push_back(first);
        ids.push_back((first + 1 + static_cast<std::int32_t>(random_() % (kExperts - 1))) % kExperts);
      }
      std::vector<float> weight(ids.size());
      const auto routes = [&](std::vector<std::int32_t>& list) { return Routes{list.data(), weight.data(), rows, 2}; };
      const RouteSplit split = store->split(b, routes(ids), routes(hit), routes(miss));
      bool hits = false, misses = false;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const bool on = on_card_.contains({b, ids[i]});
        (on ? hits : misses) = true;
        EXPECT_EQ(hit[i], on ? ids[i] : -1);
        EXPECT_EQ(miss[i], on ? -1 : ids[i]);
        check_blob(b, ids[i]);
        expected_hits += on;
      }
      store->count(b, ids, rows);
      EXPECT_EQ(split.hits, hits);
      EXPECT_EQ(split.misses, misses);
      std::set<std::int32_t> missed;
      for (const std::int32_t e : ids)
        if (!on_card_.contains({b, e})) missed.insert(e);
      expected_missed += missed.size();
      EXPECT_EQ(store->missed(), expected_missed);  // those of the open round too
    }
    store->end_round();
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
    std::vector<const std::uint8_t*> blobs;
    std::size_t slots = 0, on_card = 0;
    for (int b = 0; b < kBanks; ++b)
      for (int e = 0; e < kExperts; ++e) {
        blobs.push_back(store->blob(b, e));
        if (store->blob(b, e) == nullptr) continue;
        check_blob(b, e);
        places.insert(store->blob(b, e));
        if (store->placement().at(b, e) == Place::kCard) {
          EXPECT_TRUE(store->on_card(b, e));
          ++slots;
        }
        on_card += store->on_card(b, e) ? 1U : 0U;
      }
    EXPECT_EQ(on_card, slots + store->lent());
    if (areas_.count > 0)
      for_rows([](const std::uint8_t* rows, std::size_t n) {
        EXPECT_TRUE(std::all_of(rows, rows + n, [](std::uint8_t b) { return b == 0x66; })) << "the cache was written";
      });
    std::size_t loaded = 0;
    for (const Place place : store->placement().place) loaded += place != Place::kDisk;
    EXPECT_EQ(places.size(), loaded) << "two experts in one place";
    // A card's table of addresses is made anew where the number has changed (CudaOps::refresh_slots).
    EXPECT_TRUE(blobs == blobs_ || store->moves() != moves_ || blobs_.empty()) << "an expert has moved unseen";
    blobs_ = std::move(blobs);
    moves_ = store->moves();
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
  std::shared_ptr<CacheLease> lease;
  std::uint64_t expected_hits = 0, expected_missed = 0;

 private:
  void for_rows(const std::function<void(std::uint8_t*, std::size_t)>& body) {
    const FakeCard::Open open(card);
    std::uint8_t* const first = store->lent_memory().cache->data();
    const auto bytes = static_cast<std::size_t>(std::min(needed_ * areas_.position_bytes, areas_.bytes));
    for (int a = 0; a < areas_.count; ++a) body(first + a * areas_.stride, bytes);
  }

  std::mt19937 random_;
  CacheAreas areas_;
  std::int64_t needed_ = 0;  // rows of the cache
  std::vector<std::vector<std::uint8_t>> truth_;
  std::set<std::pair<int, int>> on_card_;
  std::vector<const std::uint8_t*> blobs_;  // when all was last checked
  std::uint64_t moves_ = 0;
};

inline ExpertPlacement thirds(std::uint32_t seed, bool disk = false) {
  ExpertPlacement placement = all_in_ram(kBanks, kExperts);
  std::mt19937 random(seed);
  for (Place& place : placement.place) {
    const auto draw = random() % 6;
    place = draw < 2 ? Place::kCard : disk && draw == 2 ? Place::kDisk : Place::kRam;
  }
  return placement;
}
inline AdaptSettings settings(AdaptMode mode, int swaps) {
  AdaptSettings adapt;
  adapt.mode = mode;
  adapt.swaps_per_round = swaps;
  adapt.half_life_rows = 10;
  adapt.margin = 1.0;
  return adapt;
}
inline std::size_t bytes_of(int bank) {
  std::size_t bytes = 0;
  int index = 0;
  for_each_bank(*two_sizes().model, [&](const ExpertBank& b) {
    if (index++ == bank) bytes = ExpertBlobLayout::of(b).bytes;
  });
  return bytes;
}

}  // namespace tandem::testing
