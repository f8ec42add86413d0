#include "runtime/expert_store.h"

#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "runtime/model_visit.h"

namespace tandem {
namespace {

std::uint64_t checksum(const std::uint8_t* blob, std::size_t bytes) {
  return XXH3_64bits(blob, bytes);
}

std::size_t file_bytes(const ExpertBank& bank) {  // of one expert
  return bank.gate.bytes() + bank.up.bytes() + bank.down.bytes();
}

ExpertCounts counts_between(const Adapter::Counts& after, const Adapter::Counts& before) {
  ExpertCounts counts;
  counts.rounds = after.rounds - before.rounds;
  counts.routes = after.routes - before.routes;
  counts.hits = after.hits - before.hits;
  counts.bytes = after.bytes - before.bytes;
  counts.hit_bytes = after.hit_bytes - before.hit_bytes;
  counts.misses = after.misses - before.misses;
  counts.swaps = after.swaps - before.swaps;
  counts.swap_bytes = after.swap_bytes - before.swap_bytes;
  return counts;
}

template <typename Combine>
void combine_fields(ExpertCounts& a, const ExpertCounts& b, Combine&& combine) {
  combine(a.rounds, b.rounds);
  combine(a.rows, b.rows);
  combine(a.routes, b.routes);
  combine(a.hits, b.hits);
  combine(a.bytes, b.bytes);
  combine(a.hit_bytes, b.hit_bytes);
  combine(a.misses, b.misses);
  combine(a.swaps, b.swaps);
  combine(a.swap_bytes, b.swap_bytes);
  combine(a.crew_wait_seconds, b.crew_wait_seconds);
  combine(a.copy_wait_seconds, b.copy_wait_seconds);
}

}  // namespace

ExpertCounts ExpertCounts::operator-(const ExpertCounts& earlier) const {
  ExpertCounts result = *this;
  combine_fields(result, earlier, [](auto& a, auto b) { a -= b; });
  return result;
}
ExpertCounts& ExpertCounts::operator+=(const ExpertCounts& more) {
  combine_fields(*this, more, [](auto& a, auto b) { a += b; });
  return *this;
}

LentMemory::LentMemory(MachineMemory& memory, const Lending& lending) {
  const auto region = [&](std::int64_t bytes) {
    return bytes > 0 ? std::make_shared<Region>(memory, static_cast<std::size_t>(bytes)) : nullptr;
  };
  prompt = region(lending.bytes);
  cache = region(lending.cache.total());
}

// A region of its own over the same memory: each sequence lays its arrays out anew.
class ExpertStore::Lease : public CacheLease {
 public:
  explicit Lease(ExpertStore& store) : store_(store), region_(*store.lent_memory_.cache) {}
  MachineMemory& memory() override { return region_; }
  void need(std::int64_t positions) override {
    // Rows of other arrays would lie where the places do not expect them.
    CHECK(region_.used() == 0 || region_.used() == region_.bytes(), "arrays of {} bytes in a cache of {}",
          region_.used(), region_.bytes());
    store_.take_back(store_.adapter_->need_cache(positions));
  }

 private:
  ExpertStore& store_;
  Region region_;
};

std::shared_ptr<CacheLease> ExpertStore::lease_cache() {
  if (!lent_memory_.cache || !lease_.expired()) return nullptr;
  take_back(adapter_->need_cache(std::numeric_limits<std::int32_t>::max()));
  auto lease = std::make_shared<Lease>(*this);
  lease_ = lease;
  return lease;
}

ExpertStore::ExpertStore(const Model& model, const LoadOptions& options, CardMemory* card, const ParallelFor& parallel,
                         LentMemory lent_memory)
    : lent_memory_(std::move(lent_memory)) {
  place(model, options, card);
  fill(model, parallel, options);
  if (card_ != nullptr && ram_.bytes() > 0) {
    std::string warning = card_->pin(ram_.data(), ram_.bytes());
    ram_pinned_ = warning.empty();
    if (!ram_pinned_) warnings_.push_back(std::move(warning));
  }
  if (ram_.lock() < ram_.bytes() && !ram_.warning().empty()) warnings_.push_back(ram_.warning());
}

ExpertStore::~ExpertStore() {
  if (!moving_.empty()) card_->wait();
  if (card_ != nullptr && ram_.bytes() > 0) card_->unpin(ram_.data());
}

// Finds a home for every blob. Nothing is read yet.
void ExpertStore::place(const Model& model, const LoadOptions& options, CardMemory* card) {
  for_each_bank(model, [&](const ExpertBank& bank) {
    experts_ = bank.experts;
    Bank& entry = banks_.emplace_back();
    if (!ExpertBlobLayout::possible(bank)) return;
    entry.layout = ExpertBlobLayout::of(bank);
    const auto same = std::find_if(classes_.begin(), classes_.end(),
                                   [&](const SizeClass& c) { return c.bytes == entry.layout->bytes; });
    entry.size_class = static_cast<int>(same - classes_.begin());
    if (same == classes_.end()) classes_.push_back({entry.layout->bytes, {}, {}});
  });
  ExpertPlacement placement = options.placement ? *options.placement : all_in_ram(banks(), experts_);
  CHECK(placement.banks == banks() && placement.experts == experts_, "a placement of {} x {} experts for {} x {}",
        placement.banks, placement.experts, banks(), experts_);
  for (int b = 0; b < banks(); ++b)
    for (int e = 0; e < experts_ && !layout(b); ++e) placement.at(b, e) = Place::kDisk;
  slots_ = static_cast<std::size_t>(placement.count(Place::kCard));

  // Cells of each class, and spares for the moves of one round.
  const std::size_t spares =
      slots_ > 0 && options.adapt.mode != AdaptMode::kOff ? static_cast<std::size_t>(options.adapt.swaps_per_round) : 0;
  std::vector<std::size_t> on_card(classes_.size()), in_ram(classes_.size());
  for (int b = 0; b < banks(); ++b)
    for (int e = 0; e < experts_; ++e) {
      if (placement.at(b, e) == Place::kDisk) continue;
      auto& cells = placement.at(b, e) == Place::kCard ? on_card : in_ram;
      ++cells[static_cast<std::size_t>(banks_[static_cast<std::size_t>(b)].size_class)];
    }
  std::size_t ram_total = 0;
  std::vector<std::size_t> card_at(classes_.size()), ram_at(classes_.size());
  for (std::size_t c = 0; c < classes_.size(); ++c) {
    // A class that has nothing on one of the sides has nothing to exchange.
    const std::size_t extra = on_card[c] > 0 && in_ram[c] > 0 ? spares : 0;
    card_at[c] = card_bytes_;
    ram_at[c] = ram_total;
    card_bytes_ += (on_card[c] + extra) * classes_[c].bytes;
    ram_total += (in_ram[c] + extra) * classes_[c].bytes;
  }
  ram_ = Arena(ram_total, {options.huge_pages, options.lock_memory});
  card_ = card;
  if (card_bytes_ > 0) {
    CHECK(card != nullptr, "{} slots without a card", slots_);
    card_memory_ = card->allocate(card_bytes_);
  }
  blobs_.assign(static_cast<std::size_t>(banks()) * static_cast<std::size_t>(experts_), nullptr);
  for (int b = 0; b < banks(); ++b)
    for (int e = 0; e < experts_; ++e) {
      if (placement.at(b, e) == Place::kDisk) continue;
      const auto c = static_cast<std::size_t>(banks_[static_cast<std::size_t>(b)].size_class);
      const bool slot = placement.at(b, e) == Place::kCard;
      std::size_t& next = slot ? card_at[c] : ram_at[c];
      blobs_[at(b, e)] = (slot ? card_memory_.get() : ram_.data()) + next;
      next += classes_[c].bytes;
    }
  for (std::size_t c = 0; c < classes_.size(); ++c)
    for (std::size_t i = 0; i < spares && on_card[c] > 0 && in_ram[c] > 0; ++i) {
      classes_[c].spare_card.push_back(card_memory_.get() + card_at[c] + i * classes_[c].bytes);
      classes_[c].spare_ram.push_back(ram_.data() + ram_at[c] + i * classes_[c].bytes);
    }

  kept_.assign(blobs_.size(), nullptr);
  if (slots_ > 0 || lent_memory_) {
    const auto fits = [](const std::shared_ptr<Region>& region, std::int64_t bytes) {
      return !region || std::cmp_equal(region->bytes(), bytes);
    };
    CHECK(card != nullptr && fits(lent_memory_.prompt, options.lending.bytes) &&
              fits(lent_memory_.cache, options.lending.cache.total()),
          "{} and {} bytes to lend", options.lending.bytes, options.lending.cache.total());
    std::vector<std::int64_t> sizes;
    for (const Bank& bank : banks_) sizes.push_back(bank.layout ? static_cast<std::int64_t>(bank.layout->bytes) : 0);
    std::vector<bool> movable = options.movable;
    if (movable.empty()) movable.assign(blobs_.size(), true);
    seen_.assign(static_cast<std::size_t>(experts_), 0);
    Lending lending = options.lending;
    if (!lent_memory_.prompt) lending.bytes = 0;
    if (!lent_memory_.cache) lending.cache = {};
    short_rows_ = static_cast<std::size_t>(lending.rows);
    adapter_.emplace(options.adapt, placement, std::move(sizes), std::move(movable), std::move(lending));
    adapter_->need_cache(std::numeric_limits<std::int32_t>::max());  // nobody has leased it
    moving_.reserve(64);
  }
  start_ = std::move(placement);
}

std::size_t ExpertStore::load_bytes(const Model& model, const LoadOptions& options) {
  std::size_t total = 0;
  int bank_index = 0;
  for_each_bank(model, [&](const ExpertBank& bank) {
    const int b = bank_index++;
    if (!ExpertBlobLayout::possible(bank)) return;
    for (int e = 0; e < bank.experts; ++e)
      if (!options.placement || options.placement->at(b, e) != Place::kDisk) total += file_bytes(bank);
  });
  return total;
}

void ExpertStore::fill(const Model& model, const ParallelFor& parallel, const LoadOptions& options) {
  const std::size_t total = load_bytes(model, options);
  std::size_t done = 0;
  const auto loaded = [&](int bank) {
    std::vector<int> experts;
    for (int e = 0; e < experts_; ++e)
      if (blob(bank, e) != nullptr) experts.push_back(e);
    return experts;
  };
  checksums_.assign(blobs_.size(), 0);
  int index = 0;
  for_each_bank(model, [&](const ExpertBank& bank) {
    const int b = index++;
    const std::vector<int> experts = loaded(b);
    if (experts.empty()) return;
    const ExpertBlobLayout& form = *layout(b);
    // The packed copy is what is read from now on; an expert that stays in the file is read again when it is met. Each
    // expert's pages go at once, so that no worker holds more than one expert twice; those on a border go at the end.
    const auto release = [&](int e, std::size_t count) {
      const auto part = [&](const WeightView& view, std::size_t stride) {
        model.release(view.data + static_cast<std::size_t>(e) * stride, (count - 1) * stride + view.bytes());
      };
      part(bank.gate, bank.gate_up_stride);
      part(bank.up, bank.up_stride);
      part(bank.down, bank.down_stride);
    };
    parallel(experts.size(), [&](std::size_t i) {
      const int e = experts[i];
      std::uint8_t* const home = blobs_[at(b, e)];
      const bool card = card_ != nullptr && !card_->host_readable() && in_card(home);
      thread_local std::vector<std::uint8_t> staging;
      if (card) staging.resize(form.bytes);
      std::uint8_t* const packed = card ? staging.data() : home;
      pack_expert(bank, e, form, packed);
      checksums_[at(b, e)] = checksum(packed, form.bytes);
      if (card) card_->upload(home, packed, form.bytes);
      release(e, 1);
    });
    release(0, static_cast<std::size_t>(bank.experts));
    done += experts.size() * file_bytes(bank);
    if (options.progress) options.progress(done, total);
  });
}

const ExpertBlobLayout* ExpertStore::layout(int bank) const {
  const Bank& entry = banks_[static_cast<std::size_t>(bank)];
  return entry.layout ? &*entry.layout : nullptr;
}

RouteSplit ExpertStore::split(int bank, const Routes& routes, const Routes& hits, const Routes& misses) const {
  RouteSplit result;
  const std::size_t count = routes.rows * routes.used;
  if (tail_skip_.on()) tail_skip_.apply(routes, [&](std::int32_t e) { return on_card(bank, e); });
  if (!adapter_) {
    std::copy_n(routes.expert, count, misses.expert);
    return {false, true};
  }
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t e = routes.expert[i];
    if (e < 0) {
      hits.expert[i] = misses.expert[i] = -1;
      continue;
    }
    const bool hit = adapter_->on_card(bank, e);
    hits.expert[i] = hit ? e : -1;
    misses.expert[i] = hit ? -1 : e;
    (hit ? result.hits : result.misses) = true;
  }
  return result;
}

void ExpertStore::count(int bank, std::span<const std::int32_t> routes, std::size_t rows) {
  if (!adapter_) return;
  adapter_->observe(bank, routes, rows);
  ++counted_;
  for (const std::int32_t e : routes)
    if (!adapter_->on_card(bank, e) && std::exchange(seen_[static_cast<std::size_t>(e)], counted_) != counted_)
      ++missed_;
}

void ExpertStore::begin_round(bool decode, std::size_t rows) {
  end_round();
  open_ = adapter_.has_value();
  decode_ = decode;
  rows_ = rows;
}

void ExpertStore::end_round() {
  if (!std::exchange(open_, false)) return;
  finish_moves();
  adapter_->end_round(decode_);
  ExpertCounts round = counts_between(adapter_->counts(), before_);
  round.rows = rows_;
  round.crew_wait_seconds = std::exchange(crew_wait_, 0.0);
  round.copy_wait_seconds = std::exchange(copy_wait_, 0.0);
  before_ = adapter_->counts();
  (decode_ ? stats_.decode : stats_.prefill) += round;
  begin_moves();
}

// What the adapter has decided at the end of this round.
void ExpertStore::begin_moves() {
  copies_.clear();
  for (const Loan& loan : adapter_->loans()) {
    std::uint8_t* const place = (loan.in_cache ? lent_memory_.cache : lent_memory_.prompt)->data() + loan.at;
    copies_.push_back({place, blob(loan.bank, loan.expert), layout(loan.bank)->bytes});
    moving_.push_back({{loan.bank, loan.expert, -1, -1, true}, place, nullptr, true});
  }
  for (const Swap& swap : adapter_->swaps()) {
    SizeClass& c = classes_[static_cast<std::size_t>(banks_[static_cast<std::size_t>(swap.in_bank)].size_class)];
    Move move{swap, nullptr, nullptr, swap.lent};
    if (swap.lent) {
      const std::size_t out = at(swap.out_bank, swap.out_expert);
      move.card_slot = std::exchange(blobs_[out], std::exchange(kept_[out], nullptr));
      copies_.push_back({move.card_slot, blob(swap.in_bank, swap.in_expert), c.bytes});
      --lent_;
      if (in_prompt_memory(move.card_slot)) --lent_in_prompt_;
      ++moves_;  // `out` has left
    } else if (!c.spare_card.empty()) {
      move.card_slot = c.spare_card.back();
      move.ram_cell = c.spare_ram.back();
      c.spare_card.pop_back();
      c.spare_ram.pop_back();
      copies_.push_back({move.card_slot, blob(swap.in_bank, swap.in_expert), c.bytes});
      copies_.push_back({move.ram_cell, blob(swap.out_bank, swap.out_expert), c.bytes});
    }
    moving_.push_back(move);
  }
  if (!copies_.empty()) card_->start(copies_);
}

// The copies of the last round end, and the experts change places.
void ExpertStore::finish_moves() {
  if (moving_.empty()) return;
  const auto start = std::chrono::steady_clock::now();
  if (!copies_.empty()) card_->wait();
  for (const Move& move : moving_) {
    const Swap& swap = move.swap;
    SizeClass& c = classes_[static_cast<std::size_t>(banks_[static_cast<std::size_t>(swap.in_bank)].size_class)];
    std::uint8_t*& in = blobs_[at(swap.in_bank, swap.in_expert)];
    if (move.lent) {
      kept_[at(swap.in_bank, swap.in_expert)] = std::exchange(in, move.card_slot);
      ++lent_;
      if (in_prompt_memory(move.card_slot)) ++lent_in_prompt_;
      continue;
    }
    std::uint8_t*& out = blobs_[at(swap.out_bank, swap.out_expert)];
    if (move.card_slot == nullptr) {
      card_->exchange(out, in, c.bytes);
      std::swap(in, out);
    } else {
      c.spare_ram.push_back(std::exchange(in, move.card_slot));
      c.spare_card.push_back(std::exchange(out, move.ram_cell));
    }
    check_blob(swap.out_bank, swap.out_expert, out, "brought back from the card");
  }
  moving_.clear();
  copies_.clear();
  ++moves_;
  copy_wait_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void ExpertStore::reclaim() {
  if (lent_memory_.prompt) take_back(adapter_->reclaim());
}

void ExpertStore::take_back(std::span<const std::int32_t> experts) {
  if (experts.empty()) return;
  bool under_way = false;
  for (const std::int32_t i : experts) {
    const auto expert = static_cast<std::size_t>(i);
    if (kept_[expert] == nullptr) {
      under_way = std::erase_if(moving_,
                                [&](const Move& move) {
                                  return move.lent && at(move.swap.in_bank, move.swap.in_expert) == expert;
                                }) > 0 ||
                  under_way;
      continue;
    }
    if (in_prompt_memory(blobs_[expert])) --lent_in_prompt_;
    --lent_;
    blobs_[expert] = std::exchange(kept_[expert], nullptr);
  }
  ++moves_;
  if (!under_way) return;
  card_->wait();
  copies_.clear();  // those of other moves have ended as well
}

ExpertPlacement ExpertStore::placement() const {
  ExpertPlacement now = start_;
  if (!adapter_) return now;
  for (int b = 0; b < banks(); ++b)
    for (int e = 0; e < experts_; ++e)
      if (now.at(b, e) != Place::kDisk)
        now.at(b, e) = adapter_->on_card(b, e) && !adapter_->lent(b, e) ? Place::kCard : Place::kRam;
  return now;
}

bool ExpertStore::in_card(const std::uint8_t* blob) const {
  const auto within = [blob](const std::uint8_t* first, std::size_t bytes) {
    return blob >= first && blob < first + bytes;
  };
  const std::shared_ptr<Region>& cache = lent_memory_.cache;
  return within(card_memory_.get(), card_bytes_) || in_prompt_memory(blob) ||
         (cache && within(cache->data(), cache->bytes()));
}

bool ExpertStore::in_prompt_memory(const std::uint8_t* blob) const {
  const std::shared_ptr<Region>& prompt = lent_memory_.prompt;
  return prompt && blob >= prompt->data() && blob < prompt->data() + prompt->bytes();
}

void ExpertStore::check_blob(int bank, int expert, const std::uint8_t* data, const char* where) const {
  const std::uint64_t found = checksum(data, layout(bank)->bytes);
  CHECK(found == checksums_[at(bank, expert)], "expert {} of layer {}, {}: checksum {:016x}, packed as {:016x}", expert,
        bank, where, found, checksums_[at(bank, expert)]);
}

void ExpertStore::verify() const {
  for (int b = 0; b < banks(); ++b)
    for (int e = 0; e < experts_; ++e) {
      const std::uint8_t* data = blob(b, e);
      if (data == nullptr) continue;
      const bool card = in_card(data);
      if (!card || card_->host_readable()) {
        check_blob(b, e, data, card ? "on the card" : "in RAM");
        continue;
      }
      std::vector<std::uint8_t> copy(layout(b)->bytes);
      card_->download(copy.data(), data, copy.size());
      check_blob(b, e, copy.data(), "on the card");
    }
}

}  // namespace tandem
