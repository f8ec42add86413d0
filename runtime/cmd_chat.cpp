#include "runtime/cmd_chat.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "placement/check.h"
#include "runtime/chat_commands.h"
#include "runtime/chat_input.h"
#include "runtime/chat_screen.h"
#include "runtime/chat_session.h"
#include "runtime/draft_report.h"
#include "runtime/environment.h"
#include "runtime/expert_report.h"
#include "runtime/interrupt.h"
#include "runtime/lossy.h"
#include "runtime/progress.h"
#include "runtime/session_options.h"

namespace tandem {
namespace {

struct ChatFlags {
  EngineOptions engine;
  ChatSettings settings;
  bool no_history = false;
};

// The chat from the first prompt to the last: reads lines, runs commands, prints answers.
class Chat {
 public:
  Chat(Engine& engine, ChatSettings settings, ChatInput& input, bool interactive)
      : engine_(engine),
        session_(engine, std::move(settings)),
        screen_(interactive),
        commands_(session_, screen_, engine),
        input_(input) {}

  void greet(const Engine& engine) {
    if (!screen_.interactive()) return;
    const std::string file = std::filesystem::path(engine.model().gguf().name()).filename().string();
    screen_.note(fmt::format("{}, context {}, thinking {}; /help lists the commands, Ctrl-D leaves", file,
                             session_.context(), session_.settings().chat.thinking ? "on" : "off"));
    std::string machine = engine.ops().describe();
    if (ExpertStore* experts = engine.experts(); experts != nullptr && experts->has_card())
      machine += fmt::format("; {} of {} experts on the card, {:.0f} % hits expected",
                             experts->slots() + engine.plan().plan.lent.size(),
                             engine.plan().plan.placement.place.size(), 100 * engine.plan().plan.hit_rate);
    screen_.note(machine);
  }
  void warn(const std::string& warning) { screen_.note("warning: " + warning); }

  void run() {
    for (;;) {
      const ChatLine line = screen_.interactive() ? read_message(input_, "> ", ". ") : input_.read_line({});
      if (line.kind == ChatLine::Kind::kEnd) return;
      if (line.kind == ChatLine::Kind::kInterrupted) {
        if (line.text.empty()) screen_.note("Ctrl-D or /quit leaves the chat");
        continue;
      }
      if (line.text.find_first_not_of(" \t\r\n") == std::string::npos) continue;
      input_.remember(line.text);
      if (!handle(line.text)) return;
    }
  }

 private:
  // One message or command. Returns false when the chat ends.
  bool handle(const std::string& text) {
    try {
      if (!text.starts_with('/')) {
        respond(text);
        return true;
      }
      if (text.starts_with("//")) {
        respond(text.substr(1));
        return true;
      }
      const ChatCommands::Next next = commands_.run(text);
      if (next == ChatCommands::Next::kRetry) respond(std::nullopt);
      return next != ChatCommands::Next::kQuit;
    } catch (const InputError& error) {
      screen_.error(error.what());
      return true;
    }
  }

  // Answers `message`, or the last message once more.
  void respond(const std::optional<std::string>& message) {
    clear_interrupt();
    const QuietKeys quiet(screen_.interactive());
    std::optional<Progress> progress;
    AnswerHooks hooks;
    hooks.on_thinking = [&](std::string_view text, std::size_t tokens, double seconds) {
      screen_.thinking(text, tokens, seconds);
    };
    hooks.on_answer = [&](std::string_view text) { screen_.answer(text); };
    hooks.on_note = [&](const std::string& note) { screen_.note(note); };
    hooks.cancelled = interrupted;
    hooks.on_prompt = [&](std::size_t done, std::size_t total) {
      if (!screen_.interactive()) return;
      if (!progress) progress.emplace("reading", "tokens");
      progress->update(done, total);
      if (done == total) progress.reset();
    };
    screen_.begin_answer(session_.settings().view);
    AnswerReport report;
    try {
      report = message ? session_.ask(*message, hooks) : session_.retry(hooks);
    } catch (const InputError&) {
      progress.reset();
      screen_.end_answer();
      throw;
    }
    progress.reset();
    screen_.end_answer();
    clear_interrupt();
    commands_.count(report);
    if (screen_.interactive()) close(report);
    warn_when_nearly_full();
  }

  // The status line, and why the answer ended if not by itself.
  void close(const AnswerReport& report) {
    if (report.withdrawn) {
      screen_.note("stopped before the answer began; the message was taken back");
      return;
    }
    std::string line = fmt::format("{} tokens", report.answer_tokens);
    if (report.decode_rate > 0.0) line += fmt::format(", {:.1f} tok/s", report.decode_rate);
    const std::string drafts = draft_status(report.drafts);
    if (!drafts.empty()) line += ", " + drafts;
    line += fmt::format(" | prompt {} tokens", report.prompt_tokens);
    if (report.prompt_rate > 0.0) line += fmt::format(", {:.1f} tok/s", report.prompt_rate);
    line += fmt::format(" | context {}/{}", session_.used(), session_.context());
    if (ExpertStore* experts = engine_.experts()) {
      const std::string status = expert_status(experts->stats() - counted_);
      if (!status.empty()) line += " | " + status;
      counted_ = experts->stats();
    }
    const std::string lossy =
        lossy_status(engine_.lossy(), report.drafts.kept_though_rejected, engine_.skipped() - skipped_);
    if (!lossy.empty()) line += " | " + lossy;
    skipped_ = engine_.skipped();
    switch (report.reason) {
      case EndReason::kStopToken:
        break;
      case EndReason::kStopString:
        line += " | ended by a stop string";
        break;
      case EndReason::kMaxTokens:
        line += " | ended by max-tokens";
        break;
      case EndReason::kContext:
        line += " | ended: the context is full";
        break;
      case EndReason::kCancelled:
        line += " | stopped";
        break;
    }
    screen_.note(line);
  }

  void warn_when_nearly_full() {
    if (!session_.nearly_full()) {
      warned_full_ = false;
      return;
    }
    if (std::exchange(warned_full_, true)) return;
    const bool trims = session_.settings().overflow == Overflow::kTrim;
    screen_.note(fmt::format(
        "warning: {} of {} tokens of the context are used; when it is full, {}. /new starts afresh", session_.used(),
        session_.context(), trims ? "the oldest turns are dropped" : "messages are refused"));
  }

  const Engine& engine_;
  ExpertStats counted_;  // up to the last answer
  TailSkip::Counts skipped_;
  ChatSession session_;
  ChatScreen screen_;
  ChatCommands commands_;
  ChatInput& input_;
  bool warned_full_ = false;
};

int chat(const ChatFlags& flags, const OpsFactory& make_ops) {
  // Editing needs a terminal on both sides; anything else is a pipe.
  const bool interactive = isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
  ChatSettings settings = flags.settings;
  if (std::exchange(settings.sampling.greedy, false)) settings.sampling.temperature = 0.0F;
  settings.random_seed = make_random_seed();
  resolve_sampling(settings.sampling, SamplingHints{1.0F, 1.0F, 0.0F, 0.0F, 0, {}}, 0);  // refuse bad flags at once

  EngineOptions with_slots = flags.engine;
  with_slots.remember_slots = true;
  Engine engine(with_slots, make_ops);
  const std::filesystem::path folder = user_state_folder();
  const bool keep_history = !flags.no_history && !folder.empty();
  if (interactive) catch_interrupts(InterruptMode::kEvery);
  const std::unique_ptr<ChatInput> input =
      interactive ? make_terminal_input(keep_history ? folder / "history" : std::filesystem::path{})
                  : make_pipe_input();
  Chat chat(engine, settings, *input, interactive);
  for (const std::string& warning : engine.warnings()) chat.warn(warning);
  chat.greet(engine);
  chat.run();
  engine.close();
  return 0;
}

}  // namespace

void add_chat_command(CLI::App& app, const OpsFactory& make_ops, std::function<int()>& action) {
  CLI::App* command = app.add_subcommand("chat", "Talk with the model");
  command->footer(
      "Examples:\n"
      "  tandem chat model.gguf\n"
      "  tandem chat model.gguf --no-think --system 'Answer in one sentence.'\n"
      "  printf 'What is 27 + 45?\\nAnd 45 + 12?\\n' | tandem chat model.gguf --greedy\n"
      "In the chat, /help lists the commands. From a pipe every line is one message (blank lines are skipped, lines "
      "that\n"
      "begin with / are commands) and only answers go to standard output.");
  const auto flags = std::make_shared<ChatFlags>();
  add_engine_flags(*command, flags->engine);
  add_chat_flags(*command, flags->settings.chat);
  add_length_flags(*command, flags->settings.max_tokens, flags->settings.stop_strings);
  add_words(*command, "--thinking", {"show", "fold", "hide"},
            "show, fold or hide: how thinking is displayed (default show)", "HOW",
            [flags](std::size_t word) { flags->settings.view = static_cast<ThinkingView>(word); });
  add_words(*command, "--overflow", {"trim", "stop"},
            "trim or stop: drop the oldest turns when the context is full, or refuse (default trim)", "HOW",
            [flags](std::size_t word) { flags->settings.overflow = static_cast<Overflow>(word); });
  command->add_flag("--no-history", flags->no_history, "neither read nor write the history file of earlier messages");
  add_draft_flags(*command, flags->engine.drafting);
  add_lossy_flags(*command, flags->engine.lossy);
  add_sampling_flags(*command, flags->settings.sampling);
  command->callback([flags, &make_ops, &action] { action = [flags, &make_ops] { return chat(*flags, make_ops); }; });
}

}  // namespace tandem
