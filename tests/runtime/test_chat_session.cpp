// Conversations with the nano model, greedy: whatever way a list of tokens came about, the state behind it is a cache
// and the text is the same. Expected token lists come from rendering the whole conversation with the chat template.
#include "runtime/chat_session.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "cpu/cpu_ops.h"
#include "placement/check.h"
#include "runtime/chat_store.h"
#include "runtime/logits_hash.h"

namespace tandem {
namespace {

const std::string kFrance = "What is the capital of France?";
const std::string kParis = "The capital of France is Paris.";

class ChatSessionTest : public ::testing::Test {
 protected:
  static std::unique_ptr<Engine> open_engine(std::size_t context = 1024, std::size_t chunk = 64) {
    EngineOptions options;
    options.model = std::filesystem::path(TANDEM_SOURCE_DIR) / "models" / "flash-next-nano-q4.gguf";
    options.context = context;
    options.prefill_chunk = chunk;
    return std::make_unique<Engine>(options, [](const EngineOptions&) { return make_cpu_ops(1); });
  }

  static ChatSettings greedy(bool thinking = false) {
    ChatSettings settings;
    settings.sampling.temperature = 0.0F;
    settings.chat.thinking = thinking;
    return settings;
  }

  ChatSessionTest() : engine_(open_engine()) {}

  // What the template makes of the whole conversation, the end of the last turn included.
  static std::vector<TokenId> rendered(const Engine& engine, const ChatSession& session) {
    std::vector<ChatMessage> messages;
    const std::string& system = session.settings().chat.system;
    if (!system.empty()) messages.push_back({"system", system, {}, {}});
    for (const ChatTurn& turn : session.turns()) {
      messages.push_back({"user", turn.user, {}, {}});
      messages.push_back({"assistant", turn.answer, turn.thinking, {}});
    }
    ChatOptions options;
    options.add_generation_prompt = false;
    return engine.chat_template().encode(engine.tokenizer(), messages, options);
  }

  AnswerReport ask(ChatSession& session, const std::string& text) { return session.ask(text, hooks()); }

  // Collects notes; cancels after `cancel_after` tokens of text when that is set.
  AnswerHooks hooks() {
    shown_.clear();
    AnswerHooks hooks;
    hooks.on_answer = [this](std::string_view text) {
      shown_ += text;
      ++pieces_;
    };
    hooks.on_note = [this](const std::string& note) { notes_.push_back(note); };
    pieces_ = 0;
    return hooks;
  }

  std::unique_ptr<Engine> engine_;
  std::string shown_;
  int pieces_ = 0;
  std::vector<std::string> notes_;
};

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(ChatSessionTest, TokensAreThoseOfTheWholeConversation) {
  for (const bool thinking : {false, true}) {
    ChatSession session(*engine_, greedy(thinking));
    session.settings().chat.system = "You are helpful.";
    ask(session, kFrance);
    EXPECT_EQ(session.turns().back().answer, kParis);
    EXPECT_EQ(shown_, kParis);
    EXPECT_EQ(session.turns().back().thinking.empty(), !thinking);
    ask(session, "And of <|im_end|> Slovenia?");  // special tokens in a message are text
    ask(session, "What is 27 + 45?");
    EXPECT_EQ(session.tokens(), rendered(*engine_, session));
  }
}

TEST_F(ChatSessionTest, OnlyWhatIsNewIsRead) {
  ChatSession session(*engine_, greedy());
  const AnswerReport first = ask(session, kFrance);
  EXPECT_EQ(first.prompt_tokens, 20U);  // the golden prompt of this question
  EXPECT_EQ(first.answer_tokens, 9U);
  EXPECT_EQ(session.tokens().size(), 20U + 9U + 2U);
  const std::size_t before = session.tokens().size();
  const AnswerReport second = ask(session, "And of Slovenia?");
  const std::size_t turn = session.tokens().size() - before - second.answer_tokens - 2;
  // The new turn, and the two tokens that ended the last one: sampled or written, but not run before.
  EXPECT_EQ(second.prompt_tokens, turn + 2);
  EXPECT_EQ(second.reason, EndReason::kStopToken);
}

TEST_F(ChatSessionTest, UndoGoesBackToACheckpoint) {
  ChatSession session(*engine_, greedy());
  ask(session, kFrance);
  const std::vector<TokenId> one = session.tokens();
  const AnswerReport second = ask(session, "And of Slovenia?");
  const std::vector<TokenId> two = session.tokens();
  ask(session, "What is 27 + 45?");
  session.undo();
  EXPECT_EQ(session.tokens(), two);
  session.undo();
  EXPECT_EQ(session.tokens(), one);
  const AnswerReport again = ask(session, "And of Slovenia?");
  EXPECT_EQ(session.tokens(), two);
  EXPECT_EQ(again.prompt_tokens, second.prompt_tokens);  // nothing of the first turn was read again
}

TEST_F(ChatSessionTest, UndoBeyondTheCheckpointsReadsAgain) {
  ChatSession session(*engine_, greedy());
  session.settings().max_tokens = 3;
  std::vector<std::vector<TokenId>> after;
  for (std::size_t i = 0; i < ChatSession::kCheckpoints + 3; ++i) {
    ask(session, "Count to " + std::to_string(i));
    after.push_back(session.tokens());
  }
  EXPECT_EQ(session.checkpoints(), ChatSession::kCheckpoints);
  while (session.turns().size() > 1) session.undo();
  const AnswerReport again = ask(session, "Count to 1");
  EXPECT_EQ(session.tokens(), after[1]);
  EXPECT_GT(again.prompt_tokens, after[0].size());  // all of it
}

TEST_F(ChatSessionTest, RetryGivesTheSameGreedyTextAndNewNoiseOtherwise) {
  ChatSession session(*engine_, greedy());
  ask(session, kFrance);
  ask(session, "Tell me a story.");
  const std::vector<TokenId> tokens = session.tokens();
  const AnswerReport retry = session.retry(hooks());
  EXPECT_EQ(session.tokens(), tokens);
  EXPECT_LT(retry.prompt_tokens, 31U);

  session.settings().sampling.temperature = 1.5F;
  session.settings().sampling.seed = 7;
  const auto answer = [&] { return session.turns().back().answer; };
  session.undo();
  ask(session, "Tell me a story.");
  const std::string first = answer();
  session.retry(hooks());
  const std::string second = answer();
  session.retry(hooks());
  EXPECT_NE(first, second);
  EXPECT_NE(answer(), second);
  EXPECT_NE(answer(), first);
  session.undo();
  ask(session, "Tell me a story.");
  EXPECT_EQ(answer(), first);  // the seed counts, not the history of tries
}

TEST_F(ChatSessionTest, PresencePenaltyLooksAtTheAnswerOnly) {
  ChatSession session(*engine_, greedy());
  session.settings().sampling.presence_penalty = 90.0F;
  ask(session, kFrance);
  // No token of this answer comes twice in it, but most of them stand in the question.
  EXPECT_EQ(session.turns().back().answer, kParis);
  ask(session, kFrance);
  EXPECT_EQ(session.turns().back().answer, kParis);
}

TEST_F(ChatSessionTest, AStoppedAnswerStaysAndIsClosed) {
  for (const int stop_after : {1, 3}) {
    ChatSession session(*engine_, greedy());
    AnswerHooks stopping = hooks();
    stopping.cancelled = [&] { return pieces_ >= stop_after; };
    const AnswerReport report = session.ask(kFrance, stopping);
    EXPECT_EQ(report.reason, EndReason::kCancelled);
    EXPECT_FALSE(report.withdrawn);
    EXPECT_EQ(report.answer_tokens, static_cast<std::size_t>(stop_after));
    EXPECT_EQ(session.turns().back().answer, shown_);
    EXPECT_EQ(kParis.rfind(shown_, 0), 0U);
    EXPECT_EQ(session.tokens(), rendered(*engine_, session));
    ask(session, "What is 27 + 45?");
    EXPECT_EQ(session.turns().back().answer, "27 + 45 = 72.");
    EXPECT_EQ(session.tokens(), rendered(*engine_, session));
  }
}

TEST_F(ChatSessionTest, StoppedInTheMiddleOfThinking) {
  ChatSession session(*engine_, greedy(true));
  session.settings().max_tokens = 4;
  ask(session, "What is 27 + 45?");
  EXPECT_EQ(session.turns().back().thinking, "27 + ");
  EXPECT_EQ(session.turns().back().answer, "");
  EXPECT_EQ(session.tokens(), rendered(*engine_, session));
}

TEST_F(ChatSessionTest, StoppedWhileReadingTakesTheMessageBack) {
  const auto small_chunks = open_engine(1024, 4);
  ChatSession session(*small_chunks, greedy());
  ask(session, kFrance);
  const std::vector<TokenId> tokens = session.tokens();
  int asked = 0;
  AnswerHooks stopping = hooks();
  stopping.cancelled = [&] { return ++asked > 2; };
  const AnswerReport report = session.ask("And of Slovenia?", stopping);
  EXPECT_TRUE(report.withdrawn);
  EXPECT_EQ(session.tokens(), tokens);
  EXPECT_EQ(session.turns().size(), 1U);
  // A retry that is stopped in the same way leaves the old answer.
  asked = 0;
  EXPECT_TRUE(session.retry(stopping).withdrawn);
  EXPECT_EQ(session.turns().back().answer, kParis);
  EXPECT_EQ(session.tokens(), tokens);
  ask(session, "What is 27 + 45?");
  EXPECT_EQ(session.turns().back().answer, "27 + 45 = 72.");
}

TEST_F(ChatSessionTest, AStopStringLeavesOnlyWhatWasShown) {
  ChatSession session(*engine_, greedy());
  session.settings().stop_strings = {"ance is"};
  const AnswerReport report = ask(session, kFrance);
  EXPECT_EQ(report.reason, EndReason::kStopString);
  EXPECT_EQ(shown_, "The capital of Fr");
  EXPECT_EQ(session.turns().back().answer, shown_);
  EXPECT_EQ(session.tokens(), rendered(*engine_, session));
  session.settings().stop_strings = {"ital of"};  // begins inside a token
  session.retry(hooks());
  EXPECT_EQ(session.turns().back().answer, "The cap");
  EXPECT_EQ(engine_->tokenizer().decode(session.tokens()), engine_->tokenizer().decode(rendered(*engine_, session)));
}

TEST_F(ChatSessionTest, ASystemMessageInTheMiddleMovesEverything) {
  ChatSession session(*engine_, greedy());
  ask(session, kFrance);
  session.settings().chat.system = "You are a poet.";
  ask(session, "What is 27 + 45?");
  EXPECT_EQ(session.tokens(), rendered(*engine_, session));
  ASSERT_EQ(notes_.size(), 1U);
  EXPECT_NE(notes_[0].find("read again"), std::string::npos);
  session.undo();
  EXPECT_EQ(session.tokens(), rendered(*engine_, session));
  session.clear();
  EXPECT_TRUE(session.turns().empty());
  ask(session, kFrance);
  EXPECT_EQ(session.tokens(), rendered(*engine_, session));
}

TEST_F(ChatSessionTest, TrimmingKeepsTheSystemMessageAndTheNewestTurns) {
  const auto engine = open_engine(160);
  ChatSession session(*engine, greedy());
  session.settings().chat.system = "Be brief.";
  for (const char* place : {"France", "Slovenia", "Italy", "Spain", "Poland", "Greece"}) {
    ask(session, std::string("What is the capital of ") + place + "?");
    EXPECT_EQ(session.tokens(), rendered(*engine, session)) << place;
    EXPECT_LE(session.tokens().size(), 160U);
  }
  ASSERT_FALSE(notes_.empty());
  EXPECT_NE(notes_[0].find("the context of 160 tokens is full: dropped the oldest"), std::string::npos);
  EXPECT_EQ(session.turns().back().answer, "The capital of Greece is Athens.");
  EXPECT_LT(session.turns().size(), 5U);
}

TEST_F(ChatSessionTest, TrimmingGivesTheTextOfTheShorterConversation) {
  const auto engine = open_engine(160);
  ChatSession session(*engine, greedy());
  for (const char* place : {"France", "Slovenia", "Italy", "Spain", "Poland", "Greece"}) {
    ask(session, std::string("What is the capital of ") + place + "?");
  }
  ChatSession fresh(*engine, greedy());
  const std::vector<ChatTurn> turns = session.turns();
  for (const ChatTurn& turn : turns) ask(fresh, turn.user);
  EXPECT_EQ(fresh.tokens(), session.tokens());
}

TEST_F(ChatSessionTest, AnAnswerThatFillsTheContextGoesOnWithoutTheOldestTurns) {
  const auto engine = open_engine(256);
  ChatSession session(*engine, greedy());
  ask(session, kFrance);
  std::string letters;
  for (int i = 0; i < 25; ++i) letters += "a b c d ";
  const AnswerReport report = ask(session, "Repeat the following text exactly: " + letters);
  EXPECT_EQ(report.reason, EndReason::kContext);
  EXPECT_EQ(session.turns().size(), 1U);
  EXPECT_EQ(notes_.size(), 1U);
  EXPECT_EQ(session.turns().back().answer, shown_);
  EXPECT_EQ(session.turns().back().first_token, 0U);
  EXPECT_EQ(session.used(), 256U);
  // Under the other policy the answer just ends.
  ChatSession stopping(*engine, greedy());
  stopping.settings().overflow = Overflow::kStop;
  ask(stopping, kFrance);
  notes_.clear();
  EXPECT_EQ(ask(stopping, "Repeat the following text exactly: " + letters).reason, EndReason::kContext);
  EXPECT_EQ(stopping.turns().size(), 2U);
  EXPECT_TRUE(notes_.empty());
}

TEST_F(ChatSessionTest, WhatCannotFitIsRefusedAndChangesNothing) {
  const auto engine = open_engine(92);
  ChatSession session(*engine, greedy());
  ask(session, kFrance);
  const std::vector<TokenId> tokens = session.tokens();
  std::string words;
  for (int i = 0; i < 100; ++i) words += "word ";
  EXPECT_NE(message_of([&] { ask(session, words); }).find("the context holds 92"), std::string::npos);
  EXPECT_EQ(session.tokens(), tokens);
  session.settings().overflow = Overflow::kStop;
  ask(session, kFrance);
  const std::vector<TokenId> two = session.tokens();
  EXPECT_NE(message_of([&] { ask(session, kFrance); }).find("/set overflow trim"), std::string::npos);
  EXPECT_EQ(session.tokens(), two);
  session.settings().overflow = Overflow::kTrim;
  ask(session, kFrance);
  EXPECT_EQ(session.turns().back().answer, kParis);
}

TEST_F(ChatSessionTest, SavedAndLoaded) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("tandem-session-" + std::to_string(getpid()));
  const std::filesystem::path path = folder / "deep" / "talk.json";
  ChatSession session(*engine_, greedy());
  session.settings().chat.system = "You are helpful.";
  ask(session, kFrance);
  session.save(path);
  const std::vector<TokenId> saved = session.tokens();
  const AnswerReport next = ask(session, "And of Slovenia?");

  const auto other_engine = open_engine();
  ChatSession other(*other_engine, greedy(true));
  ask(other, "What is 27 + 45?");
  EXPECT_EQ(other.load(path), "");
  EXPECT_EQ(other.tokens(), saved);
  EXPECT_FALSE(other.settings().chat.thinking);
  EXPECT_EQ(other.settings().chat.system, "You are helpful.");
  const AnswerReport continued = ask(other, "And of Slovenia?");
  EXPECT_EQ(other.tokens(), session.tokens());
  EXPECT_EQ(continued.prompt_tokens, next.prompt_tokens);

  std::filesystem::remove(state_path_of(path));
  EXPECT_NE(other.load(path).find("read again"), std::string::npos);
  ask(other, "And of Slovenia?");
  EXPECT_EQ(other.tokens(), session.tokens());

  // A file of another model: its tokens mean nothing here, its text does.
  StoredConversation foreign = read_conversation(path, greedy());
  foreign.fingerprint += 1;
  foreign.tokens.assign(foreign.tokens.size(), 7);
  write_conversation(path, foreign);
  EXPECT_NE(other.load(path).find("another model"), std::string::npos);
  EXPECT_EQ(other.tokens(), saved);

  // Ids that the model does not have are refused, and nothing changes.
  foreign.fingerprint -= 1;
  foreign.tokens.back() = 1 << 30;
  write_conversation(path, foreign);
  EXPECT_NE(message_of([&] { other.load(path); }).find("expected ids below"), std::string::npos);
  EXPECT_EQ(other.tokens(), saved);
  std::filesystem::remove_all(folder);
}

// The hash of --logits-hash: every committed position once, in order, whatever the chunks.
TEST_F(ChatSessionTest, PipelineDecoderHashesEveryRowOnce) {
  const std::vector<TokenId> tokens = engine_->tokenizer().encode("Once upon a time there was a small dragon.", false);
  SequenceState whole_state = engine_->new_state();
  const PassOutput all = engine_->pipeline().forward(whole_state, tokens, PassMode::kCommit, LogitRows::kAll);
  LogitsHash want;
  for (std::size_t r = 0; r < all.logits.rows; ++r) want.add(all.logits.span(r));
  const std::vector<float> last(all.logits.span(all.logits.rows - 1).begin(),
                                all.logits.span(all.logits.rows - 1).end());
  for (const std::size_t chunk : {std::size_t{1}, std::size_t{3}, std::size_t{64}}) {
    SequenceState state = engine_->new_state();
    LogitsHash hash;
    PipelineDecoder decoder(engine_->pipeline(), state, chunk, &hash);
    std::size_t told = 0;
    ASSERT_TRUE(decoder.append(std::span(tokens).first(5), {}, [&](std::size_t done) { told = done; }));
    EXPECT_EQ(told, 5U);
    ASSERT_TRUE(decoder.append(std::span(tokens).subspan(5), {}, {}));
    EXPECT_EQ(hash.rows(), tokens.size());
    EXPECT_EQ(hash.hex(), want.hex());
    EXPECT_EQ(std::vector<float>(decoder.logits().begin(), decoder.logits().end()), last);
  }
}

}  // namespace
}  // namespace tandem
