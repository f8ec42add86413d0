#include "runtime/session_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <random>

#include "placement/check.h"
#include "placement/units.h"
#include "runtime/chat_store.h"

namespace tandem {
namespace {

// CLI11 knows no std::optional of float in all its versions; a callback keeps the flag's type in one place.
template <typename T>
CLI::Option* add_optional(CLI::App& app, const std::string& name, std::optional<T>& target, const std::string& help,
                          const std::string& type) {
  return app
      .add_option_function<T>(
          name, [&target](const T& value) { target = value; }, help)
      ->type_name(type);
}

constexpr const char* kDraftGroup = "Drafting (see docs/drafting.md; never changes the text)";

void choose_vocabulary(const std::string& text, PlacementChoices& choices) {
  choices.draft_vocab.reset();
  choices.draft_vocab_auto = text == "auto";
  if (choices.draft_vocab_auto) return;
  int size = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, size);
  const bool number = error == std::errc{} && stopped == end && size >= 1 && size <= kMostVocabulary;
  if (!number && text != "off")
    fail_input("--draft-vocab: expected auto, off or a number of tokens from 1 to {}, found \"{}\"", kMostVocabulary,
               text);
  choices.draft_vocab = number ? size : 0;
}

}  // namespace

SamplerSettings resolve_sampling(const SamplingChoices& choices, const SamplingHints& hints,
                                 std::uint64_t random_seed) {
  SamplerSettings settings;
  const bool greedy = choices.greedy || choices.temperature == 0.0F;
  settings.temperature = greedy ? 0.0F : choices.temperature.value_or(hints.temperature);
  settings.top_k = choices.top_k.value_or(hints.top_k);
  settings.top_p = choices.top_p.value_or(hints.top_p);
  settings.min_p = choices.min_p.value_or(hints.min_p);
  settings.presence_penalty = choices.presence_penalty.value_or(greedy ? 0.0F : hints.presence_penalty);
  settings.repetition_penalty = choices.repetition_penalty.value_or(1.0F);
  settings.penalty_window = choices.penalty_window.value_or(settings.penalty_window);
  settings.seed = choices.seed.value_or(random_seed);
  check_settings(settings);
  return settings;
}

std::uint64_t make_random_seed() {
  std::random_device device;
  return device();  // 32 bits: short enough to type in again
}

void add_words(CLI::App& app, const std::string& name, const std::vector<std::string>& words, const std::string& help,
               const std::string& type, const std::function<void(std::size_t)>& set) {
  const auto choose = [name, words, set](const std::string& given) {
    const auto found = std::find(words.begin(), words.end(), given);
    if (found == words.end()) fail_input("{}: expected {}, found \"{}\"", name, fmt::join(words, " or "), given);
    set(static_cast<std::size_t>(found - words.begin()));
  };
  app.add_option_function<std::string>(name, choose, help)->type_name(type);
}

void add_engine_flags(CLI::App& app, EngineOptions& options) {
  app.add_option("MODEL", options.model, "GGUF file, or any shard of a split one")->required()->type_name("");
  app.add_option("--mtp", options.mtp, "separate GGUF file with the draft head")->type_name("FILE");
  app.add_flag_callback(
      "--no-mtp", [&options] { options.use_mtp = false; }, "leave the draft head out");
  app.add_option("--device", options.device, "auto, cpu or cuda:N (default auto: a GPU if this build can use one)")
      ->type_name("NAME");
  app.add_option("--workers", options.workers, "CPU threads, 0 for one per core (default 0)")
      ->type_name("N")
      ->check(CLI::Range(0, 4096).description(""));
  app.add_flag("--no-graphs{false}", options.graphs,
               "launch every operation of a pass on the card anew instead of a recorded pass (slower; to find faults)");
  app.add_flag("--verify-experts", options.verify_experts,
               "compute one expert of every layer and pass on the CPU as well and stop if a bit differs (slower)");
  app.add_option("--isa", options.isa,
                 "CPU kernels: auto, scalar, avx2, avxvnni or avx512 (default auto: the best that the processor has); "
                 "never changes the text")
      ->type_name("NAME");
  app.add_option("--context", options.context,
                 "positions that a conversation may fill (default 32768, or the model's own limit if smaller)")
      ->type_name("N")
      ->check(CLI::Range(std::size_t{16}, std::size_t{1} << 24).description(""));
  app.add_option("--prefill-chunk", options.prefill_chunk,
                 "prompt tokens per pass; never changes the text (default: 4096 on a card of 16 GiB or more, 512 "
                 "without a card)")
      ->type_name("N")
      ->check(CLI::Range(std::size_t{1}, kMaxPrefillChunk).description(""));
  add_words(app, "--kv", {"f16", "f32"}, "f16 or f32: how keys and values are kept (default f16)", "TYPE",
            [&options](std::size_t word) { options.kv = word == 0 ? KvType::kF16 : KvType::kF32; });
  add_placement_flags(app, options.placement);
  options.saved_chats = read_saved_chats;
  app.add_option("--slots-file", options.slots_file,
                 "experts on the card: read from FILE at the start if it is there, written at the end")
      ->type_name("FILE");
  app.add_option("--timeline", options.timeline,
                 "write what every thread did to FILE, for chrome://tracing or ui.perfetto.dev")
      ->type_name("FILE");
}

void add_placement_flags(CLI::App& app, PlacementChoices& choices) {
  const std::string group = "Placement (see docs/placement.md; never changes the text)";
  const auto size = [&](const std::string& name, std::optional<std::int64_t>& target, const std::string& help) {
    app.add_option_function<std::string>(
           name, [&target, name](const std::string& text) { target = parse_bytes_or_fail(text, name); }, help)
        ->type_name("SIZE")
        ->group(group);
  };
  app.add_option("--policy", choices.policy, "placement policy (YAML), for example one of configs/policies")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--hardware", choices.hardware,
                 "description of the machine (YAML), as `tandem doctor` writes it; default: this machine's RAM")
      ->type_name("FILE")
      ->group(group);
  size("--vram", choices.vram, "VRAM that Tandem may use; with --device cpu, of the card that the CPU plays");
  size("--ram", choices.ram, "RAM that Tandem may use");
  app.add_option_function<int>(
         "--slots", [&choices](int n) { choices.slots = n; },
         "experts on the card, at most; with --device cpu, on the card that the CPU plays")
      ->type_name("N")
      ->check(CLI::Range(0, 1 << 24).description(""))
      ->group(group);
  add_words(app, "--adapt", {"off", "lru", "lfu", "swaps"}, "off, lru, lfu or swaps: how experts move to the card",
            "HOW", [&choices](std::size_t word) { choices.adapt = static_cast<AdaptMode>(word); });
  app.get_option("--adapt")->group(group);
  add_words(
      app, "--fetch-ahead", {"auto", "on", "off"},
      "auto, on or off: copy experts that will probably be asked for to the card while it computes (default auto: "
      "where it pays)",
      "HOW", [&choices](std::size_t word) { choices.fetch_ahead = static_cast<FetchAhead>(word); });
  app.get_option("--fetch-ahead")->group(group);
  app.add_option_function<std::string>(
         "--draft-vocab", [&choices](const std::string& text) { choose_vocabulary(text, choices); },
         "tokens that the draft head chooses among: a number, off for all, or auto (default auto: 65536 if there are "
         "more)")
      ->type_name("N")
      ->group(kDraftGroup);
  app.add_option("--draft-vocab-from", choices.draft_vocab_from,
                 "whose most frequent tokens these are: file (the tokenizer's own order), history (your saved "
                 "conversations), or a file with text (default file)")
      ->type_name("SOURCE")
      ->group(kDraftGroup);
}

void add_draft_flags(CLI::App& app, DraftChoices& choices) {
  const std::string group = kDraftGroup;
  std::vector<std::string> depths{"auto"};
  for (std::size_t d = 0; d <= kMaxHeadDrafts; ++d) depths.push_back(std::to_string(d));
  add_words(app, "--drafts", depths,
            "tokens that the draft head guesses each round, 0 to 8, or auto: by what one more would bring and cost "
            "(default auto)",
            "N", [&choices](std::size_t word) {
              choices.automatic = word == 0;
              choices.depth = word == 0 ? std::nullopt : std::optional<int>(static_cast<int>(word) - 1);
            });
  add_words(app, "--lookup", {"on", "off"}, "on or off: guess that repeated text goes on as before (default on)", "HOW",
            [&choices](std::size_t word) { choices.lookup = word == 0; });
  add_words(app, "--mtp-norm", {"full", "streams"},
            "full or streams: what the draft head's input is normalised over (default full)", "HOW",
            [&choices](std::size_t word) { choices.norm = word == 0 ? MtpNorm::kFull : MtpNorm::kPerStream; });
  add_words(
      app, "--mtp-attention", {"sparse", "dense"},
      "sparse or dense: what the draft head attends to in a long text (default sparse)", "HOW",
      [&choices](std::size_t word) { choices.attention = word == 0 ? MtpAttention::kSparse : MtpAttention::kDense; });
  for (const char* name : {"--drafts", "--lookup", "--mtp-norm", "--mtp-attention"}) app.get_option(name)->group(group);
}

void add_lossy_flags(CLI::App& app, LossyChoices& choices) {
  const std::string group = "Lossy switches (see docs/drafting.md; these change the text)";
  add_words(app, "--lossy-biased-acceptance", {"on", "off"},
            "on or off: keep a rejected draft that is at least as likely as its replacement (default off)", "HOW",
            [&choices](std::size_t word) { choices.biased_acceptance = word == 0; });
  app.get_option("--lossy-biased-acceptance")->group(group);
  add_optional(app, "--lossy-tail-route-skip", choices.tail_route_skip,
               "router weight, 0 to 0.5, that a token may lose in each layer in experts off the card (default 0)", "W")
      ->check(CLI::Range(0.0, 0.5).description(""))
      ->group(group);
}

void add_sampling_flags(CLI::App& app, SamplingChoices& choices) {
  const std::string group = "Sampling (defaults: the model's recommendation)";
  add_optional(app, "--temperature", choices.temperature, "0 for greedy, else 0.01 to 100", "T")->group(group);
  add_optional(app, "--top-k", choices.top_k, "keep the K best tokens, 0 for all", "K")->group(group);
  add_optional(app, "--top-p", choices.top_p, "keep the best tokens that together reach probability P", "P")
      ->group(group);
  add_optional(app, "--min-p", choices.min_p, "keep tokens with at least P times the best one's probability", "P")
      ->group(group);
  add_optional(app, "--presence-penalty", choices.presence_penalty,
               "subtracted from the logit of tokens that the answer already holds", "X")
      ->group(group);
  add_optional(app, "--repetition-penalty", choices.repetition_penalty,
               "divides positive, multiplies negative logits of tokens in prompt and answer, 1 for off", "X")
      ->group(group);
  add_optional(app, "--penalty-window", choices.penalty_window,
               "how many of the last tokens penalties look at, 0 for all (default 1024)", "N")
      ->group(group);
  add_optional(app, "--seed", choices.seed, "the same seed gives the same text (default: a random one)", "S")
      ->group(group);
  app.add_flag("--greedy", choices.greedy, "always the most likely token")->group(group);
}

void add_chat_flags(CLI::App& app, ChatChoices& choices) {
  app.add_flag_callback(
      "--think", [&choices] { choices.thinking = true; }, "let the model think first (default)");
  app.add_flag_callback(
      "--no-think", [&choices] { choices.thinking = false; }, "let the model answer at once");
  app.add_option("--reasoning-effort", choices.effort, "low, medium or xhigh, with thinking (default xhigh)")
      ->type_name("LEVEL");
  app.add_option("--system", choices.system, "system message")->type_name("TEXT");
}

void add_length_flags(CLI::App& app, std::size_t& max_tokens, std::vector<std::string>& stop_strings) {
  app.add_option("--max-tokens", max_tokens, "end the answer after N tokens (default: when the context is full)")
      ->type_name("N")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 24).description(""));
  app.add_option("--stop", stop_strings, "end the answer before this text; may be given several times")
      ->type_name("TEXT")
      ->take_all()
      ->expected(1);
}

}  // namespace tandem
