// The pieces of the chat that need no model: splitting thinking from answers, settings, files, messages of several
// lines, names and progress.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "placement/check.h"
#include "placement/suggest.h"
#include "runtime/chat_input.h"
#include "runtime/chat_screen.h"
#include "runtime/chat_settings.h"
#include "runtime/chat_store.h"
#include "runtime/logits_hash.h"
#include "runtime/progress.h"
#include "runtime/think_splitter.h"

namespace tandem {
namespace {

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

// ---- ThinkSplitter ----

struct Split {
  std::string thinking, answer;
};

Split split(const std::string& text, bool thinking, const std::function<std::size_t()>& next_piece) {
  ThinkSplitter splitter(thinking);
  Split all;
  const auto take = [&](const ThinkSplitter::Parts& parts) {
    all.thinking += parts.thinking;
    all.answer += parts.answer;
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t n = std::min(next_piece(), text.size() - at);
    take(splitter.push(text.substr(at, n)));
    at += n;
  }
  take(splitter.flush());
  return all;
}

TEST(ThinkSplitter, PiecesDoNotMatter) {
  struct Case {
    std::string text;
    bool thinking;
    std::string want_thinking, want_answer;
  };
  const std::vector<Case> cases{
      {"So: 3.\n</think>\n\nThree.", true, "So: 3.", "Three."},
      {"a\n\nb\n\n</think>\n\n\nx\n\ny\n", true, "a\n\nb", "x\n\ny\n"},
      {"</think>\n\nat once", true, "", "at once"},
      {"never </thin ended\n", true, "never </thin ended\n", ""},
      {"half a marker </think", true, "half a marker </think", ""},
      {"<</think>>", true, "<", ">"},
      {"one</think>two</think>three", true, "one", "two</think>three"},
      {"\n\nplain </think> text", false, "", "\n\nplain </think> text"},
      {"", true, "", ""},
  };
  std::mt19937 generator(3);
  for (const Case& c : cases) {
    for (int round = 0; round < 50; ++round) {
      const Split got = split(c.text, c.thinking, [&] { return round == 0 ? 1 : 1 + generator() % 5; });
      EXPECT_EQ(got.thinking, c.want_thinking) << c.text;
      EXPECT_EQ(got.answer, c.want_answer) << c.text;
    }
  }
}

TEST(ThinkSplitter, ShowsTextAtOnce) {
  ThinkSplitter splitter(true);
  EXPECT_EQ(splitter.push("ab\nc").thinking, "ab\nc");
  EXPECT_EQ(splitter.push("\n").thinking, "");  // may be the template's
  EXPECT_EQ(splitter.push("d<").thinking, "\nd");
  EXPECT_TRUE(splitter.in_thinking());
  EXPECT_EQ(splitter.push("/think>\n").answer, "");
  EXPECT_FALSE(splitter.in_thinking());
  EXPECT_EQ(splitter.push("\nx").answer, "x");
  EXPECT_EQ(splitter.push("\n").answer, "\n");
}

// ---- names ----

TEST(Suggest, EditDistance) {
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("hlep", "help"), 1U);  // neighbours swapped
  EXPECT_EQ(edit_distance("same", "same"), 0U);
}

TEST(Suggest, NearestName) {
  const std::vector<std::string> names{"help", "new", "set", "system", "stats"};
  EXPECT_EQ(nearest_name("hlep", names), "help");
  EXPECT_EQ(nearest_name("sys", names), "system");  // a beginning
  EXPECT_EQ(nearest_name("st", names), "stats");
  EXPECT_EQ(nearest_name("quantise", names), "");
  EXPECT_EQ(nearest_name("", names), "");
}

// ---- settings ----

TEST(Settings, ChangeShowAndReset) {
  ChatSettings settings;
  const SamplingHints hints{0.7F, 0.8F, 0.0F, 1.5F, 20, "test"};
  EXPECT_EQ(show_setting(settings, "temperature", hints), "0.7");
  EXPECT_EQ(show_setting(settings, "presence-penalty", hints), "1.5");
  EXPECT_FALSE(setting_is_chosen(settings, "temperature"));
  change_setting(settings, "temperature", "0");
  EXPECT_TRUE(setting_is_chosen(settings, "temperature"));
  EXPECT_EQ(show_setting(settings, "presence-penalty", hints), "0");  // greedy leaves recommended penalties out
  change_setting(settings, "temperature", "default");
  EXPECT_EQ(show_setting(settings, "temperature", hints), "0.7");
  change_setting(settings, "seed", "18446744073709551615");
  EXPECT_EQ(show_setting(settings, "seed", hints), "18446744073709551615");
  change_setting(settings, "overflow", "stop");
  EXPECT_EQ(settings.overflow, Overflow::kStop);
  change_setting(settings, "thinking", "hide");
  EXPECT_EQ(settings.view, ThinkingView::kHide);
}

TEST(Settings, WrongValuesChangeNothing) {
  ChatSettings settings;
  const std::string before = settings_to_json(settings).dump();
  const std::vector<std::array<std::string, 3>> cases{
      {"temperature", "hot", "expected a number, found \"hot\""},
      {"temperature", "1 2", "found \"1 2\""},
      {"temperature", "nan", "nan"},
      {"top-k", "2.5", "found \"2.5\""},
      {"top-k", "-1", "top-k"},
      {"seed", "-1", "found \"-1\""},
      {"max-tokens", "", "found \"\""},
      {"effort", "huge", "low, medium, xhigh"},
      {"overflow", "wrap", "trim, stop"},
      {"top_p", "1", "did you mean top-p?"},
      {"colour", "red", "/set lists them"},
  };
  for (const auto& c : cases) {
    const std::string message = message_of([&] { change_setting(settings, c[0], c[1]); });
    EXPECT_NE(message.find(c[2]), std::string::npos) << message;
  }
  EXPECT_EQ(settings_to_json(settings).dump(), before);
}

TEST(Settings, RoundTripThroughJson) {
  ChatSettings settings;
  settings.chat.thinking = false;
  settings.chat.system = "Be brief.";
  settings.stop_strings = {"END", "\n\n"};
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{{"temperature", "0.6"},
                                                                                    {"top-k", "7"},
                                                                                    {"top-p", "0.9"},
                                                                                    {"min-p", "0.01"},
                                                                                    {"presence-penalty", "0.5"},
                                                                                    {"repetition-penalty", "1.1"},
                                                                                    {"penalty-window", "64"},
                                                                                    {"seed", "12"},
                                                                                    {"max-tokens", "99"},
                                                                                    {"effort", "low"},
                                                                                    {"overflow", "stop"},
                                                                                    {"thinking", "fold"}}) {
    change_setting(settings, name, value);
    EXPECT_TRUE(setting_is_chosen(settings, name)) << name;
  }
  const nlohmann::json json = nlohmann::json::parse(settings_to_json(settings).dump());
  EXPECT_EQ(json.size(), 3 + setting_names().size());  // every setting of the table was tried above
  const ChatSettings back = settings_from_json(json, "file", ChatSettings{});
  EXPECT_EQ(settings_to_json(back), settings_to_json(settings));
  EXPECT_EQ(back.chat.system, "Be brief.");

  const auto refused = [&](const char* text) {
    return message_of([&] { settings_from_json(nlohmann::json::parse(text), "file", ChatSettings{}); });
  };
  EXPECT_NE(refused(R"({"temperature": 3})").find("file: settings.temperature"), std::string::npos);
  EXPECT_NE(refused(R"({"temperature": "900"})").find("file: settings: temperature"), std::string::npos);
  EXPECT_NE(refused(R"({"temprature": "1"})").find("did you mean temperature?"), std::string::npos);
  EXPECT_NE(refused(R"([1])").find("expected an object"), std::string::npos);
}

// ---- conversation files ----

class ConversationFile : public ::testing::Test {
 protected:
  ConversationFile() {
    std::string name = (std::filesystem::temp_directory_path() / "tandem-chat-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~ConversationFile() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path path() const { return folder_ / "talk.json"; }
  static StoredConversation sample() {
    StoredConversation talk;
    talk.fingerprint = 0x0123456789abcdefULL;
    talk.model = "m.gguf";
    talk.prefix = 2;
    talk.tokens = {9, 8, 1, 2, 3, 4, 5};
    talk.turns = {{"caf\xC3\xA9\n\"x\"", "hm", "yes", true, 2}, {"raw \xFF byte", "", "no", false, 5}};
    return talk;
  }
  void write(const nlohmann::json& json) const { std::ofstream(path()) << json.dump(); }
  nlohmann::json written() const {
    write_conversation(path(), sample());
    std::ifstream file(path());
    return nlohmann::json::parse(file);
  }
  std::string refused() const {
    return message_of([&] { read_conversation(path(), ChatSettings{}); });
  }

  std::filesystem::path folder_;
};

TEST_F(ConversationFile, RoundTrip) {
  const StoredConversation talk = sample();
  write_conversation(path(), talk);
  const StoredConversation back = read_conversation(path(), ChatSettings{});
  EXPECT_EQ(back.fingerprint, talk.fingerprint);
  EXPECT_EQ(back.model, talk.model);
  EXPECT_EQ(back.prefix, talk.prefix);
  EXPECT_EQ(back.tokens, talk.tokens);
  ASSERT_EQ(back.turns.size(), 2U);
  EXPECT_EQ(back.turns[0].user, talk.turns[0].user);
  EXPECT_EQ(back.turns[0].thinking, "hm");
  EXPECT_EQ(back.turns[0].answer, "yes");
  EXPECT_TRUE(back.turns[0].with_thinking);
  EXPECT_EQ(back.turns[1].first_token, 5U);
  EXPECT_EQ(back.turns[1].user, "raw \xEF\xBF\xBD byte");  // JSON holds no broken UTF-8; the tokens are exact

  struct stat info {};
  ASSERT_EQ(stat(path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 077U, 0U);                               // private
  EXPECT_FALSE(std::filesystem::exists(path().string() + ".tmp"));  // nothing left over
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(ConversationFile, EveryMissingOrWrongKeyIsNamed) {
  const nlohmann::json good = written();
  for (const auto& [key, value] : good.items()) {
    nlohmann::json without = good;
    without.erase(key);
    write(without);
    EXPECT_NE(refused().find("\"" + key + "\""), std::string::npos) << refused();
    nlohmann::json wrong = good;
    wrong[key] = -1;
    write(wrong);
    EXPECT_NE(refused().find(key), std::string::npos) << refused();
    EXPECT_EQ(refused().rfind(path().string(), 0), 0U) << refused();
  }
  for (const std::string key : {"user", "thinking", "answer", "with_thinking", "first_token"}) {
    nlohmann::json wrong = good;
    wrong["turns"][1][key] = nullptr;
    write(wrong);
    EXPECT_NE(refused().find("turns[1]: " + key), std::string::npos) << refused();
  }
}

TEST_F(ConversationFile, OrderOfTurnsIsChecked) {
  const nlohmann::json good = written();
  const auto with = [&](const std::function<void(nlohmann::json&)>& change) {
    nlohmann::json json = good;
    change(json);
    write(json);
    return refused();
  };
  EXPECT_EQ(with([](nlohmann::json&) {}), "no error");
  EXPECT_NE(with([](auto& j) { j["turns"][0]["first_token"] = 1; }).find("turns[0].first_token"), std::string::npos);
  EXPECT_NE(with([](auto& j) { j["turns"][1]["first_token"] = 2; }).find("turns[1].first_token"), std::string::npos);
  EXPECT_NE(with([](auto& j) { j["turns"][1]["first_token"] = 7; }).find("turns[1].first_token"), std::string::npos);
  EXPECT_NE(with([](auto& j) { j["prefix"] = 3; }).find("turns[0].first_token"), std::string::npos);
  EXPECT_NE(with([](auto& j) { j["prefix"] = 1; }).find("turns[0].first_token"), std::string::npos);
  EXPECT_NE(with([](auto& j) { j["turns"] = nlohmann::json::array(); }).find("prefix"), std::string::npos);
  EXPECT_NE(with([](auto& j) { j["tokens"][3] = -4; }).find("found -4 at index 3"), std::string::npos);
  EXPECT_NE(with([](auto& j) { j["tokens"][3] = 1ULL << 40; }).find("at index 3"), std::string::npos);
  EXPECT_NE(with([](auto& j) { j["version"] = 2; }).find("version: expected 1, found 2"), std::string::npos);
  EXPECT_NE(with([](auto& j) { j["model"]["fingerprint"] = "xyz"; }).find("hexadecimal"), std::string::npos);
}

TEST_F(ConversationFile, WhatIsNoConversationIsRefused) {
  EXPECT_NE(refused().find("found nothing that can be read"), std::string::npos);
  std::ofstream(path()) << "{\"half\": ";
  EXPECT_NE(refused().find("expected JSON"), std::string::npos);
  std::ofstream(path()) << "[]";
  EXPECT_NE(refused().find("expected an object"), std::string::npos);
  std::filesystem::remove(path());
  std::filesystem::create_directory(path());
  EXPECT_NE(refused().find("found a folder"), std::string::npos);
}

TEST_F(ConversationFile, AFailedWriteLeavesTheOldFile) {
  write_conversation(path(), sample());
  std::filesystem::create_directory(path().string() + ".tmp");  // the temporary name is taken
  StoredConversation other = sample();
  other.model = "other.gguf";
  EXPECT_NE(message_of([&] { write_conversation(path(), other); }).find(path().string()), std::string::npos);
  EXPECT_EQ(read_conversation(path(), ChatSettings{}).model, "m.gguf");
}

TEST_F(ConversationFile, Paths) {
  EXPECT_EQ(conversation_path("./a"), "./a.json");
  EXPECT_EQ(conversation_path("b/a.json"), "b/a.json");
  EXPECT_EQ(state_path_of("b/a.json"), "b/a.state");
  EXPECT_NE(message_of([] { conversation_path(""); }).find("expected a name"), std::string::npos);
}

// ---- input and screen ----

class ScriptedInput : public ChatInput {
 public:
  explicit ScriptedInput(std::deque<ChatLine> lines) : lines_(std::move(lines)) {}
  ChatLine read_line(const std::string& prompt) override {
    prompts += prompt;
    if (lines_.empty()) return {};
    ChatLine line = lines_.front();
    lines_.pop_front();
    return line;
  }
  void remember(const std::string&) override {}
  std::string prompts;

 private:
  std::deque<ChatLine> lines_;
};

ChatLine text_line(std::string text) {
  return {ChatLine::Kind::kText, std::move(text)};
}

TEST(ReadMessage, SeveralLines) {
  const auto read = [](std::vector<std::string> lines) {
    std::deque<ChatLine> queue;
    for (std::string& line : lines) queue.push_back(text_line(std::move(line)));
    ScriptedInput input(std::move(queue));
    return read_message(input, ">", ".").text;
  };
  EXPECT_EQ(read({"one"}), "one");
  EXPECT_EQ(read({"one\\", "two\\", "three", "four"}), "one\ntwo\nthree");
  EXPECT_EQ(read({"\"\"\"one", "", "two\"\"\""}), "one\n\ntwo");
  EXPECT_EQ(read({"\"\"\"", "one\\", "\"\"\""}), "one\\");
  EXPECT_EQ(read({"\"\"\"one\"\"\"", "two"}), "one");
  EXPECT_EQ(read({"say \"\"\"", "x"}), "say \"\"\"");
}

TEST(ReadMessage, InterruptAndEndDropTheWholeMessage) {
  ScriptedInput interrupted({text_line("a\\"), {ChatLine::Kind::kInterrupted, "b"}});
  EXPECT_EQ(read_message(interrupted, ">", ".").kind, ChatLine::Kind::kInterrupted);
  EXPECT_EQ(interrupted.prompts, ">.");
  ScriptedInput ended({text_line("\"\"\"a")});
  EXPECT_EQ(read_message(ended, ">", ".").kind, ChatLine::Kind::kEnd);
}

TEST(Screen, ControlCharactersAreReplaced) {
  const std::string mark = "\xEF\xBF\xBD";
  EXPECT_EQ(ChatScreen::harmless("a\tb\nc"), "a\tb\nc");
  EXPECT_EQ(ChatScreen::harmless("\x1b[31mred\x07\x7f\r"), mark + "[31mred" + mark + mark + mark);
  EXPECT_EQ(ChatScreen::harmless("\xC2\x9B"
                                 "31m \xC2\xA9 \xC3\x9B"),
            mark + "31m \xC2\xA9 \xC3\x9B");
}

TEST(ProgressBar, Text) {
  EXPECT_EQ(Progress::render("reading", "tokens", 50, 100, 2.0, 88),
            "reading [####################....................] 50/100 tokens, 25/s, 2 s left");
  // 8 for the label, 29 for the numbers, 3 for brackets and space: 10 cells are left of 50 columns.
  EXPECT_EQ(Progress::render("reading", "tokens", 50, 100, 2.0, 50),
            "reading [#####.....] 50/100 tokens, 25/s, 2 s left");
  EXPECT_EQ(Progress::render("reading", "tokens", 100, 100, 2.0, 41), "reading [##########] 100/100 tokens, 50/s");
  EXPECT_EQ(Progress::render("reading", "tokens", 0, 100, 2.0, 40), "reading [............] 0/100 tokens, 0/s");
  // Half was there before: the rate, and what is left, are of the other half.
  EXPECT_EQ(Progress::render("", "B", 60, 100, 2.0, 20, 50), " 60/100 B, 5/s, 8 s ");
  EXPECT_NE(Progress::render("", "B", 1, 120, 1.0, 200).find(", 119 s left"), std::string::npos);
  EXPECT_NE(Progress::render("", "B", 1, 121, 1.0, 200).find(", 2 min left"), std::string::npos);
  EXPECT_NE(Progress::render("", "B", 1, 122, 1.0, 200).find(", 3 min left"), std::string::npos);
  EXPECT_NE(Progress::render("", "B", 1, 7202, 1.0, 200).find(", 2 h 01 min left"), std::string::npos);
  for (int width = 0; width < 90; ++width) {
    EXPECT_LE(Progress::render("reading", "tokens", 7, 9, 0.0, width).size(), static_cast<std::size_t>(width));
  }
}

// ---- hash ----

TEST(Hash, IsXxh3OfTheRowsInOrder) {
  EXPECT_EQ(LogitsHash().hex(), "99aa06d3014798d86001c324468d497f");  // the published value of no bytes
  const std::vector<float> a{1, 2, 3}, b{4, 5, 6}, ab{1, 2, 3, 4, 5, 6};
  LogitsHash rows, whole, swapped;
  rows.add(a);
  rows.add(b);
  whole.add(ab);
  swapped.add(b);
  swapped.add(a);
  EXPECT_EQ(rows.hex(), whole.hex());
  EXPECT_NE(rows.hex(), swapped.hex());
  EXPECT_EQ(rows.rows(), 2U);
}

}  // namespace
}  // namespace tandem
