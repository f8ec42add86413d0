// Which experts go to the card, and where the others are.
#include "placement/planner.h"

#include <algorithm>
#include <numeric>

#include "placement/check.h"

namespace tandem {

std::int64_t Planner::all_expert_bytes() const {
  const auto& bytes = input_.model.expert_bytes;
  return experts_ * std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

bool Planner::named(const std::vector<ExpertRange>& ranges, int bank, int expert) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const ExpertRange& r) {
    return bank >= r.first_layer && bank <= r.last_layer && expert >= r.first_expert && expert <= r.last_expert;
  });
}

Planner::BankOrder Planner::order_of(int bank) const {
  BankOrder order;
  std::vector<char> pinned(sz(experts_), 0);
  for (int e = 0; e < experts_; ++e) {
    pinned[sz(e)] = named(input_.policy.pins, bank, e) ? 1 : 0;
    order.pins += pinned[sz(e)];
    if (pinned[sz(e)] != 0 || !named(input_.policy.bans, bank, e)) order.experts.push_back(e);
  }
  std::stable_sort(order.experts.begin(), order.experts.end(), [&](int a, int b) {
    if (pinned[sz(a)] != pinned[sz(b)]) return pinned[sz(a)] > pinned[sz(b)];
    return costs_.inclusion(bank, a) > costs_.inclusion(bank, b);
  });
  return order;
}

BankCurve Planner::empty_curve(int bank) const {
  const BankOrder& order = orders_[sz(bank)];
  const int floor = std::min<int>(input_.policy.floor_per_layer, static_cast<int>(order.experts.size()));
  return {std::max(order.pins, floor), bank_bytes(bank), {}};
}

BankCurve Planner::hit_curve(int bank) const {
  BankCurve curve = empty_curve(bank);
  const std::vector<int>& experts = orders_[sz(bank)].experts;
  double hits = 0;
  for (int n = 0;; ++n) {
    if (n >= curve.least) curve.cost.push_back(-hits);
    if (sz(n) == experts.size()) return curve;
    hits += costs_.inclusion(bank, experts[sz(n)]);
  }
}

BankCurve Planner::time_curve(int bank) const {
  BankCurve curve = empty_curve(bank);
  const CostModel::Use use = costs_.use(bank, plan_.rows - 1);
  const std::vector<int>& experts = orders_[sz(bank)].experts;
  // What is off the card with n experts on it: sums from the coldest up, so that they fall strictly with n.
  std::vector<BankLoad> loads(experts.size() + 1);
  std::vector<char> banned(sz(experts_), 1);
  for (const int e : experts) banned[sz(e)] = 0;
  for (int e = 0; e < experts_; ++e) {
    if (banned[sz(e)] == 0) continue;
    loads.back().misses += costs_.met(bank, e, use.rows);
    loads.back().work += costs_.work(bank, e, use.rows);
  }
  for (std::size_t n = experts.size(); n > 0; --n) {
    loads[n - 1].misses = loads[n].misses + costs_.met(bank, experts[n - 1], use.rows);
    loads[n - 1].work = loads[n].work + costs_.work(bank, experts[n - 1], use.rows);
  }
  for (std::size_t n = 0; n < loads.size(); ++n) {
    if (n > 0) loads[n].card = loads[n - 1].card + costs_.met(bank, experts[n - 1], use.rows);
    if (n >= sz(curve.least)) curve.cost.push_back(use.times * costs_.stage_seconds(bank, loads[n]));
  }
  return curve;
}

void Planner::choose_card() {
  std::int64_t room = plan_.vram_budget - plan_.vram_used;
  if (input_.plays_card) room = std::min(room, plan_.ram_budget - plan_.ram_used);
  const int slots = std::max(0, input_.policy.memory.slots.value_or(banks_ * experts_));
  std::vector<BankCurve> hits;
  std::int64_t least_bytes = 0, least = 0;
  for (int bank = 0; bank < banks_; ++bank) {
    orders_.push_back(order_of(bank));
    hits.push_back(hit_curve(bank));
    least += hits.back().least;
    least_bytes += hits.back().least * bank_bytes(bank);
  }
  if (least_bytes > room || least > slots) {
    plan_.shortfall = fmt::format(
        "expert slots: pins and floor_per_layer of the policy ask for {} experts ({}), found room for {} slots and "
        "{}: {} short. Fix: fewer pins, a smaller floor_per_layer, or a shorter --context",
        grouped(least), gib(least_bytes), grouped(slots), gib(room),
        least_bytes > room ? gib(least_bytes - room) : fmt::format("{} slots", least - slots));
    return;
  }
  const bool by_time = input_.policy.objective == Objective::kRoundTime && input_.card && costs_.known();
  if (input_.policy.objective == Objective::kRoundTime && input_.card && !costs_.known())
    plan_.warnings.push_back(
        fmt::format("objective round_time needs {}: experts are chosen by hit rate", costs_.missing()));
  std::vector<BankCurve> times;
  for (int bank = 0; by_time && bank < banks_; ++bank) times.push_back(time_curve(bank));
  std::vector<int> counts = select_counts(by_time ? times : hits, room, slots);
  // Experts that have no place in RAM are better on the card than on disk, whatever the balance.
  const std::int64_t off_card = all_expert_bytes() - bytes_of(counts);
  if (by_time && off_card > plan_.ram_budget - plan_.ram_used) {
    for (int bank = 0; bank < banks_; ++bank) raise_least(hits[sz(bank)], counts[sz(bank)]);
    counts = select_counts(hits, room, slots);
  }
  for (int bank = 0; bank < banks_; ++bank) {
    const int count = counts[sz(bank)];
    plan_.slots_by_bank[sz(bank)] = count;
    plan_.slots += count;
    for (int n = 0; n < count; ++n) plan_.placement.at(bank, orders_[sz(bank)].experts[sz(n)]) = Place::kCard;
  }
  explain_limit(room - bytes_of(counts), slots);
}

void Planner::raise_least(BankCurve& curve, int least) {
  curve.cost.erase(curve.cost.begin(), curve.cost.begin() + (least - curve.least));
  curve.least = least;
}

std::int64_t Planner::bytes_of(const std::vector<int>& counts) const {
  std::int64_t bytes = 0;
  for (int bank = 0; bank < banks_; ++bank) bytes += counts[sz(bank)] * bank_bytes(bank);
  return bytes;
}

void Planner::explain_limit(std::int64_t room_left, int slots) {
  std::int64_t smallest_open = 0;  // bytes of the smallest expert that could still go to the card
  for (int bank = 0; bank < banks_; ++bank) {
    if (sz(plan_.slots_by_bank[sz(bank)]) == orders_[sz(bank)].experts.size()) continue;
    smallest_open = smallest_open == 0 ? bank_bytes(bank) : std::min(smallest_open, bank_bytes(bank));
  }
  if (smallest_open == 0) {
    plan_.limit = plan_.slots == banks_ * experts_ ? "nothing: every expert is on the card"
                                                   : "bans: every other expert is on the card";
  } else if (plan_.slots >= slots) {
    plan_.limit = fmt::format("slots: the policy allows {}", grouped(slots));
  } else if (room_left < smallest_open) {
    vram_full_ = true;
    plan_.limit = input_.plays_card ? "the played card's memory: its slots are full" : "VRAM: the card is full";
  } else {
    plan_.limit = "balance: with more experts the card would take longer than the crew";
  }
}

void Planner::place_off_card() {
  // The played card's slots are RAM too.
  if (input_.plays_card) {
    const std::int64_t bytes = bytes_of(plan_.slots_by_bank);
    plan_.vram_used += bytes;
    plan_.ram_used += bytes;
  }
  const std::int64_t room = plan_.ram_budget - plan_.ram_used;
  std::int64_t off_card = all_expert_bytes() - bytes_of(plan_.slots_by_bank);
  if (plan_.fits() && off_card > room) {
    off_card -= move_to_disk(off_card - std::max<std::int64_t>(room, 0));
  }
  arena_bytes_ = off_card;
  const std::int64_t table = input_.model.weights.ngram_table;
  const NgramPlace place = input_.policy.ngram_place;
  table_in_ram_ =
      place == NgramPlace::kRam || (place == NgramPlace::kAuto && on_disk_ == 0 && off_card + table <= room);
  plan_.ngram_in_ram = table_in_ram_;
}

std::int64_t Planner::move_to_disk(std::int64_t bytes) {
  struct Cold {
    double heat;
    int bank, expert;
  };
  std::vector<Cold> cold;
  for (int bank = 0; bank < banks_; ++bank) {
    for (int e = 0; e < experts_; ++e) {
      if (plan_.placement.at(bank, e) == Place::kRam)
        cold.push_back({costs_.inclusion(bank, e) / static_cast<double>(bank_bytes(bank)), bank, e});
    }
  }
  std::stable_sort(cold.begin(), cold.end(), [](const Cold& a, const Cold& b) { return a.heat < b.heat; });
  std::int64_t moved = 0;
  for (const Cold& entry : cold) {
    if (moved >= bytes) break;
    plan_.placement.at(entry.bank, entry.expert) = Place::kDisk;
    plan_.disk_per_row += costs_.inclusion(entry.bank, entry.expert);
    moved += bank_bytes(entry.bank);
    ++on_disk_;
  }
  disk_bytes_ = moved;
  return moved;
}

}  // namespace tandem
