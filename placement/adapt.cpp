#include "placement/adapt.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "placement/check.h"

namespace tandem {
namespace {

// kLru keys: round * kUses + uses. Exact in a double for 2^33 rounds.
constexpr double kUses = 1 << 20;
// When the weight of a new route passes 2^kRescale, all counts are divided by it. A power of two: nothing is rounded.
constexpr int kRescale = 400;
constexpr double kMostHalvings = 500;  // of one round: what came before is as good as forgotten

}  // namespace

Adapter::Adapter(AdaptSettings settings, const ExpertPlacement& start, std::vector<std::int64_t> expert_bytes,
                 std::vector<bool> movable, Lending lending)
    : banks_(start.banks),
      experts_(start.experts),
      settings_(settings),
      expert_bytes_(std::move(expert_bytes)),
      movable_(std::move(movable)),
      lending_(std::move(lending)),
      places_(lending_) {
  const auto banks = static_cast<std::size_t>(banks_), all = banks * static_cast<std::size_t>(experts_);
  CHECK(start.place.size() == all && expert_bytes_.size() == banks && movable_.size() == all, "{} {} {} {}", all,
        start.place.size(), expert_bytes_.size(), movable_.size());
  CHECK(settings_.half_life_rows > 0 && settings_.margin >= 1 && settings_.swaps_per_round >= 0, "{} {} {}",
        settings_.half_life_rows, settings_.margin, settings_.swaps_per_round);
  CHECK(lending_.expected.empty() || lending_.expected.size() == all, "{} {}", all, lending_.expected.size());
  card_.resize(all);
  lent_.resize(all);
  slots_.resize(banks);
  floor_.resize(banks);
  key_.resize(all);
  position_.assign(all, -1);
  uses_.resize(all);
  met_.reserve(all);
  newcomers_.reserve(all);
  pending_.reserve(all / 2);
  bank_rows_.resize(banks);
  for (std::size_t b = 0; b < banks; ++b) {
    coldest_.emplace_back(key_, position_, static_cast<std::size_t>(experts_));
    hottest_.emplace_back(key_, position_, static_cast<std::size_t>(experts_));
  }
  for (std::size_t i = 0; i < all; ++i) {
    card_[i] = start.place[i] == Place::kCard ? 1 : 0;
    if (start.place[i] == Place::kDisk) movable_[i] = false;
    slots_[bank_of(static_cast<Index>(i))] += card_[i];
    insert(static_cast<Index>(i));
  }
  for (std::size_t b = 0; b < banks; ++b) floor_[b] = std::min(settings_.floor_per_bank, slots_[b]);
}

void Adapter::insert(Index i) {
  if (!movable_[static_cast<std::size_t>(i)] || settings_.mode == AdaptMode::kOff) return;
  if (card_[static_cast<std::size_t>(i)] != 0)
    coldest_[bank_of(i)].push(i);
  else if (settings_.mode == AdaptMode::kSwaps)
    hottest_[bank_of(i)].push(i);
}

void Adapter::observe(int bank, std::span<const std::int32_t> ids, std::size_t rows) {
  CHECK(bank >= 0 && bank < banks_, "{} {}", bank, banks_);
  for (const std::int32_t id : ids) {
    CHECK(id >= 0 && id < experts_, "expert {} of {}", id, experts_);
    const std::size_t i = index(bank, id);
    if (uses_[i]++ == 0) met_.push_back(static_cast<Index>(i));
    if (card_[i] != 0) ++counts_.hits;
  }
  counts_.routes += ids.size();
  bank_rows_[static_cast<std::size_t>(bank)] += rows;
}

void Adapter::count_round() {
  for (const Index i : met_) {
    const auto bytes = static_cast<std::uint64_t>(expert_bytes_[bank_of(i)]);
    const bool hit = card_[static_cast<std::size_t>(i)] != 0;
    counts_.bytes += bytes;
    counts_.hit_bytes += hit ? bytes : 0;
    counts_.misses += hit ? 0 : 1;
  }
  ++counts_.rounds;
}

void Adapter::apply_pending() {
  for (const Swap& swap : pending_) {
    const std::size_t in = index(swap.in_bank, swap.in_expert), out = index(swap.out_bank, swap.out_expert);
    card_[in] = 1;
    card_[out] = 0;
    insert(static_cast<Index>(in));
    insert(static_cast<Index>(out));
  }
  pending_.clear();
  for (const Loan& loan : loans_) {
    const std::size_t i = index(loan.bank, loan.expert);
    card_[i] = 1;
    insert(static_cast<Index>(i));
  }
  loans_.clear();
}

void Adapter::choose_loans() {
  if (!queue_made_) {
    const bool counted = settings_.mode == AdaptMode::kLfu || settings_.mode == AdaptMode::kSwaps;
    std::vector<double> heat(card_.size());
    std::vector<char> may(card_.size());
    for (std::size_t i = 0; i < heat.size(); ++i) {
      may[i] = card_[i] == 0 && movable_[i] ? 1 : 0;
      if (!lending_.expected.empty()) heat[i] = kExpectedRows * lending_.expected[i];
      if (counted) heat[i] += key_[i] / weight_;
    }
    LentPlaces places = places_;
    queue_ = lent_experts(hottest_first(heat, expert_bytes_), may, expert_bytes_, places);
    queued_ = 0;
    queue_made_ = true;
  }
  std::int64_t room = lending_.bytes_per_round;
  for (; queued_ < queue_.size(); ++queued_) {
    const Index i = queue_[queued_];
    const std::size_t bank = bank_of(i);
    if (card_[static_cast<std::size_t>(i)] != 0) continue;  // a swap has brought it in meanwhile
    // One expert at least: a budget of less would never be done.
    if (!loans_.empty() && room < expert_bytes_[bank]) return;
    const std::optional<LentPlaces::Place> place = places_.take(i, expert_bytes_[bank]);
    if (!place) continue;  // the sequence has grown into it meanwhile
    room -= expert_bytes_[bank];
    if (position_[static_cast<std::size_t>(i)] >= 0) hottest_[bank].remove(i);
    loans_.push_back({static_cast<int>(bank), i % experts_, place->at, place->area > 0});
    lent_[static_cast<std::size_t>(i)] = 1 + place->area;
  }
}

void Adapter::drop(Index i) {
  const auto at = static_cast<std::size_t>(i);
  lent_[at] = 0;
  if (card_[at] != 0) {
    if (position_[at] >= 0) coldest_[bank_of(i)].remove(i);
    card_[at] = 0;
  } else {
    // Only promised: as a loan, or as the newcomer of a swap, whose other expert has left.
    std::erase_if(loans_, [&](const Loan& loan) { return index(loan.bank, loan.expert) == at; });
    std::erase_if(pending_, [&](const Swap& swap) {
      if (index(swap.in_bank, swap.in_expert) != at) return false;
      insert(static_cast<Index>(index(swap.out_bank, swap.out_expert)));
      return true;
    });
  }
  insert(i);
}

std::span<const std::int32_t> Adapter::reclaim() {
  queue_made_ = false;
  dropped_.clear();
  places_.free_prompt_memory(dropped_);
  for (const Index i : dropped_) drop(i);
  return dropped_;
}

std::span<const std::int32_t> Adapter::need_cache(std::int64_t positions) {
  dropped_.clear();
  if (positions < places_.cache_needed()) queue_made_ = false;
  places_.need_cache(positions, dropped_);
  for (const Index i : dropped_) drop(i);
  return dropped_;
}

void Adapter::update_keys() {
  const std::size_t rows = *std::max_element(bank_rows_.begin(), bank_rows_.end());
  counts_.rows += rows;
  weight_ *= std::exp2(std::min(static_cast<double>(rows) / settings_.half_life_rows, kMostHalvings));
  if (weight_ > std::ldexp(1.0, kRescale)) {
    const double scale = settings_.mode == AdaptMode::kLru ? 1.0 : std::ldexp(1.0, -std::ilogb(weight_));
    for (double& k : key_) k *= scale;
    weight_ = std::ldexp(weight_, -std::ilogb(weight_));
    // Counts that vanish become equal, and then the index decides.
    for (auto& heap : coldest_) heap.rebuild();
    for (auto& heap : hottest_) heap.rebuild();
  }
  for (const Index i : met_) {
    const auto at = static_cast<std::size_t>(i);
    if (settings_.mode == AdaptMode::kLru)
      key_[at] = static_cast<double>(counts_.rounds) * kUses + std::min<double>(uses_[at], kUses - 1);
    else
      key_[at] += uses_[at] * weight_;
    if (position_[at] < 0) continue;
    if (card_[at] != 0)
      coldest_[bank_of(i)].update(i);
    else
      hottest_[bank_of(i)].update(i);
  }
}

Adapter::Index Adapter::victim_for(Index newcomer) const {
  const std::size_t home = bank_of(newcomer);
  Index best = -1;
  for (std::size_t b = 0; b < coldest_.size(); ++b) {
    if (expert_bytes_[b] != expert_bytes_[home] || coldest_[b].empty()) continue;
    const Index top = coldest_[b].top();
    if (b != home && lent_[static_cast<std::size_t>(top)] == 0 && slots_[b] <= floor_[b]) continue;
    if (best < 0 || key(top) < key(best)) best = top;  // banks in order: ties stay with the lower index
  }
  return best;
}

bool Adapter::may_replace(Index in, Index out) const {
  if (uses(out) > uses(in)) return false;
  if (settings_.mode == AdaptMode::kSwaps) return key(in) > settings_.margin * key(out) + weight_;
  return key(in) > key(out);
}

void Adapter::decide(Index in, Index out) {
  const int lent = lent_[static_cast<std::size_t>(out)];
  pending_.push_back(
      {static_cast<int>(bank_of(in)), in % experts_, static_cast<int>(bank_of(out)), out % experts_, lent != 0});
  coldest_[bank_of(out)].pop();
  if (settings_.mode == AdaptMode::kSwaps) hottest_[bank_of(in)].pop();
  if (lent != 0) {
    places_.hand_over(lent - 1, out, in);
    lent_[static_cast<std::size_t>(in)] = lent;
    card_[static_cast<std::size_t>(out)] = 0;
    lent_[static_cast<std::size_t>(out)] = 0;
  } else {
    ++slots_[bank_of(in)];
    --slots_[bank_of(out)];
  }
  ++counts_.swaps;
  counts_.swap_bytes += static_cast<std::uint64_t>(expert_bytes_[bank_of(in)]);
}

void Adapter::admit_misses() {
  newcomers_.clear();
  for (const Index i : met_) {
    const auto at = static_cast<std::size_t>(i);
    if (card_[at] == 0 && lent_[at] == 0 && movable_[at]) newcomers_.push_back(i);
  }
  std::sort(newcomers_.begin(), newcomers_.end(),
            [this](Index a, Index b) { return key(a) != key(b) ? key(a) > key(b) : a < b; });
  for (const Index in : newcomers_) {
    const Index out = victim_for(in);
    if (out >= 0 && may_replace(in, out)) decide(in, out);
  }
}

void Adapter::choose_swaps() {
  for (int n = 0; n < settings_.swaps_per_round; ++n) {
    Index best_in = -1, best_out = -1;
    double best_gain = 0;
    for (std::size_t b = 0; b < hottest_.size(); ++b) {
      if (hottest_[b].empty()) continue;
      const Index in = hottest_[b].top(), out = victim_for(in);
      if (out < 0 || !may_replace(in, out)) continue;
      const double gain = (key(in) - key(out)) * static_cast<double>(expert_bytes_[b]);
      if (best_in >= 0 && gain <= best_gain) continue;
      best_in = in;
      best_out = out;
      best_gain = gain;
    }
    if (best_in < 0) return;
    decide(best_in, best_out);
  }
}

const std::vector<Swap>& Adapter::end_round(bool decode) {
  count_round();
  apply_pending();
  update_keys();
  if (decode && lending_.any()) choose_loans();
  if (settings_.mode == AdaptMode::kLru || settings_.mode == AdaptMode::kLfu) admit_misses();
  if (settings_.mode == AdaptMode::kSwaps) choose_swaps();
  for (const Index i : met_) uses_[static_cast<std::size_t>(i)] = 0;
  met_.clear();
  std::fill(bank_rows_.begin(), bank_rows_.end(), std::size_t{0});
  return pending_;
}

}  // namespace tandem
