#include "runtime/chat_session.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "placement/check.h"
#include "runtime/think_splitter.h"
#include "runtime/utf8.h"

namespace tandem {
namespace {

constexpr std::string_view kTurnEnd = "<|im_end|>";

std::size_t common_prefix(std::span<const TokenId> a, std::span<const TokenId> b) {
  const std::size_t n = std::min(a.size(), b.size());
  return static_cast<std::size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(n), b.begin()).first - a.begin());
}

// What a retry adds to the seed, so that its noise has nothing to do with that of the first try.
constexpr std::uint64_t kRetryStep = 0x9E3779B97F4A7C15U;

}  // namespace

// Splits what is generated into thinking and answer, as whole characters, keeps both and tells the hooks.
class ChatSession::AnswerStream {
 public:
  AnswerStream(bool with_thinking, const AnswerHooks& hooks) : hooks_(hooks), splitter_(with_thinking) {}

  void text(std::string_view bytes) { show(splitter_.push(utf8_.push(bytes))); }
  void token() {
    if (!splitter_.in_thinking()) return;
    ++thinking_tokens_;
    thinking_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    if (hooks_.on_thinking) hooks_.on_thinking({}, thinking_tokens_, thinking_seconds_);
  }
  void finish() {
    show(splitter_.push(utf8_.flush()));
    show(splitter_.flush());
  }
  const ThinkSplitter::Parts& all() const { return all_; }
  bool thinking_open() const { return splitter_.in_thinking(); }
  std::size_t thinking_tokens() const { return thinking_tokens_; }
  double thinking_seconds() const { return thinking_seconds_; }
  void start_clock() { start_ = std::chrono::steady_clock::now(); }

 private:
  void show(const ThinkSplitter::Parts& parts) {
    all_.thinking += parts.thinking;
    all_.answer += parts.answer;
    if (hooks_.on_thinking && !parts.thinking.empty())
      hooks_.on_thinking(parts.thinking, thinking_tokens_, thinking_seconds_);
    if (hooks_.on_answer && !parts.answer.empty()) hooks_.on_answer(parts.answer);
  }

  const AnswerHooks& hooks_;
  ThinkSplitter splitter_;
  ThinkSplitter::Parts all_;
  Utf8Stream utf8_;
  std::size_t thinking_tokens_ = 0;
  double thinking_seconds_ = 0.0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

ChatSession::ChatSession(Engine& engine, ChatSettings settings)
    : engine_(engine),
      settings_(std::move(settings)),
      state_(engine.new_state()),
      drafter_(engine.pipeline(), state_, engine.drafting()),
      decoder_(engine.pipeline(), state_, engine.prefill_chunk(), nullptr, drafter_.head()) {
  tokens_ = system_prefix();
  prefix_ = tokens_.size();
}

const SamplingHints& ChatSession::hints() const {
  return settings_.chat.thinking ? engine_.model().sampling_thinking : engine_.model().sampling_plain;
}

bool ChatSession::nearly_full() const {
  return static_cast<double>(tokens_.size()) >= kFullWarning * static_cast<double>(context());
}

// ---- from messages to tokens ----

ChatOptions ChatSession::template_options(bool thinking) const {
  ChatOptions options;
  options.thinking = thinking;
  options.reasoning_effort = settings_.chat.effort;
  return options;
}

std::vector<TokenId> ChatSession::template_tokens(std::string_view text) const {
  return engine_.tokenizer().encode(text, true);
}

// A user's turn and the opening of the answer: <|im_start|>user ... <|im_start|>assistant\n<think>\n.
std::vector<TokenId> ChatSession::turn_prompt(const std::string& message, bool thinking) const {
  const ChatMessage user{"user", message, {}, {}};
  std::vector<TokenId> tokens = ChatTemplate::encode(
      engine_.tokenizer(), engine_.chat_template().render_continuation({user}, template_options(thinking), true));
  // The continuation begins with the line feed that ends the turn before, which is already there (close_answer).
  const std::vector<TokenId> line_feed = template_tokens("\n");
  CHECK(common_prefix(tokens, line_feed) == line_feed.size());
  tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(line_feed.size()));
  return tokens;
}

// What stands before the first turn: the system message and what the template adds to it.
std::vector<TokenId> ChatSession::system_prefix() const {
  const std::string any = "x";
  std::vector<ChatMessage> messages;
  if (!settings_.chat.system.empty()) messages.push_back({"system", settings_.chat.system, {}, {}});
  messages.push_back({"user", any, {}, {}});
  const bool thinking = settings_.chat.thinking;
  std::vector<TokenId> tokens =
      engine_.chat_template().encode(engine_.tokenizer(), messages, template_options(thinking));
  const std::vector<TokenId> turn = turn_prompt(any, thinking);
  CHECK(tokens.size() >= turn.size() && std::equal(turn.rbegin(), turn.rend(), tokens.rbegin()));
  tokens.resize(tokens.size() - turn.size());
  return tokens;
}

// The tokens of a conversation that was written down as text only (another model's file); sets first_token.
std::vector<TokenId> ChatSession::rebuild_tokens(std::vector<ChatTurn>& turns) const {
  std::vector<TokenId> tokens = system_prefix();
  const auto append = [&](const std::vector<TokenId>& more) { tokens.insert(tokens.end(), more.begin(), more.end()); };
  for (ChatTurn& turn : turns) {
    turn.first_token = tokens.size();
    append(turn_prompt(turn.user, turn.with_thinking));
    std::vector<TemplatePiece> pieces;
    if (turn.with_thinking) pieces = {{turn.thinking, false}, {"\n</think>\n\n", true}};
    pieces.push_back({turn.answer, false});
    pieces.push_back({std::string(kTurnEnd) + "\n", true});
    append(ChatTemplate::encode(engine_.tokenizer(), pieces));
  }
  return tokens;
}

// ---- room ----

// Thinking, effort or the system message may have changed what stands before the first turn.
void ChatSession::use_settings(const AnswerHooks& hooks) {
  const std::vector<TokenId> prefix = system_prefix();
  if (std::equal(prefix.begin(), prefix.end(), tokens_.begin(),
                 tokens_.begin() + static_cast<std::ptrdiff_t>(prefix_))) {
    return;
  }
  if (!turns_.empty() && hooks.on_note) {
    hooks.on_note(fmt::format("the system message changed; the conversation is read again ({} tokens)",
                              tokens_.size() - prefix_ + prefix.size()));
  }
  tokens_.erase(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(prefix_));
  tokens_.insert(tokens_.begin(), prefix.begin(), prefix.end());
  for (ChatTurn& turn : turns_) turn.first_token = turn.first_token - prefix_ + prefix.size();
  prefix_ = prefix.size();
}

void ChatSession::forget_oldest(std::size_t turns, const AnswerHooks& hooks) {
  CHECK(turns > 0 && turns <= turns_.size());
  const std::size_t end = turns == turns_.size() ? tokens_.size() : turns_[turns].first_token;
  const std::size_t gone = end - prefix_;
  tokens_.erase(tokens_.begin() + static_cast<std::ptrdiff_t>(prefix_),
                tokens_.begin() + static_cast<std::ptrdiff_t>(end));
  turns_.erase(turns_.begin(), turns_.begin() + static_cast<std::ptrdiff_t>(turns));
  for (ChatTurn& turn : turns_) turn.first_token -= gone;
  if (hooks.on_note) {
    hooks.on_note(
        fmt::format("the context of {} tokens is full: dropped the oldest {} ({} tokens); the rest is read "
                    "again (/set overflow stop refuses instead)",
                    context(), turns == 1 ? "turn" : fmt::format("{} turns", turns), gone));
  }
}

// How many of the oldest turns must go, of at most `most`, to leave `total` tokens a quarter of the context free.
std::size_t ChatSession::turns_to_forget(std::size_t total, std::size_t most) const {
  const std::size_t wanted = context() - context() / 4;
  std::size_t turns = 0;
  std::size_t gone = 0;
  while (turns < most && total - gone > wanted) {
    ++turns;
    gone = (turns == turns_.size() ? tokens_.size() : turns_[turns].first_token) - prefix_;
  }
  return turns;
}

// Before a turn of `needed` tokens is added.
void ChatSession::make_room(std::size_t needed, const AnswerHooks& hooks) {
  const std::size_t for_answer = std::min<std::size_t>(256, context() / 8);
  const std::size_t total = tokens_.size() + needed;
  if (prefix_ + needed >= context()) {
    fail_input(
        "this message has {} tokens{}, the context holds {} and needs one for the answer. Fix: shorten it, or "
        "start with a larger --context (up to {})",
        needed, prefix_ == 0 ? std::string{} : fmt::format(" after {} of the system message", prefix_), context(),
        engine_.model().shape.max_positions);
  }
  if (total + for_answer <= context() || turns_.empty()) return;
  if (settings_.overflow == Overflow::kStop) {
    fail_input(
        "the conversation has {} tokens and this message {}; with {} for the answer they exceed the context of "
        "{}. Fix: /new, /undo, /set overflow trim, or start with a larger --context",
        tokens_.size(), needed, for_answer, context());
  }
  forget_oldest(turns_to_forget(total, turns_.size()), hooks);
}

// ---- turns ----

AnswerReport ChatSession::ask(const std::string& message, const AnswerHooks& hooks) {
  attempt_ = 0;
  return add_turn(message, hooks);
}

AnswerReport ChatSession::retry(const AnswerHooks& hooks) {
  CHECK(!turns_.empty());
  const ChatTurn old = turns_.back();
  const std::vector<TokenId> old_tokens = tokens_;
  undo();
  ++attempt_;
  const auto put_back = [&] {
    // Only when nothing before the turn moved meanwhile (dropped turns cannot come back).
    if (tokens_.size() != old.first_token) return;
    turns_.push_back(old);
    tokens_ = old_tokens;
  };
  try {
    AnswerReport report = add_turn(old.user, hooks);
    if (report.withdrawn) put_back();
    return report;
  } catch (const InputError&) {
    put_back();
    throw;
  }
}

void ChatSession::undo() {
  CHECK(!turns_.empty());
  tokens_.resize(turns_.back().first_token);
  turns_.pop_back();
}

void ChatSession::clear() {
  turns_.clear();
  tokens_ = system_prefix();
  prefix_ = tokens_.size();
}

AnswerReport ChatSession::add_turn(const std::string& message, const AnswerHooks& hooks) {
  use_settings(hooks);
  const bool thinking = settings_.chat.thinking;
  const std::vector<TokenId> prompt = turn_prompt(message, thinking);
  make_room(prompt.size(), hooks);
  remember_turn_start();
  turns_.push_back({message, {}, {}, thinking, tokens_.size()});
  tokens_.insert(tokens_.end(), prompt.begin(), prompt.end());
  try {
    AnswerReport report = answer(hooks);
    if (report.withdrawn) undo();
    return report;
  } catch (...) {
    // A pass that failed half way leaves a state nobody should use.
    undo();
    checkpoints_.clear();
    state_.reset();
    throw;
  }
}

AnswerReport ChatSession::answer(const AnswerHooks& hooks) {
  SamplerSettings sampling = resolve_sampling(settings_.sampling, hints(), settings_.random_seed);
  sampling.seed += attempt_ * kRetryStep;
  Sampler sampler(sampling);
  AnswerReport report;
  AnswerStream stream(turns_.back().with_thinking, hooks);
  GenerateHooks inner;
  inner.token_bytes = [&](TokenId id) { return engine_.tokenizer().bytes(id); };
  inner.on_text = [&](std::string_view bytes) { stream.text(bytes); };
  inner.on_token = [&](TokenId) { stream.token(); };
  inner.on_prompt = [&](std::size_t done, std::size_t total) {
    if (hooks.on_prompt) hooks.on_prompt(done, total);
    if (done == total && report.answer_tokens == 0) stream.start_clock();
  };
  inner.on_warning = hooks.on_note;
  inner.cancelled = hooks.cancelled;

  GenerateOptions options;
  options.stop_strings = settings_.stop_strings;
  options.stop_ids = engine_.tokenizer().stop_ids();
  options.drafter = drafter_.drafter();
  options.biased_acceptance = engine_.lossy().biased_acceptance;
  const std::size_t prompt_size = tokens_.size() - turns_.back().first_token;
  double passes = 0.0;
  GenerateResult result;
  for (bool more = true; more;) {
    options.answer_start = turns_.back().first_token + prompt_size;
    options.max_tokens = settings_.max_tokens == 0 ? 0 : settings_.max_tokens - report.answer_tokens;
    rewind_to_common_prefix();
    result = generate(decoder_, sampler, std::span(tokens_).subspan(state_.position()), options, inner);
    append_answer(result);
    report.answer_tokens += result.tokens.size();
    report.prompt_tokens += result.prompt_tokens;
    report.prompt_seconds += result.prompt_seconds;
    report.decode_seconds += result.decode_seconds;
    report.drafts += result.drafts;
    passes += result.decode_rate() * result.decode_seconds;
    // A full context in the middle of an answer: the oldest turns go, never the present one.
    const std::size_t spare = turns_.size() - 1;
    more = result.reason == EndReason::kContext && settings_.overflow == Overflow::kTrim && spare > 0;
    if (more) forget_oldest(turns_to_forget(tokens_.size(), spare), hooks);
  }
  stream.finish();
  turns_.back().thinking = stream.all().thinking;
  turns_.back().answer = stream.all().answer;
  report.reason = result.reason;
  report.withdrawn = result.reason == EndReason::kCancelled && report.answer_tokens == 0;
  report.thinking_tokens = stream.thinking_tokens();
  report.thinking_seconds = stream.thinking_seconds();
  if (report.prompt_seconds > 0.0)
    report.prompt_rate = static_cast<double>(report.prompt_tokens) / report.prompt_seconds;
  if (report.decode_seconds > 0.0) report.decode_rate = passes / report.decode_seconds;
  close_answer(result, stream.thinking_open());
  return report;
}

// Takes over the tokens of the answer. After a stop string these are only the bytes that were shown: whole tokens, and
// what is left of the one that the stop string begins in.
void ChatSession::append_answer(const GenerateResult& result) {
  std::size_t bytes = 0;
  for (const TokenId token : result.tokens) {
    const std::string_view text = engine_.tokenizer().bytes(token);
    if (result.reason == EndReason::kStopString && bytes + text.size() > result.shown_bytes) {
      engine_.tokenizer().encode_append(text.substr(0, result.shown_bytes - bytes), false, tokens_);
      return;
    }
    bytes += text.size();
    tokens_.push_back(token);
  }
}

// Ends the turn as the template does, whatever ended the answer.
void ChatSession::close_answer(const GenerateResult& result, bool thinking_open) {
  const std::vector<TokenId> end =
      template_tokens(std::string(thinking_open ? "\n</think>\n\n" : "") + std::string(kTurnEnd) + "\n");
  CHECK(result.reason != EndReason::kStopToken || engine_.tokenizer().is_stop(result.stop_token));
  tokens_.insert(tokens_.end(), end.begin(), end.end());
}

// ---- the state as a cache ----

void ChatSession::rewind_to_common_prefix() {
  // The last token is always read again: its logits are needed.
  const std::size_t usable = tokens_.empty() ? 0 : tokens_.size() - 1;
  const std::size_t common = std::min(common_prefix(state_.tokens(), tokens_), usable);
  while (!checkpoints_.empty() && SequenceState::checkpoint_position(*checkpoints_.back()) > common) {
    checkpoints_.pop_back();
  }
  if (state_.position() <= common) return;
  if (checkpoints_.empty()) {
    state_.reset();
  } else {
    state_.rewind(*checkpoints_.back());
  }
}

void ChatSession::remember_turn_start() {
  rewind_to_common_prefix();
  const std::size_t position = state_.position();
  if (position == 0) return;
  if (!checkpoints_.empty() && SequenceState::checkpoint_position(*checkpoints_.back()) == position) return;
  checkpoints_.push_back(state_.checkpoint());
  if (checkpoints_.size() > kCheckpoints) checkpoints_.pop_front();
}

}  // namespace tandem
