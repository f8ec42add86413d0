#include "runtime/chat_commands.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "placement/check.h"
#include "placement/suggest.h"
#include "runtime/chat_store.h"
#include "runtime/draft_report.h"
#include "runtime/expert_report.h"
#include "runtime/lossy.h"

namespace tandem {
namespace {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

// The first word and the rest, both trimmed.
std::pair<std::string, std::string> split_word(std::string_view text) {
  text = trimmed(text);
  const std::size_t end = std::min(text.find_first_of(" \t\n"), text.size());
  return {std::string(text.substr(0, end)), std::string(trimmed(text.substr(end)))};
}

// One line of a message, short enough for a note.
std::string excerpt(const std::string& text) {
  constexpr std::size_t kMost = 60;
  std::string line = text.substr(0, text.find('\n'));
  if (line.size() > kMost) {
    std::size_t end = kMost;
    while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xC0U) == 0x80) --end;
    line.resize(end);
  }
  return line.size() < text.size() ? line + "..." : line;
}

const char* plural(std::size_t n) {
  return n == 1 ? "" : "s";
}

}  // namespace

struct ChatCommands::Command {
  std::string name, arguments, help;
  Next (ChatCommands::*run)(const std::string&);
  bool takes_arguments;
};

const std::vector<ChatCommands::Command>& ChatCommands::table() {
  using C = ChatCommands;
  static const std::vector<Command> rows{
      {"help", "[COMMAND]", "list the commands, or explain one", &C::help, true},
      {"new", "", "forget the conversation; settings and system message stay", &C::start_anew, false},
      {"system", "[TEXT|none]", "show, change or remove the system message", &C::system, true},
      {"undo", "", "take back the last message and its answer", &C::undo, false},
      {"retry", "", "answer the last message once more", &C::retry, false},
      {"set", "[KEY [VALUE|default]]", "show or change settings", &C::set, true},
      {"think", "[on|off|show|fold|hide|last]",
       "on, off: whether the model thinks first; show, fold, hide: how thinking is displayed; last: print the thinking "
       "of the last answer",
       &C::think, true},
      {"stats", "", "model, machine, speed, context", &C::stats, false},
      {"plan", "", "where every byte of the model is", &C::plan, false},
      {"save", "NAME", "write the conversation and its state to a file (NAME with a slash is a path)", &C::save, true},
      {"load", "[NAME]", "go on with a saved conversation, or list them", &C::load, true},
      {"quit", "", "leave (so does Ctrl-D)", &C::quit, false},
  };
  return rows;
}

ChatCommands::ChatCommands(ChatSession& session, ChatScreen& screen, const Engine& engine)
    : session_(session), screen_(screen), engine_(engine) {}

const ChatCommands::Command& ChatCommands::find(std::string_view name) {
  const std::string_view wanted = name == "exit" ? "quit" : name;
  std::vector<std::string> names;
  for (const Command& command : table()) {
    if (command.name == wanted) return command;
    names.push_back(command.name);
  }
  const std::string near = nearest_name(name, names);
  fail_input("unknown command /{}{}", name,
             near.empty() ? "; /help lists them (// sends a message that begins with /)"
                          : fmt::format("; did you mean /{}?", near));
}

ChatCommands::Next ChatCommands::run(std::string_view line) {
  CHECK(line.starts_with('/'));
  const auto [name, arguments] = split_word(line.substr(1));
  const Command& command = find(name);
  if (!command.takes_arguments && !arguments.empty()) {
    fail_input("/{} takes no argument, found \"{}\"", command.name, arguments);
  }
  return (this->*command.run)(arguments);
}

void ChatCommands::count(const AnswerReport& report) {
  ++answers_;
  prompt_tokens_ += report.prompt_tokens;
  answer_tokens_ += report.answer_tokens;
  prompt_seconds_ += report.prompt_seconds;
  decode_seconds_ += report.decode_seconds;
  drafts_ += report.drafts;
}

ChatCommands::Next ChatCommands::help(const std::string& arguments) {
  if (!arguments.empty()) {
    const Command& command = find(arguments.starts_with('/') ? arguments.substr(1) : arguments);
    screen_.line(fmt::format("/{} {}\n  {}", command.name, command.arguments, command.help));
    if (command.name == "set") {
      for (const std::string& name : setting_names())
        screen_.line(fmt::format("    {:<20} {}", name, setting_help(name)));
    }
    return Next::kGoOn;
  }
  for (const Command& command : table()) {
    // The long explanations are for /help COMMAND.
    const std::string help = command.help.substr(0, command.help.find(';'));
    screen_.line(fmt::format("  {:<36} {}", "/" + command.name + " " + command.arguments, help));
  }
  screen_.line(
      "Keys: Ctrl-C stops an answer or clears the line, Ctrl-D leaves, Up and Ctrl-R search earlier messages.\n"
      "Several lines: paste them, end a line with \\, press Alt-Enter, or put \"\"\" before and after.\n"
      "A message that begins with a slash: write two, //like this.");
  return Next::kGoOn;
}

ChatCommands::Next ChatCommands::start_anew(const std::string&) {
  session_.clear();
  screen_.note("a new conversation");
  return Next::kGoOn;
}

ChatCommands::Next ChatCommands::system(const std::string& arguments) {
  std::string& system = session_.settings().chat.system;
  if (arguments.empty()) {
    screen_.line(system.empty() ? "no system message; /system TEXT sets one" : system);
    return Next::kGoOn;
  }
  system = arguments == "none" ? "" : arguments;
  if (session_.turns().empty()) session_.clear();
  screen_.note(fmt::format("{}{}", system.empty() ? "no system message" : "system message set",
                           session_.turns().empty() ? "" : "; it counts from the next message on"));
  return Next::kGoOn;
}

ChatCommands::Next ChatCommands::undo(const std::string&) {
  if (session_.turns().empty()) fail_input("/undo: there is nothing to take back");
  const std::string message = session_.turns().back().user;
  session_.undo();
  const std::size_t left = session_.turns().size();
  screen_.note(fmt::format("took back \"{}\"; {} turn{} left", excerpt(message), left, plural(left)));
  return Next::kGoOn;
}

ChatCommands::Next ChatCommands::retry(const std::string&) {
  if (session_.turns().empty()) fail_input("/retry: there is no message to answer again");
  return Next::kRetry;
}

ChatCommands::Next ChatCommands::set(const std::string& arguments) {
  const auto [key, value] = split_word(arguments);
  ChatSettings& settings = session_.settings();
  if (!value.empty()) change_setting(settings, key, value);
  for (const std::string& name : setting_names()) {
    if (!key.empty() && name != key) continue;
    const std::string shown = show_setting(settings, name, session_.hints());
    const bool chosen = setting_is_chosen(settings, name);
    screen_.line(fmt::format("  {:<20} {:<10} {}", name, shown, chosen ? "" : "(default)"));
  }
  if (!key.empty() && value.empty()) screen_.line(fmt::format("  {}", setting_help(key)));
  return Next::kGoOn;
}

ChatCommands::Next ChatCommands::think(const std::string& arguments) {
  ChatSettings& settings = session_.settings();
  if (arguments == "last") {
    if (session_.turns().empty() || session_.turns().back().thinking.empty()) {
      fail_input("/think last: the last answer has no thinking");
    }
    screen_.line(ChatScreen::harmless(session_.turns().back().thinking));
    return Next::kGoOn;
  }
  if (arguments == "on" || arguments == "off") {
    settings.chat.thinking = arguments == "on";
  } else if (!arguments.empty()) {
    const std::vector<std::string> words{"on", "off", "show", "fold", "hide", "last"};
    if (std::find(words.begin(), words.end(), arguments) == words.end()) {
      const std::string near = nearest_name(arguments, words);
      fail_input("/think: expected one of {}, found \"{}\"{}", fmt::join(words, ", "), arguments,
                 near.empty() ? "" : fmt::format("; did you mean {}?", near));
    }
    change_setting(settings, "thinking", arguments);
  }
  screen_.note(fmt::format("thinking is {}, display: {}", settings.chat.thinking ? "on" : "off",
                           show_setting(settings, "thinking", session_.hints())));
  return Next::kGoOn;
}

ChatCommands::Next ChatCommands::plan(const std::string&) {
  std::istringstream lines(plan_text(engine_.plan()));
  for (std::string line; std::getline(lines, line);) screen_.line(line.empty() ? line : "  " + line);
  return Next::kGoOn;
}

ChatCommands::Next ChatCommands::stats(const std::string&) {
  const std::size_t used = session_.used();
  const auto rate = [](std::size_t tokens, double seconds) {
    return seconds > 0.0 ? static_cast<double>(tokens) / seconds : 0.0;
  };
  const double share = 100.0 * static_cast<double>(used) / static_cast<double>(session_.context());
  const std::size_t turns = session_.turns().size();
  screen_.line(
      fmt::format("  model       {} (template {})", engine_.model().gguf().name(), engine_.chat_template().variant()));
  screen_.line(fmt::format("  machine     {}", engine_.ops().describe()));
  screen_.line(fmt::format("  context     {} of {} tokens ({:.0f} %), {} turn{}, keys and values in {}", used,
                           session_.context(), share, turns, plural(turns),
                           engine_.kv() == KvType::kF16 ? "f16" : "f32"));
  screen_.line(fmt::format("  answers     {}: {} tokens, {:.1f} tok/s; prompts {} tokens, {:.1f} tok/s", answers_,
                           answer_tokens_, rate(answer_tokens_, decode_seconds_), prompt_tokens_,
                           rate(prompt_tokens_, prompt_seconds_)));
  if (const std::string vocabulary = describe(engine_.draft_vocabulary()); !vocabulary.empty())
    screen_.line(fmt::format("  {:<11} the draft head chooses among {}", "vocabulary", vocabulary));
  for (const ReportLine& line : draft_report(drafts_)) screen_.line(fmt::format("  {:<11} {}", line.label, line.text));
  if (ExpertStore* experts = engine_.experts())
    for (const ReportLine& line : expert_report(*experts, experts->stats(), engine_.ops().fetching()))
      screen_.line(fmt::format("  {:<11} {}", line.label, line.text));
  if (engine_.lossy().any())
    screen_.line(fmt::format("  {:<11} {}", "not exact",
                             lossy_status(engine_.lossy(), drafts_.kept_though_rejected, engine_.skipped())));
  screen_.line(fmt::format("  going back  {} checkpoint{} of {:.1f} MB, {} tokens in the state", session_.checkpoints(),
                           plural(session_.checkpoints()), static_cast<double>(session_.checkpoint_bytes()) / 1e6,
                           session_.cached()));
  return Next::kGoOn;
}

ChatCommands::Next ChatCommands::save(const std::string& arguments) {
  if (arguments.empty()) fail_input("/save: expected a name, as in /save holiday, or a path, as in /save ./holiday");
  const std::filesystem::path path = conversation_path(arguments);
  session_.save(path);
  const std::size_t turns = session_.turns().size();
  screen_.note(fmt::format("saved {} turn{} to {}", turns, plural(turns), path.string()));
  return Next::kGoOn;
}

ChatCommands::Next ChatCommands::load(const std::string& arguments) {
  if (arguments.empty()) {
    const std::vector<std::string> names = saved_conversations();
    screen_.line(names.empty() ? "no saved conversations; /save NAME makes one"
                               : fmt::format("saved conversations: {}", fmt::join(names, ", ")));
    return Next::kGoOn;
  }
  const std::filesystem::path path = conversation_path(arguments);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    const std::string near = nearest_name(arguments, saved_conversations());
    fail_input("/load: {} does not exist{}", path.string(),
               near.empty() ? "; /load lists the saved ones" : fmt::format("; did you mean {}?", near));
  }
  const std::string note = session_.load(path);
  if (!note.empty()) screen_.note(note);
  const std::size_t turns = session_.turns().size();
  screen_.note(fmt::format("loaded {} turn{}, {} tokens, and the settings that it was saved with (/set shows them)",
                           turns, plural(turns), session_.tokens().size()));
  if (turns > 0) screen_.line(fmt::format("last message: {}", excerpt(session_.turns().back().user)));
  return Next::kGoOn;
}

ChatCommands::Next ChatCommands::quit(const std::string&) {
  return Next::kQuit;
}

}  // namespace tandem
