// Where the chat's messages come from: a terminal with line editing, or lines of a pipe.
#pragma once

#include <termios.h>

#include <filesystem>
#include <memory>
#include <string>

namespace tandem {

struct ChatLine {
  enum class Kind {
    kText,
    kInterrupted,  // Ctrl-C; `text` is what stood on the line
    kEnd,          // Ctrl-D on an empty line, or the end of the pipe
  };
  Kind kind = Kind::kEnd;
  std::string text;
};

class ChatInput {
 public:
  virtual ~ChatInput() = default;
  virtual ChatLine read_line(const std::string& prompt) = 0;
  // Remembers a message for the arrow keys. Never fails: a history file that cannot be written is left alone.
  virtual void remember(const std::string& message) = 0;
};

// libedit on the terminal: editing keys, history (Up, Down, Ctrl-R), pasted text with its line feeds as one message,
// Alt-Enter for a line feed. `history`: file to load and to keep up to date, empty for none. Restores the terminal.
// REQUIRES standard input and output to be a terminal and catch_interrupts(InterruptMode::kEvery).
std::unique_ptr<ChatInput> make_terminal_input(const std::filesystem::path& history);

// One message a line, from standard input.
std::unique_ptr<ChatInput> make_pipe_input();

// While this lives, keys typed on the terminal do not show up in the middle of an answer; they wait for the next
// prompt.
class QuietKeys {
 public:
  explicit QuietKeys(bool enabled);
  ~QuietKeys();
  QuietKeys(const QuietKeys&) = delete;
  QuietKeys& operator=(const QuietKeys&) = delete;

 private:
  bool changed_ = false;
  termios before_{};
};

// One message from a terminal: a line; a line that ends in \ and the next one; or everything between """ at the
// beginning of a line and """ at the end of one. Kind as of the last line read; an interrupt drops all of them.
ChatLine read_message(ChatInput& input, const std::string& prompt, const std::string& continued);

}  // namespace tandem
