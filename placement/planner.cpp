// make_plan: bytes first, then the choice of experts, then what it means. docs/placement.md explains each step.
#include "placement/planner.h"

#include <algorithm>

#include "placement/check.h"
#include "placement/lending.h"

namespace tandem {

Planner::Planner(const PlanInput& input, std::int64_t more_vram, std::int64_t more_ram, bool lends)
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

Plan Planner::run() {
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

void Planner::lend() {
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
  const std::vector<std::int32_t> order = hottest_first(heat, input_.model.expert_bytes);
  const auto lent_at = [&](std::int64_t position, std::vector<std::int32_t>& lent) {
    LentPlaces places(lending);
    std::vector<std::int32_t> none;
    places.need_cache(position, none);
    lent = lent_experts(order, may, input_.model.expert_bytes, places);
    return static_cast<std::int64_t>(places.in_cache());
  };
  plan_.lent_in_cache = lent_at(input_.state.context / 2, plan_.lent);
  lent_at(input_.state.context, lent_full_);
  if (lent_at(0, lent_empty_) > 0 && !slower_with_cache()) return;  // room for one at least
  plan_.lent = lent_full_;
  plan_.lent_in_cache = 0;
  plan_.lent_cache = {};
}

bool Planner::slower_with_cache() const {
  if (input_.policy.objective != Objective::kRoundTime || !costs_.missing().empty()) return false;
  return with_lent(plan_.lent).tokens_per_second < with_lent(lent_full_).tokens_per_second;
}

void Planner::summarise() {
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

Planner::Share Planner::share_on_card(const ExpertPlacement& placement) const {
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

Plan::Outlook Planner::with_lent(const std::vector<std::int32_t>& lent) const {
  ExpertPlacement placement = plan_.placement;
  for (const std::int32_t i : lent) placement.place[sz(i)] = Place::kCard;
  Plan::Outlook outlook{share_on_card(placement).hit_rate, plan_.disk_per_row, 0};
  for (int drafts = 0; drafts <= max_drafts_ && costs_.missing().empty(); ++drafts)
    outlook.tokens_per_second =
        std::max(outlook.tokens_per_second, costs_.round(placement, drafts).tokens_per_second());
  return outlook;
}

std::vector<double> Planner::speeds(double factor) const {
  PlanInput other = input_;
  other.hardware = input_.hardware.faster(factor);
  const CostModel costs(other);
  std::vector<double> result;
  for (int drafts = 0; drafts <= max_drafts_; ++drafts)
    result.push_back(costs.round(plan_.generating(), drafts).tokens_per_second());
  return result;
}

namespace {
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
