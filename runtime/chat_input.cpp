#include "runtime/chat_input.h"

#include <histedit.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cwchar>
#include <iostream>

#include "placement/check.h"
#include "runtime/environment.h"
#include "runtime/interrupt.h"
#include "runtime/output.h"
#include "runtime/utf8.h"

namespace tandem {
namespace {

volatile std::sig_atomic_t resized_flag = 0;    // SIGWINCH
volatile std::sig_atomic_t continued_flag = 0;  // SIGCONT: back from the background

void on_resize(int) {
  resized_flag = 1;
  wake();
}
void on_continue(int) {
  continued_flag = 1;
  wake();
}

void catch_signal(int number, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  CHECK(sigaction(number, &action, nullptr) == 0);
}

class TerminalInput : public ChatInput {
 public:
  explicit TerminalInput(std::filesystem::path history_file) : history_file_(std::move(history_file)) {
    edit_ = el_init("tandem", stdin, stdout, stderr);
    history_ = history_init();
    if (edit_ == nullptr || history_ == nullptr) fail_input("terminal: expected to set up line editing, but it failed");
    HistEvent event;
    history(history_, &event, H_SETSIZE, kHistorySize);
    history(history_, &event, H_SETUNIQUE, 1);
    if (!history_file_.empty()) history(history_, &event, H_LOAD, history_file_.c_str());
    configure_editor();
    wake_fd();  // before the first handler that needs it
    catch_signal(SIGWINCH, on_resize);
    catch_signal(SIGCONT, on_continue);
  }
  ~TerminalInput() override {
    el_end(edit_);
    history_end(history_);
    catch_signal(SIGWINCH, SIG_DFL);
    catch_signal(SIGCONT, SIG_DFL);
  }

  ChatLine read_line(const std::string& prompt) override {
    prompt_ = prompt;
    // Before the prompt: what is typed at once must not be echoed by the terminal as well.
    if (terminal_can_move(STDIN_FILENO)) el_set(edit_, EL_PREP_TERM, 1);
    paste_mode(true);
    int count = 0;
    const char* line = el_gets(edit_, &count);
    const bool failed = line == nullptr || count <= 0;
    ChatLine result{ChatLine::Kind::kText, failed ? std::string{} : std::string(line, static_cast<std::size_t>(count))};
    if (failed) result.kind = interrupted() ? ChatLine::Kind::kInterrupted : ChatLine::Kind::kEnd;
    if (result.kind == ChatLine::Kind::kInterrupted) {
      const LineInfo* info = el_line(edit_);
      result.text.assign(info->buffer, info->lastchar);
      el_reset(edit_);
      clear_interrupt();
    }
    paste_mode(false);
    if (failed) write_stdout("\n");
    if (!failed && result.text.ends_with('\n')) result.text.pop_back();
    return result;
  }

  void remember(const std::string& message) override {
    HistEvent event;
    history(history_, &event, H_ENTER, message.c_str());
    if (history_file_.empty()) return;
    std::error_code ignored;
    std::filesystem::create_directories(history_file_.parent_path(), ignored);
    history(history_, &event, H_SAVE, history_file_.c_str());
  }

 private:
  static constexpr int kHistorySize = 1000;

  void configure_editor() {
    el_set(edit_, EL_CLIENTDATA, this);
    el_set(edit_, EL_PROMPT, &TerminalInput::prompt_of);
    el_set(edit_, EL_EDITOR, "emacs");
    el_set(edit_, EL_HIST, history, history_);
    el_set(edit_, EL_SIGNAL, 0);
    el_set(edit_, EL_GETCFN, &TerminalInput::read_key);
    el_set(edit_, EL_ADDFN, "tandem-paste", "insert pasted text", &TerminalInput::insert_paste);
    el_set(edit_, EL_ADDFN, "tandem-newline", "insert a line feed", &TerminalInput::insert_line_feed);
    const char* const bindings[][2] = {
        {"\\e[200~", "tandem-paste"},      {"\\e\\r", "tandem-newline"}, {"\\e\\n", "tandem-newline"},
        {"\\e[3~", "ed-delete-next-char"}, {"\\e[1;5C", "em-next-word"}, {"\\e[1;5D", "ed-prev-word"},
        {"\\e[1~", "ed-move-to-beg"},      {"\\e[4~", "ed-move-to-end"}, {"\\e[H", "ed-move-to-beg"},
        {"\\e[F", "ed-move-to-end"},       {"^R", "em-inc-search-prev"}, {"^W", "ed-delete-prev-word"},
    };
    for (const auto& [keys, function] : bindings) el_set(edit_, EL_BIND, keys, function, nullptr);
    el_source(edit_, nullptr);  // the user's own ~/.editrc comes last
  }

  static TerminalInput& self_of(EditLine* edit) {
    void* self = nullptr;
    el_get(edit, EL_CLIENTDATA, &self);
    return *static_cast<TerminalInput*>(self);
  }

  static char* prompt_of(EditLine* edit) { return self_of(edit).prompt_.data(); }

  // Bracketed paste: the terminal marks what comes from the clipboard, so its line feeds do not send the message.
  void paste_mode(bool on) {
    if (!terminal_can_move(STDOUT_FILENO)) return;
    write_stdout(on ? "\x1b[?2004h" : "\x1b[?2004l");
  }

  // One byte from the terminal. Returns 1, 0 at the end, -1 for an interrupt.
  int read_byte(unsigned char& byte) {
    for (;;) {
      if (interrupted()) {
        errno = EINTR;
        return -1;
      }
      if (resized_flag != 0 || continued_flag != 0) {
        resized_flag = 0;
        continued_flag = 0;
        el_resize(edit_);
        el_set(edit_, EL_REFRESH);
      }
      pollfd ready[2] = {{STDIN_FILENO, POLLIN, 0}, {wake_fd(), POLLIN, 0}};
      if (poll(ready, 2, -1) < 0) continue;
      if (ready[1].revents != 0) {
        drain_wakes();
        continue;
      }
      const ssize_t n = read(STDIN_FILENO, &byte, 1);
      if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      return n > 0 ? 1 : 0;
    }
  }

  // One character for libedit. What is no UTF-8 is dropped: a keyboard does not make it.
  static int read_key(EditLine* edit, wchar_t* out) {
    TerminalInput& self = self_of(edit);
    std::string bytes;
    for (;;) {
      unsigned char byte = 0;
      const int got = self.read_byte(byte);
      if (got <= 0) return got;
      bytes += static_cast<char>(byte);
      const Utf8Step step = utf8_step(bytes);
      if (step.kind == Utf8Step::Kind::kIncomplete) continue;
      if (step.kind == Utf8Step::Kind::kCharacter) break;
      bytes.clear();
    }
    // A Ctrl-D typed while the terminal still collected whole lines comes out of it as a zero byte.
    if (bytes[0] == '\0') bytes[0] = '\x04';
    std::mbstate_t state{};
    if (std::mbrtowc(out, bytes.data(), bytes.size(), &state) != bytes.size()) *out = L'?';
    return 1;
  }

  static unsigned char insert_paste(EditLine* edit, int /*key*/) {
    TerminalInput& self = self_of(edit);
    constexpr std::string_view kEnd = "\x1b[201~";
    std::string text;
    while (!text.ends_with(kEnd)) {
      unsigned char byte = 0;
      if (self.read_byte(byte) <= 0) return CC_EOF;
      text += byte == '\r' ? '\n' : static_cast<char>(byte);
    }
    text.resize(text.size() - kEnd.size());
    while (text.ends_with('\n')) text.pop_back();  // copying whole lines should not leave an empty one
    return el_insertstr(edit, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
  }

  static unsigned char insert_line_feed(EditLine* edit, int /*key*/) {
    return el_insertstr(edit, "\n") == 0 ? CC_REFRESH : CC_ERROR;
  }

  std::filesystem::path history_file_;
  EditLine* edit_ = nullptr;
  History* history_ = nullptr;
  std::string prompt_;
};

class PipeInput : public ChatInput {
 public:
  ChatLine read_line(const std::string&) override {
    ChatLine line;
    if (!std::getline(std::cin, line.text)) return line;
    line.kind = ChatLine::Kind::kText;
    if (line.text.ends_with('\r')) line.text.pop_back();
    return line;
  }
  void remember(const std::string&) override {}
};

// Everything up to a line that ends in """; `first` is what followed the opening one.
ChatLine read_block(ChatInput& input, const std::string& first, const std::string& continued) {
  constexpr std::string_view kFence = "\"\"\"";
  ChatLine message{ChatLine::Kind::kText, first};
  while (!message.text.ends_with(kFence)) {
    ChatLine line = input.read_line(continued);
    if (line.kind != ChatLine::Kind::kText) return line;
    message.text += "\n" + line.text;
  }
  message.text.resize(message.text.size() - kFence.size());
  // The fences may stand on lines of their own.
  if (message.text.starts_with('\n')) message.text.erase(0, 1);
  if (message.text.ends_with('\n')) message.text.pop_back();
  return message;
}

}  // namespace

std::unique_ptr<ChatInput> make_terminal_input(const std::filesystem::path& history) {
  return std::make_unique<TerminalInput>(history);
}

std::unique_ptr<ChatInput> make_pipe_input() {
  return std::make_unique<PipeInput>();
}

QuietKeys::QuietKeys(bool enabled) {
  if (!enabled || tcgetattr(STDIN_FILENO, &before_) != 0) return;
  termios quiet = before_;
  quiet.c_lflag &= ~static_cast<tcflag_t>(ECHO);
  changed_ = tcsetattr(STDIN_FILENO, TCSANOW, &quiet) == 0;
}

QuietKeys::~QuietKeys() {
  if (changed_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

ChatLine read_message(ChatInput& input, const std::string& prompt, const std::string& continued) {
  ChatLine message = input.read_line(prompt);
  if (message.kind != ChatLine::Kind::kText) return message;
  if (message.text.starts_with("\"\"\"")) return read_block(input, message.text.substr(3), continued);
  while (message.text.ends_with('\\')) {
    message.text.back() = '\n';
    ChatLine line = input.read_line(continued);
    if (line.kind != ChatLine::Kind::kText) return line;
    message.text += line.text;
  }
  return message;
}

}  // namespace tandem
