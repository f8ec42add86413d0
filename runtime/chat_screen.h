// What the chat shows and where. On a terminal: answers, notes and results of commands on standard output, thinking
// and notes dimmed. From a pipe: answers only on standard output, everything else on standard error.
#pragma once

#include <string>
#include <string_view>

#include "runtime/chat_settings.h"

namespace tandem {

class ChatScreen {
 public:
  explicit ChatScreen(bool interactive);

  bool interactive() const { return interactive_; }
  void line(std::string_view text);   // result of a command
  void note(std::string_view text);   // [text], dimmed; a line of its own even in the middle of an answer
  void error(std::string_view text);  // what could not be done

  // One answer: thinking and answer text in the order they come, then end_answer, which ends the line. Folded thinking
  // shows how many tokens it has so far and leaves one line, "thought for N tokens, S s".
  void begin_answer(ThinkingView view);
  void thinking(std::string_view text, std::size_t tokens, double seconds);
  void answer(std::string_view text);
  void end_answer();

  // Text with control characters (other than line feed and tab) replaced, so that a model cannot drive the terminal.
  static std::string harmless(std::string_view text);

 private:
  void put(std::string_view text);
  void open_line();  // ends a line that has been begun
  void dim(bool on);
  void finish_thinking(bool answer_follows);

  bool interactive_, can_move_, can_color_;
  ThinkingView view_ = ThinkingView::kShow;
  bool dimmed_ = false;
  bool line_begun_ = false;
  bool thinking_open_ = false;  // thinking has come and nothing after it
  bool counter_drawn_ = false;  // the counter of folded thinking is on the present line
  std::size_t thinking_tokens_ = 0;
  double thinking_seconds_ = 0.0;
};

}  // namespace tandem
