#include "runtime/plan_report.h"

#include <fmt/format.h>

#include "placement/check.h"
#include "placement/units.h"
#include "runtime/draft_vocabulary.h"
#include "runtime/plan_model.h"
#include "runtime/system_facts.h"

namespace tandem {

Policy resolve_policy(const PlacementChoices& choices) {
  Policy policy;
  if (!choices.policy.empty()) policy = load_policy(choices.policy);
  if (choices.vram) policy.memory.vram = choices.vram;
  if (choices.ram) policy.memory.ram = choices.ram;
  if (choices.slots) policy.memory.slots = choices.slots;
  if (choices.context) policy.context = choices.context;
  if (choices.kv) policy.kv = *choices.kv;
  if (choices.adapt) policy.adapt.mode = *choices.adapt;
  if (choices.fetch_ahead) policy.adapt.fetch_ahead = *choices.fetch_ahead;
  if (!choices.use_mtp) policy.drafting.mtp = false;
  if (choices.draft_vocab_auto) policy.drafting.vocabulary.reset();
  if (choices.draft_vocab) policy.drafting.vocabulary = choices.draft_vocab;
  if (!choices.draft_vocab_from.empty()) set_vocabulary_source(choices.draft_vocab_from, {}, policy.drafting);
  return policy;
}

Hardware known_hardware() {
  const SystemFacts facts = read_system_facts(0);
  Hardware hardware;
  hardware.name = "this machine";
  hardware.ram.total = facts.ram_usable();
  hardware.ram.available = facts.ram_available;
  hardware.ram.lockable = facts.lockable;
  return hardware;
}

PlanReport plan_report(const Model& model, const Policy& given, const PlacementChoices& choices,
                       std::int64_t prefill_rows) {
  PlanReport report;
  PlanInput& input = report.input;
  input.policy = given;
  Policy& policy = input.policy;
  input.state = plan_state(policy, model.shape);
  input.shares = plan_shares(policy, model);
  check_policy_against(policy, input.shares.banks, input.shares.experts);

  input.hardware = choices.hardware.empty() ? known_hardware() : load_hardware(choices.hardware);
  report.model = std::filesystem::path(model.gguf().name()).filename().string();
  report.hardware = input.hardware.name.empty() ? choices.hardware.filename().string() : input.hardware.name;
  // Without a described card, --vram is the size of one, and --ram that of the machine around it.
  if (choices.card && !choices.cpu) {
    if (!input.hardware.gpu) {
      input.hardware.gpu = choices.card;
      report.hardware += fmt::format(" with {}", choices.card->model);
    }
    input.hardware.gpu->vram_total = choices.card->vram_total;
    input.hardware.gpu->vram_free = choices.card->vram_free;
  } else if (!choices.cpu && choices.hardware.empty() && choices.vram.value_or(0) > 0) {
    input.hardware.gpu.emplace();
    input.hardware.gpu->vram_total = input.hardware.gpu->vram_free = *choices.vram;
    policy.memory.vram.reset();
    report.hardware = fmt::format("a card of {}", format_bytes(*choices.vram));
    if (choices.ram) {
      input.hardware.ram.total = input.hardware.ram.available = *choices.ram;
      policy.memory.ram.reset();
    }
    report.hardware += fmt::format(" with {} of RAM", format_bytes(input.hardware.ram.total));
  }
  const bool refused = policy.memory.vram == 0;  // by policy: no card at all
  input.card = !choices.cpu && !refused && input.hardware.gpu.has_value();
  // A policy's VRAM is that of a card; only its slots, or the command line, ask the CPU to play one.
  input.plays_card = !input.card && !refused && (choices.vram || policy.memory.slots);
  if (!input.card && !choices.vram) policy.memory.vram.reset();
  if (input.plays_card) report.hardware += ", the CPU playing the card";
  if (prefill_rows == 0) prefill_rows = planned_prefill_rows(input);
  input.model = plan_model(model, prefill_rows, draft_vocabulary_size(policy.drafting, model.shape.vocab));
  report.plan = make_plan(input);
  return report;
}

std::int64_t planned_prefill_rows(const PlanInput& input) {
  const std::int64_t total = input.card ? input.hardware.gpu->vram_total : 0;
  const std::int64_t vram = std::min(total, input.policy.memory.vram.value_or(total));
  return std::min(default_prefill_rows(vram), input.state.context);
}

std::vector<bool> movable_experts(const Policy& policy, int banks, int experts) {
  std::vector<bool> movable(static_cast<std::size_t>(banks) * static_cast<std::size_t>(experts), true);
  for (const auto* list : {&policy.pins, &policy.bans})
    for (const ExpertRange& range : *list)
      for (int b = range.first_layer; b <= range.last_layer; ++b)
        for (int e = range.first_expert; e <= range.last_expert; ++e)
          movable[static_cast<std::size_t>(b) * static_cast<std::size_t>(experts) + static_cast<std::size_t>(e)] =
              false;
  return movable;
}

AdaptSettings adapt_settings(const Policy& policy) {
  return {policy.adapt.mode, policy.adapt.swaps_per_round, policy.adapt.half_life_rows, policy.adapt.margin,
          policy.floor_per_layer};
}

Lending plan_lending(const Plan& plan) {
  Lending lending;
  if (plan.expected.empty()) return lending;
  if (std::ssize(plan.lent) > plan.lent_in_cache) lending.bytes = plan.lent_bytes;
  lending.cache = plan.lent_cache;
  lending.expected = plan.expected;
  return lending;
}

}  // namespace tandem
