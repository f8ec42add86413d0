// make_plan: bytes first, then the choice of experts, then what it means. docs/placement.md explains each step.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "placement/adapt.h"
#include "placement/check.h"
#include "placement/cost_model.h"
#include "placement/plan.h"
#include "placement/select_experts.h"
#include "placement/units.h"

namespace tandem {
namespace {

// The program itself, page cache for embedding and n-gram rows, and everything else that runs: a sixteenth of the RAM,
// at least 1 GiB.
constexpr std::int64_t kRamReserve = kGiB;
constexpr std::int64_t kRamReserveFraction = 16;
constexpr int kWindowRows = 16;                  // of the largest verify window
constexpr std::int64_t kRegionSlack = 64 << 10;  // arrays in lent memory begin at multiples of 256 (runtime/region.h)

std::size_t sz(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

std::string gib(std::int64_t bytes) {
  return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / static_cast<double>(kGiB));
}

// Rows, results and ids of one layer between card and crew, twice: int8 rows with scales and sums (docs/numerics.md,
// R2), one float row per route, an id and a weight per route.
std::int64_t handoff_bytes(const ModelShape& s) {
  const std::int64_t row = s.hidden + s.hidden / 32 * 4 + s.hidden / 16 * 4;
  return 2 * kWindowRows * (row + s.experts_used * (s.hidden * 4 + 8));
}

// Hidden rows of the crew, as floats and quantised.
std::int64_t crew_bytes(const ModelShape& s) {
  return kWindowRows * s.experts_used * (s.expert_ff * 4 + s.expert_ff + s.expert_ff / 32 * 4 + s.expert_ff / 16 * 4);
}

// Experts on their way: what one round may exchange.
// Spare places on one side: swaps_per_round for each size of expert, whatever the mode (runtime/expert_store.cpp).
std::int64_t swap_bytes(const PlanInput& input) {
  const Policy::Adapt& adapt = input.policy.adapt;
  if (adapt.mode == AdaptMode::kOff) return 0;
  const std::set<std::int64_t> sizes(input.model.expert_bytes.begin(), input.model.expert_bytes.end());
  return adapt.swaps_per_round * std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
}

class Planner {
 public:
  // lends: prompts have memory of their own, which is lent between them.
  Planner(const PlanInput& input, std::int64_t more_vram, std::int64_t more_ram, bool lends)
      : input_(input),
        lends_(lends),
        costs_(input),
        banks_(static_cast<int>(input.model.expert_bytes.size())),
        experts_(input.model.shape.experts),
        slots_possible_(input.card || input.plays_card) {
    CHECK(banks_ > 0 && experts_ > 0, "{} banks of {} experts", banks_, experts_);
    CHECK(!(input.card && input.plays_card), "both a card and a played one");
    plan_.placement = all_in_ram(banks_, experts_);
    plan_.slots_by_bank.assign(sz(banks_), 0);
    plan_.workers = costs_.workers();
    const auto& drafting = input.policy.drafting;
    const bool drafts = drafting.mtp && banks_ > input.model.shape.layers;
    max_drafts_ = drafts ? kPlannedDrafts : 0;
    plan_.rows = 1 + (drafts ? std::min(drafting.depth.value_or(kAssumedDrafts), kWindowRows - 1) : 0);
    set_budgets(more_vram, more_ram);
  }

  Plan run() {
    add_fixed_items();
    if (plan_.vram_used > plan_.vram_budget) {
      short_of("VRAM", plan_.vram_used - plan_.vram_budget, "without a single expert on the card");
    } else if (plan_.ram_used > plan_.ram_budget) {
      short_of("RAM", plan_.ram_used - plan_.ram_budget, "without a single expert in RAM");
    } else if (slots_possible_) {
      choose_card();
    } else {
      plan_.limit = "no card: every expert is computed from RAM";
      if (!input_.policy.pins.empty() || input_.policy.floor_per_layer > 0)
        plan_.warnings.push_back("pins and floor_per_layer of the policy have no effect without a card");
    }
    place_off_card();
    if (plan_.fits()) lend();
    add_expert_items();
    summarise();
    return std::move(plan_);
  }

 private:
  // ---- budgets and fixed items

  void set_budgets(std::int64_t more_vram, std::int64_t more_ram) {
    const Policy::Memory& memory = input_.policy.memory;
    const Hardware& hardware = input_.hardware;
    const auto limit = [this](std::int64_t wanted, std::int64_t total, std::string_view what) {
      if (total <= 0 || wanted <= total) return wanted;
      plan_.warnings.push_back(fmt::format("the policy allows {} of {}, the machine has {}: planned with that",
                                           gib(wanted), what, gib(total)));
      return total;
    };
    const std::int64_t available = hardware.ram.available > 0 ? hardware.ram.available : hardware.ram.total;
    const std::int64_t ram = (memory.ram ? limit(*memory.ram, hardware.ram.total, "RAM") : available) + more_ram;
    const std::int64_t auto_reserve = memory.ram ? 0 : std::max(kRamReserve, hardware.ram.total / kRamReserveFraction);
    plan_.ram_reserve = std::min(ram, memory.ram_reserve.value_or(auto_reserve));
    plan_.ram_budget = ram - plan_.ram_reserve;
    if (!slots_possible_) return;
    if (input_.plays_card) {
      plan_.vram_budget = std::min(plan_.ram_budget, memory.vram ? *memory.vram + more_vram : plan_.ram_budget);
      return;
    }
    const Hardware::Gpu gpu = hardware.gpu.value_or(Hardware::Gpu{});
    const std::int64_t free = gpu.vram_free > 0 ? gpu.vram_free : gpu.vram_total;
    const std::int64_t vram = (memory.vram ? limit(*memory.vram, gpu.vram_total, "VRAM") : free) + more_vram;
    plan_.vram_reserve = std::min(vram, memory.vram_reserve.value_or(kVramReserve));
    plan_.vram_budget = vram - plan_.vram_reserve;
  }

  void add(Memory memory, std::string what, std::int64_t bytes, std::string note = {}) {
    if (bytes == 0) return;
    plan_.items.push_back({memory, std::move(what), bytes, std::move(note)});
    if (memory == Memory::kVram) plan_.vram_used += bytes;
    if (memory == Memory::kRam) plan_.ram_used += bytes;
  }

  void add_fixed_items() {
    const PlanModel& model = input_.model;
    const StateBytes state = state_bytes(model.shape, input_.state);
    const Memory side = input_.card ? Memory::kVram : Memory::kRam;
    add(side, "dense weights", model.dense_packed);
    add(side, "output head", model.head_packed);
    add(side, "draft block", model.draft_packed, "without its experts");
    if (model.draft_tokens > 0) {
      add(side, "draft vocabulary", model.draft_head_packed,
          fmt::format("{} of {} tokens", grouped(model.draft_tokens), grouped(model.shape.vocab)));
      add(Memory::kRam, "draft vocabulary", model.draft_head_rows, "its rows of the file");
    }
    cache_item_ = plan_.items.size();
    add(side, "KV cache", state.kv + state.mtp_kv,
        fmt::format("{} positions, {} bits", grouped(input_.state.context), input_.state.kv_bits));
    add(side, "indexer keys", state.pooled + state.raw + state.mtp_pooled + state.mtp_raw);
    add(side, "recurrent states", state.gdn_state + state.gdn_conv + state.ple_conv + state.replay);
    // On a card the draft block's residuals have a place of their own (Workspace::wide_in).
    const bool staged = input_.card && model.shape.mtp_layers > 0;
    const auto wide_in = [&](std::int64_t rows) { return staged ? rows * model.shape.wide() * 4 : 0; };
    const std::int64_t expert = *std::max_element(model.expert_bytes.begin(), model.expert_bytes.end());
    const bool long_passes = input_.card && model.prefill_rows > kWindowRows;
    const std::int64_t ring = long_passes ? stream_ring_bytes(expert * model.shape.experts, expert) : 0;
    const std::int64_t pairs = long_passes ? long_pass_bytes(model.shape, model.prefill_rows) : 0;
    if (lends_) {
      // Long passes have a row of logits beside those of a window.
      add(side, "work memory", model.short_workspace + wide_in(kShortRows) + pairs + model.shape.vocab * 4);
      plan_.lent_bytes = model.long_workspace + wide_in(model.prefill_rows) + ring + kRegionSlack;
    } else {
      add(side, "work memory", model.workspace + wide_in(model.prefill_rows));
    }
    if (slots_possible_) {
      if (input_.card) add(Memory::kVram, "hand-off buffers", handoff_bytes(model.shape));
      if (input_.card) add(Memory::kVram, "swap buffers", swap_bytes(input_));
      if (plan_.lent_bytes > 0) {
        plan_.vram_used += plan_.lent_bytes;  // its item tells to whom it is lent: add_expert_items
      } else if (long_passes) {
        add(Memory::kVram, "prompt experts", ring + pairs, fmt::format("passes of {}", grouped(model.prefill_rows)));
      }
      add(Memory::kRam, "hand-off buffers", handoff_bytes(model.shape), input_.card ? "pinned" : "");
      // A played card's own spares are in RAM too.
      add(Memory::kRam, "swap buffers", swap_bytes(input_) * (input_.plays_card ? 2 : 1), input_.card ? "pinned" : "");
    }
    add(Memory::kRam, "crew buffers", crew_bytes(model.shape));
    add(Memory::kRam, "token embedding", model.weights.embedding);
    if (input_.policy.ngram_place == NgramPlace::kRam)
      add(Memory::kRam, "n-gram table", model.weights.ngram_table, "by policy");
  }

  void short_of(std::string_view memory, std::int64_t missing, std::string_view when) {
    std::string fix;
    const std::int64_t context = context_that_fits(missing);
    if ((memory == "VRAM" || !input_.card) && context > 0) fix = fmt::format("--context {}", context);
    if (memory == "RAM" && input_.policy.ngram_place == NgramPlace::kRam) fix = "ngram_place: disk";
    if (fix.empty()) fix = memory == "VRAM" ? "--device cpu, or a smaller model file" : "a smaller model file";
    plan_.shortfall = fmt::format("{}: {} needed {}, {} allowed after the reserve: {} short. Fix: {}", memory,
                                  gib(memory == "VRAM" ? plan_.vram_used : plan_.ram_used), when,
                                  gib(memory == "VRAM" ? plan_.vram_budget : plan_.ram_budget), gib(missing), fix);
  }

  // The largest context by halving that frees `missing` bytes; 0: none.
  std::int64_t context_that_fits(std::int64_t missing) const {
    constexpr std::int64_t kShortest = 1024;
    StateLayout layout = input_.state;
    const std::int64_t now = state_bytes(input_.model.shape, layout).total();
    for (layout.context /= 2; layout.context >= kShortest; layout.context /= 2) {
      if (now - state_bytes(input_.model.shape, layout).total() >= missing) return layout.context;
    }
    return 0;
  }

  // ---- experts on the card

  std::int64_t bank_bytes(int bank) const { return input_.model.expert_bytes[sz(bank)]; }
  std::int64_t all_expert_bytes() const {
    const auto& bytes = input_.model.expert_bytes;
    return experts_ * std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
  }

  static bool named(const std::vector<ExpertRange>& ranges, int bank, int expert) {
    return std::any_of(ranges.begin(), ranges.end(), [&](const ExpertRange& r) {
      return bank >= r.first_layer && bank <= r.last_layer && expert >= r.first_expert && expert <= r.last_expert;
    });
  }

  // A bank's experts in the order in which they go to the card: pins, then hottest first; without the banned ones.
  struct BankOrder {
    std::vector<int> experts;
    int pins = 0;
  };
  BankOrder order_of(int bank) const {
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

  BankCurve empty_curve(int bank) const {
    const BankOrder& order = orders_[sz(bank)];
    const int floor = std::min<int>(input_.policy.floor_per_layer, static_cast<int>(order.experts.size()));
    return {std::max(order.pins, floor), bank_bytes(bank), {}};
  }

  // Minus the routes of one row that hit.
  BankCurve hit_curve(int bank) const {
    BankCurve curve = empty_curve(bank);
    const std::vector<int>& experts = orders_[sz(bank)].experts;
    double hits = 0;
    for (int n = 0;; ++n) {
      if (n >= curve.least) curve.cost.push_back(-hits);
      if (sz(n) == experts.size()) return curve;
      hits += costs_.inclusion(bank, experts[sz(n)]);
    }
  }

  // Seconds of the bank's expert stages in a round.
  BankCurve time_curve(int bank) const {
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

  void choose_card() {
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

  static void raise_least(BankCurve& curve, int least) {
    curve.cost.erase(curve.cost.begin(), curve.cost.begin() + (least - curve.least));
    curve.least = least;
  }

  std::int64_t bytes_of(const std::vector<int>& counts) const {
    std::int64_t bytes = 0;
    for (int bank = 0; bank < banks_; ++bank) bytes += counts[sz(bank)] * bank_bytes(bank);
    return bytes;
  }

  void explain_limit(std::int64_t room_left, int slots) {
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

  // ---- experts off the card, and the n-gram table

  void place_off_card() {
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

  // Moves the experts that are used least per byte from RAM to disk until `bytes` are free. Returns the bytes moved.
  std::int64_t move_to_disk(std::int64_t bytes) {
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

  // Only where the card is full: a limit of the policy, or the balance with the crew, holds for lent experts as well.
  void lend() {
    if (!vram_full_) return;
    if (input_.card && input_.policy.memory.lend_kv_cache)
      plan_.lent_cache = cache_areas(input_.model.shape, input_.state);
    if (plan_.lent_bytes == 0 && plan_.lent_cache.count == 0) return;
    const std::size_t all = plan_.placement.place.size();
    plan_.expected.resize(all);
    std::vector<double> heat(all);
    std::vector<char> may(all);
    for (int bank = 0; bank < banks_; ++bank) {
      for (int e = 0; e < experts_; ++e) {
        const std::size_t i = sz(bank * experts_ + e);
        plan_.expected[i] = costs_.inclusion(bank, e);
        heat[i] = kExpectedRows * plan_.expected[i];  // as an Adapter has it before it has seen a route
        may[i] = plan_.placement.place[i] == Place::kRam && !named(input_.policy.bans, bank, e) ? 1 : 0;
      }
    }
    Lending lending;
    lending.bytes = plan_.lent_bytes;
    lending.cache = plan_.lent_cache;
    const auto lent_at = [&](std::int64_t position, std::vector<std::int32_t>& lent) {
      LentPlaces places(lending);
      std::vector<std::int32_t> none;
      places.need_cache(position, none);
      lent = lent_experts(heat, may, input_.model.expert_bytes, places);
      return static_cast<std::int64_t>(places.in_cache());
    };
    plan_.lent_in_cache = lent_at(input_.state.context / 2, plan_.lent);
    lent_at(input_.state.context, lent_full_);
    if (lent_at(0, lent_empty_) > 0 && !slower_with_cache()) return;  // room for one at least
    plan_.lent = lent_full_;
    plan_.lent_in_cache = 0;
    plan_.lent_cache = {};
  }

  // Near the balance of card and crew, more experts on the card make a round longer.
  bool slower_with_cache() const {
    if (input_.policy.objective != Objective::kRoundTime || !costs_.missing().empty()) return false;
    return with_lent(plan_.lent).tokens_per_second < with_lent(lent_full_).tokens_per_second;
  }

  void add_expert_items() {
    if (plan_.lent_in_cache > 0)
      plan_.items[cache_item_].note += fmt::format("; half of it free: {} experts", grouped(plan_.lent_in_cache));
    if (plan_.lent_bytes > 0) {
      const std::string rows = fmt::format("passes of {}", grouped(input_.model.prefill_rows));
      const std::int64_t in_prompt = std::ssize(plan_.lent) - plan_.lent_in_cache;
      plan_.items.push_back(
          {Memory::kVram, "prompt memory", plan_.lent_bytes,
           in_prompt == 0 ? rows : fmt::format("{}; between prompts {} experts", rows, grouped(in_prompt))});
    }
    const std::int64_t all = std::int64_t{banks_} * experts_;
    const std::int64_t slot_bytes = bytes_of(plan_.slots_by_bank);
    if (slots_possible_ && plan_.slots > 0) {
      const auto [low, high] = std::minmax_element(plan_.slots_by_bank.begin(), plan_.slots_by_bank.end());
      plan_.items.push_back(
          {Memory::kVram, "expert slots", slot_bytes,
           fmt::format("{} of {} experts, {} a layer", grouped(plan_.slots), grouped(all),
                       *low == *high ? fmt::format("{}", *low) : fmt::format("{} to {}", *low, *high))});
      if (input_.card) plan_.vram_used += slot_bytes;
      if (input_.plays_card) plan_.items.push_back({Memory::kRam, "expert slots", slot_bytes, "the played card"});
    }
    add(Memory::kRam, "expert arena", arena_bytes_,
        fmt::format("{} experts{}", grouped(plan_.placement.count(Place::kRam)),
                    input_.policy.crew.lock_memory && plan_.slots > 0 ? ", locked" : ""));
    const std::int64_t table = input_.model.weights.ngram_table;
    if (!table_in_ram_) {
      add(Memory::kDisk, "n-gram table", table, "read row by row");
    } else if (input_.policy.ngram_place == NgramPlace::kAuto) {
      add(Memory::kRam, "n-gram table", table, "fits");
    }
    add(Memory::kDisk, "experts", disk_bytes_, fmt::format("{} experts", grouped(on_disk_)));
    if (plan_.vram_reserve > 0) plan_.items.push_back({Memory::kVram, "reserve", plan_.vram_reserve, "left alone"});
    if (plan_.ram_reserve > 0) plan_.items.push_back({Memory::kRam, "reserve", plan_.ram_reserve, "left alone"});
    if (on_disk_ == 0) return;
    const double bytes = plan_.disk_per_row * static_cast<double>(disk_bytes_) / static_cast<double>(on_disk_);
    const double rate = input_.hardware.disk.large_read_gbps * 1e9;
    plan_.warnings.push_back(
        fmt::format("{} experts ({}) fit neither on the card nor in RAM and are read from disk: {:.2f} a token{}",
                    grouped(on_disk_), gib(disk_bytes_), plan_.disk_per_row,
                    rate > 0 ? fmt::format(", {:.1f} ms", 1e3 * bytes / rate) : std::string(", at an unknown rate")));
  }

  // ---- what it means

  void summarise() {
    const ExpertPlacement generating = plan_.generating();
    const Share share = share_on_card(generating);
    plan_.hit_rate = share.hit_rate;
    plan_.hit_rate_bytes = share.hit_rate_bytes;
    plan_.misses_per_row = share.misses_per_row;
    if (!plan_.fits()) return;
    plan_.stream_rows = costs_.stream_rows(plan_.placement);
    // What is sent lies in the memory that short passes leave lent.
    if (lends_ && plan_.stream_rows > 0) plan_.stream_rows = std::max(plan_.stream_rows, kShortRows + 1);
    plan_.unknown = costs_.missing();
    if (plan_.unknown.empty() && on_disk_ > 0 && !costs_.disk_known()) plan_.unknown = "the disk's read rate";
    if (plan_.unknown.empty()) {
      for (int drafts = 0; drafts <= max_drafts_; ++drafts) plan_.rounds.push_back(costs_.round(generating, drafts));
      const double spread = input_.hardware.spread;
      if (spread > 0) {
        plan_.slowest = speeds(1.0 - spread);
        plan_.fastest = speeds(1.0 + spread);
      }
    }
    if (plan_.lent_cache.count == 0) return;
    plan_.cache_empty = with_lent(lent_empty_);
    plan_.cache_full = with_lent(lent_full_);
  }

  struct Share {
    double hit_rate = 0, hit_rate_bytes = 0, misses_per_row = 0;
  };
  Share share_on_card(const ExpertPlacement& placement) const {
    double routes = 0, hits = 0, bytes = 0, hit_bytes = 0;
    for (int bank = 0; bank < banks_; ++bank) {
      const double size = static_cast<double>(bank_bytes(bank));
      for (int e = 0; e < experts_; ++e) {
        const double p = costs_.inclusion(bank, e);
        routes += p;
        bytes += p * size;
        if (placement.at(bank, e) == Place::kCard) {
          hits += p;
          hit_bytes += p * size;
        }
      }
    }
    return {routes > 0 ? std::min(1.0, hits / routes) : 0.0, bytes > 0 ? std::min(1.0, hit_bytes / bytes) : 0.0,
            std::max(0.0, routes - hits)};
  }

  // What the plan comes to with these experts in lent memory.
  Plan::Outlook with_lent(const std::vector<std::int32_t>& lent) const {
    ExpertPlacement placement = plan_.placement;
    for (const std::int32_t i : lent) placement.place[sz(i)] = Place::kCard;
    Plan::Outlook outlook{share_on_card(placement).hit_rate, plan_.disk_per_row, 0};
    for (int drafts = 0; drafts <= max_drafts_ && costs_.missing().empty(); ++drafts)
      outlook.tokens_per_second =
          std::max(outlook.tokens_per_second, costs_.round(placement, drafts).tokens_per_second());
    return outlook;
  }

  // Tokens a second of each number of drafts, on a machine that is faster by `factor`, with the same placement.
  std::vector<double> speeds(double factor) const {
    PlanInput other = input_;
    other.hardware = input_.hardware.faster(factor);
    const CostModel costs(other);
    std::vector<double> result;
    for (int drafts = 0; drafts <= max_drafts_; ++drafts)
      result.push_back(costs.round(plan_.generating(), drafts).tokens_per_second());
    return result;
  }

  const PlanInput& input_;
  bool lends_;
  CostModel costs_;
  int banks_, experts_;
  bool slots_possible_;
  int max_drafts_ = 0;
  Plan plan_;
  std::vector<BankOrder> orders_;
  std::int64_t arena_bytes_ = 0, disk_bytes_ = 0, on_disk_ = 0;
  std::size_t cache_item_ = 0;  // of the plan's items
  bool table_in_ram_ = false, vram_full_ = false;
  std::vector<std::int32_t> lent_empty_, lent_full_;  // with nothing of the context in use, and with all of it
};

double best_speed(const Plan& plan) {
  return plan.rounds.empty() ? 0.0 : plan.best_round()->tokens_per_second();
}

// With the memory of prompts lent, where that is better by the policy's objective: it takes work memory for short
// passes besides, so that it is not where everything fits without. Where speeds are not known, more hits do not make up
// for more experts on disk.
Plan best_plan(const PlanInput& input, std::int64_t more_vram, std::int64_t more_ram) {
  Plan plain = Planner(input, more_vram, more_ram, false).run();
  if (!input.card || !input.policy.memory.lend_prompt_memory || input.model.prefill_rows <= kShortRows) return plain;
  Plan lending = Planner(input, more_vram, more_ram, true).run();
  if (!lending.fits() || std::ssize(lending.lent) == lending.lent_in_cache) return plain;
  if (plain.rounds.empty() && lending.disk_per_row > plain.disk_per_row) return plain;
  const bool by_speed = input.policy.objective == Objective::kRoundTime && best_speed(plain) != best_speed(lending);
  const bool better = by_speed ? best_speed(lending) > best_speed(plain) : lending.hit_rate > plain.hit_rate;
  return better ? lending : plain;
}

// The plan with more memory, when that is better.
std::optional<Plan::Outlook> outlook(const PlanInput& input, const Plan& now, std::int64_t more_vram,
                                     std::int64_t more_ram) {
  const Plan plan = best_plan(input, more_vram, more_ram);
  const bool better =
      plan.hit_rate > now.hit_rate || plan.disk_per_row < now.disk_per_row || best_speed(plan) > best_speed(now);
  if (!better) return std::nullopt;
  return Plan::Outlook{plan.hit_rate, plan.disk_per_row, best_speed(plan)};
}

}  // namespace

std::int64_t ExpertPlacement::count(Place where) const {
  return std::count(place.begin(), place.end(), where);
}

ExpertPlacement Plan::generating() const {
  ExpertPlacement now = placement;
  for (const std::int32_t i : lent) now.place[sz(i)] = Place::kCard;
  return now;
}

ExpertPlacement all_in_ram(int banks, int experts) {
  return {banks, experts, std::vector<Place>(sz(banks * experts), Place::kRam)};
}

const RoundTime* Plan::best_round() const {
  const auto best = std::max_element(rounds.begin(), rounds.end(), [](const RoundTime& a, const RoundTime& b) {
    return a.tokens_per_second() < b.tokens_per_second();
  });
  return best == rounds.end() ? nullptr : &*best;
}

Plan make_plan(const PlanInput& input) {
  Plan plan = best_plan(input, 0, 0);
  if (!plan.fits()) return plan;
  const bool all_on_card = plan.slots == static_cast<int>(plan.placement.place.size());
  if (input.card && !all_on_card) plan.more_vram = outlook(input, plan, kGiB, 0);
  if (plan.placement.count(Place::kDisk) > 0) plan.more_ram = outlook(input, plan, 0, kGiB);
  return plan;
}

}  // namespace tandem
