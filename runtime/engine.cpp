#include "runtime/engine.h"

#include <algorithm>

#include "placement/check.h"
#include "placement/cost_model.h"
#include "placement/files.h"
#include "placement/slots.h"
#include "placement/units.h"
#include "runtime/environment.h"
#include "runtime/expert_store.h"
#include "runtime/lossy.h"
#include "runtime/progress.h"
#include "runtime/timeline.h"

namespace tandem {
namespace {

// What the command line says about caches and the draft head belongs to the policy too.
Policy engine_policy(const EngineOptions& options) {
  PlacementChoices choices = options.placement;
  if (options.context > 0) choices.context = static_cast<std::int64_t>(options.context);
  if (options.kv) choices.kv = *options.kv == KvType::kF32 ? KvFormat::kF32 : KvFormat::kF16;
  choices.use_mtp = options.use_mtp;
  Policy policy = resolve_policy(choices);
  if (options.drafting.automatic) policy.drafting.depth.reset();
  if (options.drafting.depth) policy.drafting.depth = options.drafting.depth;
  if (options.drafting.lookup) policy.drafting.lookup = *options.drafting.lookup;
  if (options.lossy.biased_acceptance) policy.lossy.biased_acceptance = *options.lossy.biased_acceptance;
  if (options.lossy.tail_route_skip) policy.lossy.tail_route_skip = *options.lossy.tail_route_skip;
  return policy;
}

Model open_model(const EngineOptions& options, const Policy& policy) {
  Model model = Model::open(options.model, options.mtp);
  if (!policy.drafting.mtp && model.mtp) {
    model.mtp.reset();
    model.mtp_note = options.use_mtp ? "switched off by the policy" : "switched off by --no-mtp";
  }
  return model;
}

DraftVocabulary reduce_draft_head(const EngineOptions& options, const Policy& policy, const Tokenizer& tokenizer,
                                  Model& model) {
  DraftVocabulary vocabulary = choose_draft_vocabulary(policy.drafting, model, tokenizer, options.saved_chats);
  if (!vocabulary.ids.empty()) model.mtp->reduce_output(vocabulary.ids);
  return vocabulary;
}

std::size_t choose_context(const EngineOptions& options, const Policy& policy, const ModelShape& shape) {
  const auto trained = static_cast<std::size_t>(shape.max_positions);
  const auto asked = static_cast<std::size_t>(policy.context.value_or(0));
  if (asked == 0) return std::min(trained, kDefaultContext);
  if (asked > trained) {
    fail_input("{}: expected at most {} positions, which is what {} was trained for, found {}. Fix: lower it",
               options.context > 0 ? "--context" : options.placement.policy.string() + ": context", trained,
               options.model.string(), asked);
  }
  return asked;
}

std::size_t choose_chunk(const EngineOptions& options, const Policy& policy, const Ops& ops, std::size_t context) {
  if (options.prefill_chunk > kMaxPrefillChunk) {
    fail_input("--prefill-chunk: expected 1 to {} rows, found {}", kMaxPrefillChunk, options.prefill_chunk);
  }
  if (options.prefill_chunk > 0) return std::min(options.prefill_chunk, context);
  std::int64_t vram = 0;
  if (const std::optional<Hardware::Gpu> card = ops.card())
    vram = std::min(card->vram_total, policy.memory.vram.value_or(card->vram_total));
  return std::min(static_cast<std::size_t>(default_prefill_rows(vram)), context);
}

// Files written at the end: better refused before an hour's work than after it.
void check_outputs(const EngineOptions& options) {
  for (const std::filesystem::path& path : {options.slots_file, options.timeline})
    if (!path.empty()) AtomicFile probe(path);  // removed at once
}

std::unique_ptr<Ops> make_machine(EngineOptions options, const Policy& policy, const OpsFactory& make_ops) {
  check_outputs(options);
  if (!options.timeline.empty()) Timeline::start();  // before there are threads
  if (options.workers == 0) options.workers = policy.crew.workers.value_or(0);
  if (options.workers == 0 && !options.placement.hardware.empty())
    options.suggested_workers = crew_workers(policy, load_hardware(options.placement.hardware));
  options.cores = policy.crew.cores;
  options.pin = policy.crew.pin;
  return make_ops(options);
}

PlanReport make_plan_or_refuse(const EngineOptions& options, const Policy& policy, const Model& model, const Ops& ops,
                               std::size_t context, std::size_t chunk, const std::filesystem::path& remembered) {
  if (!options.plan) return {};
  PlacementChoices choices = options.placement;
  choices.card = ops.card();
  choices.cpu = !choices.card;
  Policy resolved = policy;
  resolved.context = static_cast<std::int64_t>(context);
  PlanReport report = plan_report(model, resolved, choices, static_cast<std::int64_t>(chunk));
  if (!report.plan.fits()) fail_input("{}: {}", options.model.string(), report.plan.shortfall);
  // Where --vram says more than is free, the reserve is not in what is left.
  const std::int64_t later = policy.memory.vram_reserve ? 0 : kVramReserve;
  if (choices.card && report.plan.vram_used + later > choices.card->vram_free) {
    std::string flag = format_bytes(choices.card->vram_free);
    std::erase(flag, ' ');
    fail_input(
        "{}: expected {} of the card's memory, as planned{}, found {} free of {}{}. Fix: close what holds it, or "
        "plan with less (--vram {})",
        options.model.string(), format_bytes(report.plan.vram_used),
        later > 0 ? fmt::format(", and {} for CUDA", format_bytes(later)) : "", format_bytes(choices.card->vram_free),
        format_bytes(choices.card->vram_total),
        choices.card->used_by.empty() ? "" : ", held by " + choices.card->used_by, flag);
  }
  const std::filesystem::path& file = remembered.empty() ? options.slots_file : remembered;
  std::error_code no_file;
  if (file.empty() || !std::filesystem::exists(file, no_file)) return report;
  try {
    const ExpertPlacement& planned = report.plan.placement;
    report.plan.placement =
        restore_slots(file, planned, report.input.model.expert_bytes,
                      movable_experts(resolved, planned.banks, planned.experts), model.fingerprint());
  } catch (const InputError& error) {
    if (remembered.empty()) throw;
    report.plan.warnings.push_back(fmt::format("{}; begun as planned, and written anew at the end", error.what()));
  }
  return report;
}

// The weights are read and packed here, which takes a while at full size.
std::unique_ptr<Pipeline> make_pipeline(const EngineOptions& options, const Policy& policy, const PlanReport& report,
                                        const Model& model, Ops& ops, std::size_t chunk) {
  Progress progress("loading the weights", "MB");
  LoadOptions load;
  if (options.plan) {
    load.placement = report.plan.placement;
    load.adapt = adapt_settings(policy);
    load.fetch_ahead = policy.adapt.fetch_ahead;
    if (report.input.hardware.gpu) load.fetch_seconds = report.input.hardware.gpu->fetch_us * 1e-6;
    load.lending = plan_lending(report.plan);
    load.movable = movable_experts(policy, load.placement->banks, load.placement->experts);
    load.lock_memory = policy.crew.lock_memory && report.plan.slots > 0;
    load.ngram_in_ram = report.plan.ngram_in_ram;
    if (report.plan.stream_rows > 0) load.stream_rows = static_cast<std::size_t>(report.plan.stream_rows);
  }
  load.progress = [&progress](std::size_t done, std::size_t total) {
    progress.update(done / 1'000'000, total / 1'000'000);
  };
  return std::make_unique<Pipeline>(model, ops, chunk, load);
}

}  // namespace

Engine::Engine(const EngineOptions& options, const OpsFactory& make_ops)
    : options_(options),
      policy_(engine_policy(options)),
      model_(open_model(options, policy_)),
      tokenizer_(Tokenizer::from_gguf(model_.gguf())),
      template_(ChatTemplate::from_gguf(model_.gguf())),
      draft_vocabulary_(reduce_draft_head(options, policy_, tokenizer_, model_)),
      ops_(make_machine(options, policy_, make_ops)),
      context_(choose_context(options, policy_, model_.shape)),
      chunk_(choose_chunk(options, policy_, *ops_, context_)),
      kv_(policy_.kv == KvFormat::kF32 ? KvType::kF32 : KvType::kF16),
      plan_(make_plan_or_refuse(options, policy_, model_, *ops_, context_, chunk_, remembered_slots())),
      pipeline_(make_pipeline(options, policy_, plan_, model_, *ops_, chunk_)),
      warnings_(model_.warnings) {
  const auto add = [this](const std::vector<std::string>& more) {
    warnings_.insert(warnings_.end(), more.begin(), more.end());
  };
  if (policy_.lossy.any()) warnings_.insert(warnings_.begin(), lossy_banner(policy_.lossy));
  if (policy_.lossy.tail_route_skip > 0) {
    // A machine with memory of its own splits routes there, where nothing is dropped yet.
    if (experts() != nullptr && ops_->memory().is_host())
      experts()->tail_skip().set_budget(policy_.lossy.tail_route_skip);
    else
      warnings_.push_back(
          "lossy.tail_route_skip has no effect: this machine splits routes by itself, or reads experts from the file. "
          "Fix: leave it out, or --device cpu");
  }
  if (policy_.adapt.save_slots && options_.remember_slots && user_state_folder().empty())
    warnings_.push_back(
        "adapt.save_slots has no effect: there is no folder to keep the slots in. Fix: set HOME or XDG_STATE_HOME, or "
        "--slots-file FILE");
  if (!template_.warning().empty()) warnings_.push_back(template_.warning());
  add(draft_vocabulary_.warnings);
  add(plan_.plan.warnings);
  add(ops_->warnings());
  if (experts() != nullptr) add(experts()->warnings());
  if (!options.slots_file.empty() && (experts() == nullptr || !experts()->has_card()))
    warnings_.push_back("--slots-file has no effect: no expert is on a card. Fix: --slots N, or leave it out");
}

std::filesystem::path Engine::remembered_slots() const {
  if (!policy_.adapt.save_slots || !options_.remember_slots || !options_.slots_file.empty()) return {};
  const std::filesystem::path folder = user_state_folder();
  return folder.empty() ? folder : folder / fmt::format("slots-{:016x}.txt", model_.fingerprint());
}

SequenceState Engine::new_state() const {
  return SequenceState(model_.shape, StateOptions{context_, kv_}, ops_->memory(),
                       experts() != nullptr ? experts()->lease_cache() : nullptr);
}

std::string Engine::card_memory_note(std::int64_t sequences) const {
  constexpr std::int64_t kSlack = std::int64_t{64} << 20;  // what a plan may be wrong by
  if (ops_->card_bytes() == 0 || !options_.plan) return {};
  const std::int64_t more = (sequences - 1) * state_bytes(model_.shape, plan_.input.state).total();
  const std::int64_t planned = plan_.plan.vram_used + more, used = static_cast<std::int64_t>(ops_->card_bytes());
  return fmt::format("card memory: {} planned{}, {} {} in use{}", format_bytes(planned),
                     sequences > 1 ? fmt::format(" with {} conversations", sequences) : "",
                     format_bytes(std::abs(used - planned)), used < planned ? "less" : "more",
                     used > planned + kSlack ? " (more than a plan may be wrong by: please report this)" : "");
}

DraftSettings Engine::drafting() const {
  return {policy_.drafting.mtp, policy_.drafting.lookup, policy_.drafting.depth, options_.drafting.norm,
          options_.drafting.attention};
}

TailSkip::Counts Engine::skipped() const {
  return experts() != nullptr ? experts()->tail_skip().counts() : TailSkip::Counts{};
}

void Engine::close() {
  if (experts() != nullptr && experts()->has_card()) {
    const std::filesystem::path remembered = remembered_slots();
    std::error_code not_made;  // writing the file says why
    if (!remembered.empty()) std::filesystem::create_directories(remembered.parent_path(), not_made);
    const std::filesystem::path& file = remembered.empty() ? options_.slots_file : remembered;
    if (!file.empty()) save_slots(experts()->placement(), model_.fingerprint(), file);
  }
  if (!options_.timeline.empty()) Timeline::write(options_.timeline);
}

}  // namespace tandem
