// The slash commands of the chat: one table for help, completion of names and dispatch.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/chat_screen.h"
#include "runtime/chat_session.h"
#include "runtime/engine.h"

namespace tandem {

class ChatCommands {
 public:
  enum class Next {
    kGoOn,
    kRetry,  // the caller answers the last message once more
    kQuit,
  };

  ChatCommands(ChatSession& session, ChatScreen& screen, const Engine& engine);

  // Runs "/name arguments". Throws InputError for an unknown name (naming the nearest) and for wrong arguments.
  Next run(std::string_view line);

  // Counted for /stats after every answer.
  void count(const AnswerReport& report);

 private:
  struct Command;
  static const std::vector<Command>& table();
  static const Command& find(std::string_view name);

  Next help(const std::string& arguments);
  Next start_anew(const std::string& arguments);
  Next system(const std::string& arguments);
  Next undo(const std::string& arguments);
  Next retry(const std::string& arguments);
  Next set(const std::string& arguments);
  Next think(const std::string& arguments);
  Next plan(const std::string& arguments);
  Next stats(const std::string& arguments);
  Next save(const std::string& arguments);
  Next load(const std::string& arguments);
  Next quit(const std::string& arguments);

  ChatSession& session_;
  ChatScreen& screen_;
  const Engine& engine_;
  std::size_t answers_ = 0, prompt_tokens_ = 0, answer_tokens_ = 0;
  double prompt_seconds_ = 0.0, decode_seconds_ = 0.0;
  DraftStats drafts_;
};

}  // namespace tandem
