#include "runtime/cmd_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>

#include "placement/check.h"
#include "runtime/draft_report.h"
#include "runtime/drafting.h"
#include "runtime/environment.h"
#include "runtime/expert_report.h"
#include "runtime/generate.h"
#include "runtime/interrupt.h"
#include "runtime/lossy.h"
#include "runtime/output.h"
#include "runtime/progress.h"
#include "runtime/sampler.h"
#include "runtime/session_options.h"
#include "runtime/utf8.h"

namespace tandem {
namespace {

struct RunOptions {
  EngineOptions engine;
  SamplingChoices sampling;
  ChatChoices chat;
  std::optional<std::string> prompt;
  std::string prompt_file;
  bool raw = false;
  bool echo = false;
  bool quiet = false;
  bool logits_hash = false;
  std::size_t max_tokens = 0;
  std::vector<std::string> stop_strings;
  std::filesystem::path state_in, state_out;
};

std::string read_prompt(const RunOptions& options) {
  if (options.prompt) return *options.prompt;
  if (options.prompt_file.empty()) {
    fail_input("run: expected a prompt, found none. Fix: give -p TEXT or --prompt-file FILE (- for standard input)");
  }
  if (options.prompt_file == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  if (std::filesystem::is_directory(options.prompt_file)) {
    fail_input("--prompt-file {}: expected a text file, found a folder", options.prompt_file);
  }
  std::ifstream file(options.prompt_file, std::ios::binary);
  if (!file) fail_input("--prompt-file {}: expected a readable file, found none", options.prompt_file);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The tokens to append to `state`: the prompt as it is, or as a user's turn of the chat template.
std::vector<TokenId> prompt_tokens(const RunOptions& options, const Engine& engine, const SequenceState& state,
                                   const std::string& prompt) {
  const Tokenizer& tokenizer = engine.tokenizer();
  if (options.raw) return tokenizer.encode(prompt, true);
  ChatOptions chat;
  chat.thinking = options.chat.thinking;
  chat.reasoning_effort = options.chat.effort;
  const ChatMessage user{"user", prompt, {}, {}};
  if (state.position() == 0) {
    std::vector<ChatMessage> messages;
    if (!options.chat.system.empty()) messages.push_back({"system", options.chat.system, {}, {}});
    messages.push_back(user);
    return engine.chat_template().encode(tokenizer, messages, chat);
  }
  const bool turn_ended = tokenizer.find_special("<|im_end|>") == state.tokens().back();
  return ChatTemplate::encode(tokenizer, engine.chat_template().render_continuation({user}, chat, turn_ended));
}

void check_fit(std::size_t before, std::size_t prompt, const Engine& engine) {
  if (before + prompt < engine.context()) return;
  const std::string held = before == 0 ? std::string{} : fmt::format(" after {} restored ones", before);
  const auto trained = static_cast<std::size_t>(engine.model().shape.max_positions);
  fail_input(
      "run: the prompt has {} tokens{}, the context holds {} and needs one for the answer. Fix: {}", prompt, held,
      engine.context(),
      before + prompt < trained ? fmt::format("--context {} (up to {})", trained, trained) : "shorten the prompt");
}

void print_status(const GenerateResult& result, const Engine& engine, const SequenceState& state,
                  const SamplerSettings& settings) {
  std::string line = fmt::format("{} tokens, {:.1f} tok/s", result.tokens.size(), result.decode_rate());
  const std::string drafts = draft_status(result.drafts);
  if (!drafts.empty()) line += ", " + drafts;
  line += fmt::format(" | prompt {} tokens, {:.1f} tok/s | context {}/{}", result.prompt_tokens, result.prompt_rate(),
                      state.position(), state.context());
  if (settings.temperature > 0.0F) line += fmt::format(" | seed {}", settings.seed);
  if (engine.experts() != nullptr) {
    const std::string experts = expert_status(engine.experts()->stats());
    if (!experts.empty()) line += " | " + experts;
  }
  const std::string lossy = lossy_status(engine.lossy(), result.drafts.kept_though_rejected, engine.skipped());
  if (!lossy.empty()) line += " | " + lossy;
  if (result.reason == EndReason::kContext) line += " | stopped: the context is full";
  if (result.reason == EndReason::kCancelled) line += " | stopped by Ctrl-C";
  const bool color = terminal_can_color(STDERR_FILENO);
  write_stderr((color ? "\x1b[2m" : "") + line + (color ? "\x1b[0m\n" : "\n"));
}

GenerateResult generate_to_stdout(const RunOptions& options, Engine& engine, PipelineDecoder& decoder, Drafter* drafter,
                                  Sampler& sampler, std::span<const TokenId> prompt) {
  GenerateOptions limits;
  limits.max_tokens = options.max_tokens;
  limits.stop_strings = options.stop_strings;
  limits.stop_ids = engine.tokenizer().stop_ids();
  limits.answer_start = decoder.tokens().size() + prompt.size();
  limits.drafter = drafter;
  limits.biased_acceptance = engine.lossy().biased_acceptance;

  Utf8Stream utf8;
  std::optional<Progress> progress(std::in_place, "reading the prompt", "tokens");
  GenerateHooks hooks;
  hooks.token_bytes = [&](TokenId id) { return engine.tokenizer().bytes(id); };
  hooks.on_text = [&](std::string_view bytes) { write_stdout(utf8.push(bytes)); };
  hooks.on_prompt = [&](std::size_t done, std::size_t total) {
    if (options.quiet || !progress) return;
    progress->update(done, total);
    if (done == total) progress.reset();
  };
  hooks.on_warning = [](const std::string& message) { write_stderr("\ntandem: warning: " + message + "\n"); };
  hooks.cancelled = interrupted;
  GenerateResult result = generate(decoder, sampler, prompt, limits, hooks);
  write_stdout(utf8.flush() + "\n");
  return result;
}

void save_state(const RunOptions& options, const Engine& engine, const SequenceState& state, PipelineDecoder& decoder,
                const GenerateResult& result) {
  if (result.reason == EndReason::kCancelled && result.tokens.empty()) {
    write_stderr("tandem: note: stopped while reading the prompt, so no state was saved\n");
    return;
  }
  // The last token was sampled but not run yet; the file is to hold all that was generated.
  if (!result.tokens.empty() && !result.last_committed) decoder.append(std::span(result.tokens).last(1), {}, {});
  state.save(options.state_out, engine.model().fingerprint());
}

int run(const RunOptions& options, const OpsFactory& make_ops) {
  const std::string prompt = read_prompt(options);
  if (prompt.empty()) fail_input("run: expected a prompt, found an empty one");
  EngineOptions with_slots = options.engine;
  with_slots.remember_slots = true;
  Engine engine(with_slots, make_ops);
  for (const std::string& warning : engine.warnings()) write_stderr("tandem: warning: " + warning + "\n");
  const SamplingHints& hints =
      options.chat.thinking && !options.raw ? engine.model().sampling_thinking : engine.model().sampling_plain;
  Sampler sampler(resolve_sampling(options.sampling, hints, make_random_seed()));

  SequenceState state = engine.new_state();
  if (!options.state_in.empty()) state.restore(options.state_in, engine.model().fingerprint());
  const std::vector<TokenId> tokens = prompt_tokens(options, engine, state, prompt);
  check_fit(state.position(), tokens.size(), engine);

  std::optional<LogitsHash> hash;
  if (options.logits_hash) hash.emplace();
  SequenceDrafter drafter(engine.pipeline(), state, engine.drafting());
  PipelineDecoder decoder(engine.pipeline(), state, engine.prefill_chunk(), hash ? &*hash : nullptr, drafter.head());
  if (options.echo) write_stdout(prompt);
  catch_interrupts(InterruptMode::kOnce);
  const GenerateResult result = generate_to_stdout(options, engine, decoder, drafter.drafter(), sampler, tokens);

  if (!options.state_out.empty()) save_state(options, engine, state, decoder, result);
  if (!options.quiet && isatty(STDERR_FILENO) == 1) print_status(result, engine, state, sampler.settings());
  if (const std::uint64_t compared = engine.ops().experts_compared(); compared > 0 && !options.quiet)
    write_stderr(fmt::format("experts computed on both sides: {}, all equal\n", compared));
  if (hash) write_stdout(fmt::format("logits-hash: {}\n", hash->hex()));
  engine.close();
  return result.reason == EndReason::kCancelled ? 130 : 0;
}

}  // namespace

void add_run_command(CLI::App& app, const OpsFactory& make_ops, std::function<int()>& action) {
  CLI::App* command = app.add_subcommand("run", "Answer one prompt and exit");
  command->footer(
      "Examples:\n"
      "  tandem run model.gguf -p 'What is the capital of France?' --no-think\n"
      "  tandem run model.gguf --prompt-file question.txt --temperature 0 --max-tokens 200\n"
      "  tandem run model.gguf --raw -p 'Once upon a time' --seed 7 --logits-hash\n"
      "The text goes to standard output, thinking included; everything else goes to standard error.");
  const auto options = std::make_shared<RunOptions>();
  add_engine_flags(*command, options->engine);
  const auto set_prompt = [options](const std::string& text) { options->prompt = text; };
  CLI::Option* prompt = command->add_option_function<std::string>("-p,--prompt", set_prompt, "the prompt");
  prompt->type_name("TEXT");
  CLI::Option* file = command->add_option("--prompt-file", options->prompt_file,
                                          "file with the prompt, taken byte for byte; - for standard input");
  file->type_name("FILE")->excludes(prompt);
  add_length_flags(*command, options->max_tokens, options->stop_strings);
  add_chat_flags(*command, options->chat);
  CLI::Option* raw = command->add_flag(
      "--raw", options->raw, "no chat template; special tokens in the prompt are recognised as in template text");
  raw->excludes(command->get_option("--system"));
  command->add_flag("--echo", options->echo, "print the prompt before the text");
  command->add_flag("--quiet", options->quiet, "no status line and no progress (neither appears when piped)");
  command->add_flag("--logits-hash", options->logits_hash,
                    "last line \"logits-hash: HEX\": XXH3-128 over the float32 logits of every committed position");
  command->add_option("--state-in", options->state_in, "continue the sequence saved in FILE")->type_name("FILE");
  command->add_option("--state-out", options->state_out, "save the sequence to FILE at the end")->type_name("FILE");
  add_draft_flags(*command, options->engine.drafting);
  add_lossy_flags(*command, options->engine.lossy);
  add_sampling_flags(*command, options->sampling);
  command->callback(
      [options, &make_ops, &action] { action = [options, &make_ops] { return run(*options, make_ops); }; });
}

}  // namespace tandem
