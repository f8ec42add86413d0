#include "runtime/cmd_profile.h"

#include <CLI/CLI.hpp>
#include <chrono>
#include <nlohmann/json.hpp>

#include "placement/census_stats.h"
#include "placement/files.h"
#include "runtime/census_report.h"
#include "runtime/census_view.h"
#include "runtime/expert_report.h"
#include "runtime/interrupt.h"
#include "runtime/output.h"
#include "runtime/profile.h"
#include "runtime/profile_file.h"
#include "runtime/progress.h"
#include "runtime/session_options.h"

namespace tandem {
namespace {

constexpr std::chrono::seconds kSaveEvery{30};
constexpr std::size_t kWindow = 2048;

struct Options {
  EngineOptions engine;
  std::vector<std::string> texts, chats;
  std::string domain, output, trace, report;
  std::size_t window = 0, decode_tokens = 0;
  bool resume = false;
};

std::string domain_of(const Options& options, const std::string& path) {
  if (!options.domain.empty()) return options.domain;
  std::string name = std::filesystem::path(path).stem().string().substr(0, 64);
  for (char& c : name)
    if (!is_domain_name({&c, 1})) c = '-';
  return name.empty() ? "text" : name;
}

// A chat log: what /save wrote, {"messages": [...]} or [...] with role and content, or text with special tokens.
std::vector<TokenId> read_chat(const Engine& engine, const std::string& path) {
  const std::string bytes = read_file(path, "chat");
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(bytes, nullptr, false);
  if (json.is_object() && json.value("format", "") == "tandem-conversation") {
    const auto size = static_cast<TokenId>(engine.tokenizer().size());
    std::vector<TokenId> ids;
    for (const auto& id : json.value("tokens", nlohmann::ordered_json::array())) {
      if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() >= size)
        fail_input("--chat {}: expected token ids from 0 to {}, found {}. Fix: a conversation of this model", path,
                   size - 1, id.dump());
      ids.push_back(id.get<TokenId>());
    }
    return ids;
  }
  if (json.is_object() && json.contains("messages")) json = json["messages"];
  if (!json.is_array()) return engine.tokenizer().encode(bytes, true);
  std::vector<ChatMessage> messages;
  for (const auto& message : json) {
    if (!message.is_object() || !message.value("role", nlohmann::ordered_json()).is_string() ||
        !message.value("content", nlohmann::ordered_json()).is_string())
      fail_input("--chat {}: message {}: expected an object with role and content as text, found {}", path,
                 messages.size(), message.dump().substr(0, 60));
    messages.push_back({message["role"], message["content"], {}, {}});
  }
  ChatOptions chat;
  chat.add_generation_prompt = false;
  return engine.chat_template().encode(engine.tokenizer(), messages, chat);
}

std::vector<ProfileText> read_texts(const Engine& engine, const Options& options) {
  std::vector<ProfileText> texts;
  for (const std::string& path : options.texts)
    texts.push_back({domain_of(options, path), engine.tokenizer().encode(read_file(path, "text"), false)});
  for (const std::string& path : options.chats) texts.push_back({domain_of(options, path), read_chat(engine, path)});
  std::erase_if(texts, [](const ProfileText& text) { return text.tokens.empty(); });
  if (texts.empty()) fail_input("profile: expected at least one token in --text or --chat, found none");
  return texts;
}

// The run so far, in memory and in its files.
class ProfileRun {
 public:
  ProfileRun(const Options& options, const TraceHeader& header, std::string id)
      : options_(options), path_(profile_state_path(options.output)) {
    const bool there = std::filesystem::exists(path_);
    if (options.resume && !there)
      fail_input("--resume: expected {}, found none. Fix: start without --resume", path_.string());
    if (there && !options.resume)
      fail_input("{}: expected no unfinished profile of that name, found one. Fix: --resume, or remove the file",
                 path_.string());
    state_.run = std::move(id);
    state_.census = {header.model, header.fingerprint, header.banks, header.experts, header.used, {}};
    if (options.resume) {
      ProfileState found = load_profile_state(path_);
      if (found.run != state_.run)
        fail_input(
            "--resume: expected a run with {}; found {} in {}. Fix: the same files and flags, or remove that file",
            state_.run, found.run, path_.string());
      state_ = std::move(found);
    }
    if (!options.trace.empty()) open_trace(header);
  }

  std::size_t windows() const { return state_.windows; }
  const Census& census() const { return state_.census; }
  void take(RouteRecorder& recorder, std::size_t window) {
    recorder.take_into(state_.census, trace_ ? &*trace_ : nullptr);
    state_.windows = window + 1;
    state_.trace_rounds = trace_ ? trace_->rounds() : 0;
    const auto now = std::chrono::steady_clock::now();
    if (now - saved_ < kSaveEvery) return;
    save_profile_state(path_, state_);
    saved_ = now;
  }
  void finish(bool whole) {
    if (trace_) trace_->finish();
    save_census(state_.census, options_.output);
    if (whole)
      std::filesystem::remove(path_);
    else
      save_profile_state(path_, state_);
  }

 private:
  // The trace of an interrupted run is read and written again, up to where the counts go.
  void open_trace(const TraceHeader& header) {
    std::vector<TraceRound> rounds;
    if (state_.windows > 0) {
      TraceReader reader(options_.trace);
      TraceRound round;
      while (reader.next(round)) rounds.push_back(round);
      if (reader.header() != header || rounds.size() != state_.trace_rounds)
        fail_input(
            "--trace {}: expected the trace of the interrupted run ({} rounds), found another ({} rounds). Fix: "
            "leave --trace out, or start again without --resume",
            options_.trace, state_.trace_rounds, rounds.size());
    }
    trace_.emplace(options_.trace, header);
    for (const TraceRound& round : rounds) trace_->add(round);
  }

  const Options& options_;
  std::filesystem::path path_;
  ProfileState state_;
  std::optional<TraceWriter> trace_;
  std::chrono::steady_clock::time_point saved_ = std::chrono::steady_clock::now();
};

ProfileOptions window_options(const Options& options, const Engine& engine) {
  ProfileOptions result;
  result.chunk = engine.prefill_chunk();
  result.decode_tokens = options.decode_tokens;
  const std::size_t context = engine.context();
  if (options.decode_tokens >= context)
    fail_input("--decode-tokens: expected less than the context of {}, found {}. Fix: --context", context,
               options.decode_tokens);
  result.window = options.window == 0 ? std::min(kWindow, context - options.decode_tokens) : options.window;
  if (result.window + options.decode_tokens > context)
    fail_input("--window: a window of {} and {} decode tokens do not fit the context of {}. Fix: --context {}",
               result.window, options.decode_tokens, context, result.window + options.decode_tokens);
  return result;
}

TraceHeader header_of(const Engine& engine, const Options& options) {
  const ModelShape& shape = engine.model().shape;
  return {options.engine.model.stem().string(), engine.model().fingerprint(),
          static_cast<int>(shape.layers) + (engine.model().mtp ? 1 : 0), static_cast<int>(shape.experts),
          static_cast<int>(shape.experts_used)};
}

void check_flags(const Options& options) {
  if (options.texts.empty() && options.chats.empty()) fail_input("profile: expected --text FILE or --chat LOG");
  if (!options.domain.empty() && !is_domain_name(options.domain))
    fail_input("--domain: expected 1 to 64 letters, digits and . _ -, found \"{}\"", options.domain);
}

int run_profile(const Options& options, const OpsFactory& make_ops) {
  check_flags(options);
  Engine engine(options.engine, make_ops);
  for (const std::string& warning : engine.warnings()) write_stderr("tandem: warning: " + warning + "\n");
  const std::vector<ProfileText> texts = read_texts(engine, options);
  const ProfileOptions windows = window_options(options, engine);
  std::optional<MtpHead> draft;
  if (engine.model().mtp) draft.emplace(engine.pipeline(), MtpNorm::kFull, MtpAttention::kSparse);
  catch_interrupts(InterruptMode::kOnce);
  ProfileRun run(options, header_of(engine, options),
                 profile_run_id(engine.model().fingerprint(), texts, windows, draft.has_value()));

  RouteRecorder recorder;
  engine.pipeline().set_route_observer(&recorder);
  Progress progress("counting", "tokens");
  ProfileHooks hooks;
  hooks.is_stop = [&](TokenId token) { return engine.tokenizer().is_stop(token); };
  hooks.cancelled = interrupted;
  bool first = true;
  hooks.progress = [&](std::size_t done, std::size_t total) {
    if (std::exchange(first, false)) progress.start_at(done - 1);
    progress.update(done, total);
  };
  hooks.on_window = [&](std::size_t window) { run.take(recorder, window); };
  SequenceState state = engine.new_state();
  const bool whole =
      profile(engine.pipeline(), state, draft ? &*draft : nullptr, texts, windows, run.windows(), recorder, hooks);
  engine.pipeline().set_route_observer(nullptr);
  progress.clear();
  run.finish(whole);
  if (!options.report.empty()) write_file(options.report, census_report(run.census(), options.output));
  engine.close();
  if (whole) {
    write_stdout(census_summary(run.census()));
    if (engine.experts() != nullptr && engine.experts()->has_card())
      for (const ReportLine& line :
           expert_report(*engine.experts(), engine.experts()->stats(), engine.ops().fetching()))
        write_stdout(fmt::format("{}: {}\n", line.label, line.text));
    return 0;
  }
  write_stderr(
      fmt::format("stopped after {} of {} windows; {} has their counts, the same command with --resume goes on\n",
                  run.windows(), profile_windows(texts, windows), options.output));
  return 130;
}

}  // namespace

void add_profile_command(CLI::App& app, const OpsFactory& make_ops, std::function<int()>& action) {
  CLI::App* command = app.add_subcommand("profile", "Count which experts a text uses: a census, and a trace to replay");
  command->footer(
      "Examples:\n"
      "  tandem profile model.gguf --text code.txt prose.txt -o my.census.csv\n"
      "  tandem profile model.gguf --chat talk.json --domain chat --decode-tokens 128 -o chat.census.csv\n"
      "  tandem profile model.gguf --text code.txt -o code.census.csv --trace code.trace --report code.html\n"
      "Ctrl-C keeps the counts of all finished windows; --resume goes on from there.");
  const auto options = std::make_shared<Options>();
  add_engine_flags(*command, options->engine);
  command->add_option("--text", options->texts, "texts to run")->type_name("FILE...")->expected(1, -1);
  command
      ->add_option("--chat", options->chats,
                   "chat logs to run: what /save wrote, JSON messages, or text with special tokens")
      ->type_name("LOG...")
      ->expected(1, -1);
  command->add_option("--domain", options->domain, "what the texts are (default: each file's name)")->type_name("NAME");
  command->add_option("-o,--output", options->output, "the census to write")->type_name("X.census.csv")->required();
  command->add_option("--trace", options->trace, "write every route as well, for `tandem replay`")
      ->type_name("X.trace");
  command->add_option("--report", options->report, "write a page with heat map and curves")->type_name("OUT.html");
  command
      ->add_option("--window", options->window,
                   "tokens run from an empty state (default 2048, or what the context holds)")
      ->type_name("N")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 24).description(""));
  command
      ->add_option("--decode-tokens", options->decode_tokens, "greedy tokens generated after every window (default 0)")
      ->type_name("N");
  command->add_flag("--resume", options->resume, "go on with an interrupted run");
  command->callback(
      [options, &make_ops, &action] { action = [options, &make_ops] { return run_profile(*options, make_ops); }; });
}

}  // namespace tandem
