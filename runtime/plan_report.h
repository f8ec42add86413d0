// A plan for a model on a machine, from a policy, a hardware description and what the command line says: `tandem plan`
// prints it, the engine loads by it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "placement/adapt.h"
#include "runtime/model.h"
#include "runtime/plan_text.h"

namespace tandem {

// What the command line may say about placement; what is empty comes from the policy.
struct PlacementChoices {
  std::filesystem::path policy, hardware;
  std::optional<std::int64_t> vram, ram, context;
  std::optional<int> slots;
  std::optional<KvFormat> kv;
  std::optional<AdaptMode> adapt;
  std::optional<FetchAhead> fetch_ahead;
  std::optional<int> draft_vocab;  // as Policy::Drafting::vocabulary
  bool draft_vocab_auto = false;
  std::string draft_vocab_from;  // as for set_vocabulary_source
  bool use_mtp = true;
  bool cpu = false;                   // no card; with --vram or --slots, or slots in the policy, the CPU plays one
  std::optional<Hardware::Gpu> card;  // the card that will run it: its memory is what there is, whatever a file says
};

// The policy file with the choices applied. Throws InputError.
Policy resolve_policy(const PlacementChoices& choices);

// What is known about this machine without measuring: its RAM, within the limits of its control group.
Hardware known_hardware();

// prefill_rows: of a prompt's pass; 0: default_prefill_rows of the card. Only headers of the model are read. Throws
// InputError for census and hardware files that cannot be used, or that do not go with the model.
PlanReport plan_report(const Model& model, const Policy& policy, const PlacementChoices& choices,
                       std::int64_t prefill_rows);

// Rows of a prompt's pass for the card and the context of `input`: default_prefill_rows of what the policy may use.
std::int64_t planned_prefill_rows(const PlanInput& input);

// For each expert [banks * experts]: neither pinned nor banned by the policy, so that it may change places.
std::vector<bool> movable_experts(const Policy& policy, int banks, int experts);
AdaptSettings adapt_settings(const Policy& policy);
// What the planned card lends.
Lending plan_lending(const Plan& plan);

}  // namespace tandem
