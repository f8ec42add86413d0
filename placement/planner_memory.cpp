// Budgets, and every item of a plan with its bytes.
#include "placement/planner.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "placement/check.h"
#include "placement/fetch_ahead.h"

namespace tandem {
namespace {

// The program itself, page cache for embedding and n-gram rows, and everything else that runs: a sixteenth of the RAM,
// at least 1 GiB.
constexpr std::int64_t kRamReserve = kGiB;
constexpr std::int64_t kRamReserveFraction = 16;
constexpr std::int64_t kRegionSlack = 64 << 10;  // arrays in lent memory begin at multiples of 256 (runtime/region.h)

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

}  // namespace

void Planner::set_budgets(std::int64_t more_vram, std::int64_t more_ram) {
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

void Planner::add(Memory memory, std::string what, std::int64_t bytes, std::string note) {
  if (bytes == 0) return;
  plan_.items.push_back({memory, std::move(what), bytes, std::move(note)});
  if (memory == Memory::kVram) plan_.vram_used += bytes;
  if (memory == Memory::kRam) plan_.ram_used += bytes;
}

void Planner::add_fixed_items() {
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
    if (input_.card && input_.policy.adapt.fetch_ahead != FetchAhead::kOff)
      add(Memory::kVram, "fetch buffers", fetch_bytes(expert, experts_));
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

void Planner::short_of(std::string_view memory, std::int64_t missing, std::string_view when) {
  std::string fix;
  const std::int64_t context = context_that_fits(missing);
  if ((memory == "VRAM" || !input_.card) && context > 0) fix = fmt::format("--context {}", context);
  if (memory == "RAM" && input_.policy.ngram_place == NgramPlace::kRam) fix = "ngram_place: disk";
  if (fix.empty() && memory == "VRAM" && input_.model.prefill_rows > default_prefill_rows(0))
    fix = fmt::format("--prefill-chunk {}, --device cpu, or a smaller model file", default_prefill_rows(0));
  if (fix.empty()) fix = memory == "VRAM" ? "--device cpu, or a smaller model file" : "a smaller model file";
  plan_.shortfall = fmt::format("{}: {} needed {}, {} allowed after the reserve: {} short. Fix: {}", memory,
                                gib(memory == "VRAM" ? plan_.vram_used : plan_.ram_used), when,
                                gib(memory == "VRAM" ? plan_.vram_budget : plan_.ram_budget), gib(missing), fix);
}

std::int64_t Planner::context_that_fits(std::int64_t missing) const {
  constexpr std::int64_t kShortest = 1024;
  StateLayout layout = input_.state;
  const std::int64_t now = state_bytes(input_.model.shape, layout).total();
  for (layout.context /= 2; layout.context >= kShortest; layout.context /= 2) {
    if (now - state_bytes(input_.model.shape, layout).total() >= missing) return layout.context;
  }
  return 0;
}

void Planner::add_expert_items() {
  if (plan_.lent_in_cache > 0)
    plan_.items[cache_item_].note += fmt::format("; half of it lent to {} experts", grouped(plan_.lent_in_cache));
  if (plan_.lent_bytes > 0) {
    const std::string rows = fmt::format("passes of {}", grouped(input_.model.prefill_rows));
    const std::int64_t in_prompt = std::ssize(plan_.lent) - plan_.lent_in_cache;
    plan_.items.push_back({Memory::kVram, "prompt memory", plan_.lent_bytes,
                           in_prompt == 0 ? rows : fmt::format("{}; lent to {} experts", rows, grouped(in_prompt))});
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

}  // namespace tandem
