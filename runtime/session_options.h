// The command-line flags that several subcommands share: one definition, one default, one description each.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/chat_template.h"
#include "runtime/engine.h"
#include "runtime/model.h"
#include "runtime/sampler.h"

namespace CLI {
class App;
}

namespace tandem {

// What a user asked for; what is empty comes from the model's recommendation.
struct SamplingChoices {
  std::optional<float> temperature, top_p, min_p, presence_penalty, repetition_penalty;
  std::optional<int> top_k;
  std::optional<std::size_t> penalty_window;
  std::optional<std::uint64_t> seed;
  bool greedy = false;
};

// The settings that follow: choices over the recommendation. Greedy, by --greedy or temperature 0, leaves the
// recommended penalties out too (they belong to sampling) and keeps those that were asked for. Without a seed,
// `random_seed`. Throws InputError for a value out of range.
SamplerSettings resolve_sampling(const SamplingChoices& choices, const SamplingHints& hints, std::uint64_t random_seed);
std::uint64_t make_random_seed();

struct ChatChoices {
  bool thinking = true;
  std::string effort = "xhigh";
  std::string system;
};

// A flag that takes one of `words`; `set` gets the index of the chosen one. Another word is an InputError.
void add_words(CLI::App& app, const std::string& name, const std::vector<std::string>& words, const std::string& help,
               const std::string& type, const std::function<void(std::size_t)>& set);

// MODEL, --mtp, --no-mtp, --device, --workers, --context, --prefill-chunk, --kv.
void add_engine_flags(CLI::App& app, EngineOptions& options);
// --policy, --hardware, --vram, --ram, --slots, --adapt, --draft-vocab, --draft-vocab-from: where things live and how
// large they are (all engine commands, and `tandem plan`).
void add_placement_flags(CLI::App& app, PlacementChoices& choices);
// --drafts, --lookup, --mtp-norm, --mtp-attention: for commands that generate.
void add_draft_flags(CLI::App& app, DraftChoices& choices);
// --lossy-biased-acceptance, --lossy-tail-route-skip: for commands that generate or evaluate.
void add_lossy_flags(CLI::App& app, LossyChoices& choices);
// --temperature, --top-k, --top-p, --min-p, --presence-penalty, --repetition-penalty, --penalty-window, --seed,
// --greedy.
void add_sampling_flags(CLI::App& app, SamplingChoices& choices);
// --think/--no-think, --reasoning-effort, --system.
void add_chat_flags(CLI::App& app, ChatChoices& choices);
// --max-tokens, --stop.
void add_length_flags(CLI::App& app, std::size_t& max_tokens, std::vector<std::string>& stop_strings);

}  // namespace tandem
