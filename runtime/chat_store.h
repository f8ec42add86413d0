// A conversation as a JSON file (docs/formats.md, "Conversation file").
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/chat_session.h"
#include "runtime/chat_settings.h"
#include "runtime/draft_vocabulary.h"

namespace tandem {

struct StoredConversation {
  std::uint64_t fingerprint = 0;  // of the model that wrote it
  std::string model;              // its file name, for messages
  ChatSettings settings;
  std::size_t prefix = 0;  // tokens before the first turn
  std::vector<TokenId> tokens;
  std::vector<ChatTurn> turns;
};

// Written to a temporary name, synced and renamed. Throws InputError when it cannot be written.
void write_conversation(const std::filesystem::path& path, const StoredConversation& conversation);
// Throws InputError naming file and key for anything that is not such a file. Settings that the file does not hold come
// from `base`.
StoredConversation read_conversation(const std::filesystem::path& path, const ChatSettings& base);

std::filesystem::path state_path_of(const std::filesystem::path& conversation);  // .json replaced by .state

// Where /save and /load look for NAME: a path when it contains a slash, otherwise in the user's folder; ".json" is
// added when missing. Throws InputError for an empty name or an unknown user folder.
std::filesystem::path conversation_path(const std::string& name);
std::vector<std::string> saved_conversations();  // names in the user's folder, sorted
// All of them, for EngineOptions::saved_chats.
SavedChats read_saved_chats();

}  // namespace tandem
