// A conversation without its user interface: turns, their tokens, the sequence state behind them.
//
// The list of tokens is the truth: what was said, as it was generated, never tokenised again. The state is a cache of a
// prefix of it; before every pass it is brought back to the longest common prefix (a checkpoint of the last turns, or
// the beginning) and the rest is read. So undo, retry, a stopped answer, a dropped turn and a loaded file all need no
// rule of their own, and the text cannot depend on them (docs/numerics.md, L1).
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/chat_settings.h"
#include "runtime/drafting.h"
#include "runtime/engine.h"
#include "runtime/generate.h"
#include "runtime/sequence_state.h"

namespace tandem {

struct ChatTurn {
  std::string user;
  std::string thinking, answer;  // what the model wrote
  bool with_thinking = false;    // the turn's prompt opened a <think> block
  std::size_t first_token = 0;   // where the turn begins in the conversation's tokens
};

struct AnswerHooks {
  // Whole UTF-8 characters. on_thinking comes with every token of thinking, perhaps without text, with the number of
  // tokens thought so far and the seconds they took.
  std::function<void(std::string_view text, std::size_t tokens, double seconds)> on_thinking;
  std::function<void(std::string_view text)> on_answer;
  std::function<void(std::size_t done, std::size_t total)> on_prompt;
  std::function<void(const std::string&)> on_note;  // visible decisions: dropped turns, loops
  std::function<bool()> cancelled;
};

struct AnswerReport {
  EndReason reason = EndReason::kStopToken;
  bool withdrawn = false;  // stopped before the first token: the message was taken back
  std::size_t prompt_tokens = 0, answer_tokens = 0, thinking_tokens = 0;
  double prompt_seconds = 0.0, decode_seconds = 0.0, thinking_seconds = 0.0;
  double prompt_rate = 0.0, decode_rate = 0.0;  // tokens per second, 0 when unknown
  DraftStats drafts;
};

class ChatSession {
 public:
  static constexpr std::size_t kCheckpoints = 8;  // turns that undo and retry can go back without reading again
  static constexpr double kFullWarning = 0.8;     // of the context

  ChatSession(Engine& engine, ChatSettings settings);

  ChatSettings& settings() { return settings_; }
  const ChatSettings& settings() const { return settings_; }
  const SamplingHints& hints() const;  // for the present thinking mode
  const std::vector<ChatTurn>& turns() const { return turns_; }
  const std::vector<TokenId>& tokens() const { return tokens_; }
  std::size_t context() const { return state_.context(); }
  // Tokens of the conversation. The end of a turn may stand beyond the last position; that counts as full.
  std::size_t used() const { return std::min(tokens_.size(), context()); }
  std::size_t cached() const { return state_.position(); }
  std::size_t checkpoints() const { return checkpoints_.size(); }
  std::size_t checkpoint_bytes() const { return state_.checkpoint_bytes(); }
  bool nearly_full() const;

  // Adds a turn: the message and the model's answer. Throws InputError when it cannot fit (with the numbers) or the
  // model breaks; the conversation is then as before. Cancelled in the middle: what was said stays.
  AnswerReport ask(const std::string& message, const AnswerHooks& hooks);
  // The last message once more, with new noise (the same text when greedy). REQUIRES turns().
  AnswerReport retry(const AnswerHooks& hooks);
  void undo();   // takes the last turn back. REQUIRES turns()
  void clear();  // drops all turns; settings and system message stay

  // A file that load() understands, and the state beside it (PATH with .state for .json). Both are written atomically.
  void save(const std::filesystem::path& path) const;
  // Replaces conversation and settings. Throws InputError without changing anything when the file cannot be used.
  // Returns what the user should know (the state could not be used, another model wrote it), or nothing.
  std::string load(const std::filesystem::path& path);

 private:
  class AnswerStream;  // from tokens to the turn's text and the hooks

  ChatOptions template_options(bool thinking) const;
  std::vector<TokenId> system_prefix() const;
  std::vector<TokenId> turn_prompt(const std::string& message, bool thinking) const;
  std::vector<TokenId> template_tokens(std::string_view text) const;
  void use_settings(const AnswerHooks& hooks);
  void forget_oldest(std::size_t turns, const AnswerHooks& hooks);
  std::size_t turns_to_forget(std::size_t total, std::size_t most) const;
  void make_room(std::size_t needed, const AnswerHooks& hooks);
  AnswerReport add_turn(const std::string& message, const AnswerHooks& hooks);
  AnswerReport answer(const AnswerHooks& hooks);
  void append_answer(const GenerateResult& result);
  void close_answer(const GenerateResult& result, bool thinking_open);
  void rewind_to_common_prefix();
  void remember_turn_start();
  std::vector<TokenId> rebuild_tokens(std::vector<ChatTurn>& turns) const;

  Engine& engine_;
  ChatSettings settings_;
  SequenceState state_;
  SequenceDrafter drafter_;  // what it learned holds for all answers
  PipelineDecoder decoder_;
  std::vector<ChatTurn> turns_;
  std::vector<TokenId> tokens_;
  std::size_t prefix_ = 0;                                                    // tokens before the first turn
  std::uint64_t attempt_ = 0;                                                 // how often the last message was retried
  std::deque<std::shared_ptr<const SequenceState::Checkpoint>> checkpoints_;  // ascending positions
};

}  // namespace tandem
