#include "runtime/chat_screen.h"

#include <fmt/format.h>
#include <unistd.h>

#include "runtime/environment.h"
#include "runtime/output.h"

namespace tandem {

ChatScreen::ChatScreen(bool interactive)
    : interactive_(interactive),
      can_move_(interactive && terminal_can_move(STDOUT_FILENO)),
      can_color_(interactive && terminal_can_color(STDOUT_FILENO)) {}

std::string ChatScreen::harmless(std::string_view text) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool c1 = byte == 0xC2 && i + 1 < text.size() && (static_cast<unsigned char>(text[i + 1]) & 0xE0U) == 0x80;
    if (c1) ++i;
    if (c1 || byte == 0x7F || (byte < 0x20 && byte != '\n' && byte != '\t')) {
      result += kReplacement;
    } else {
      result += text[i];
    }
  }
  return result;
}

void ChatScreen::put(std::string_view text) {
  if (text.empty()) return;
  write_stdout(text);
  line_begun_ = text.back() != '\n';
}

void ChatScreen::open_line() {
  dim(false);
  if (counter_drawn_) {
    write_stdout("\r\x1b[K");
    counter_drawn_ = line_begun_ = false;
  }
  if (line_begun_) put("\n");
}

void ChatScreen::dim(bool on) {
  if (!can_color_ || dimmed_ == on) return;
  write_stdout(on ? "\x1b[2m" : "\x1b[0m");
  dimmed_ = on;
}

void ChatScreen::line(std::string_view text) {
  if (!interactive_) return write_stderr(fmt::format("{}\n", text));
  open_line();
  put(fmt::format("{}\n", text));
}

void ChatScreen::note(std::string_view text) {
  if (!interactive_) return write_stderr(fmt::format("tandem: note: {}\n", text));
  open_line();
  dim(true);
  put(fmt::format("[{}]", text));
  dim(false);
  put("\n");
}

void ChatScreen::error(std::string_view text) {
  if (!interactive_) return write_stderr(fmt::format("tandem: error: {}\n", text));
  open_line();
  put(fmt::format("error: {}\n", text));
}

void ChatScreen::begin_answer(ThinkingView view) {
  view_ = view;
  thinking_open_ = false;
}

void ChatScreen::thinking(std::string_view text, std::size_t tokens, double seconds) {
  if (!interactive_ || view_ == ThinkingView::kHide) return;
  thinking_tokens_ = tokens;
  thinking_seconds_ = seconds;
  if (view_ == ThinkingView::kFold) {
    thinking_open_ = true;
    if (!can_move_) return;
    dim(true);
    put(fmt::format("\r[thinking: {} tokens]", tokens));
    counter_drawn_ = true;
    return;
  }
  if (text.empty()) return;
  // Without colours the border has to be visible in another way.
  if (!thinking_open_ && !can_color_) put("[thinking]\n");
  thinking_open_ = true;
  dim(true);
  put(harmless(text));
}

// Before the first character of the answer, or at the end when there is none.
void ChatScreen::finish_thinking(bool answer_follows) {
  if (!thinking_open_) return;
  thinking_open_ = false;
  if (view_ == ThinkingView::kFold) {
    note(fmt::format("thought for {} tokens, {:.1f} s", thinking_tokens_, thinking_seconds_));
    return;
  }
  open_line();
  if (answer_follows) put(can_color_ ? "\n" : "[answer]\n");
}

void ChatScreen::answer(std::string_view text) {
  if (!interactive_) return put(text);
  finish_thinking(true);
  put(harmless(text));
}

void ChatScreen::end_answer() {
  if (!interactive_) return put("\n");
  finish_thinking(false);
  open_line();
}

}  // namespace tandem
