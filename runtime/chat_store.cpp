#include "runtime/chat_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "placement/check.h"
#include "placement/files.h"
#include "runtime/environment.h"

namespace tandem {
namespace {

constexpr const char* kFormat = "tandem-conversation";
constexpr int kVersion = 1;

// A file that is there as a whole or not at all. Private to the user: it holds what was said.
nlohmann::json read_json(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path))
    fail_input("{}: expected a conversation file, found a folder", path.string());
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_input("{}: expected a conversation file, found nothing that can be read", path.string());
  nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
  if (json.is_discarded()) fail_input("{}: expected JSON, found something else (a damaged file?)", path.string());
  return json;
}

// Typed access that names file and key.
class Reader {
 public:
  Reader(const nlohmann::json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json.is_object()) fail_input("{}: expected an object, found {}", where_, json.type_name());
  }
  const nlohmann::json& at(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) fail_input("{}: expected the key \"{}\", found none", where_, key);
    return *found;
  }
  template <typename T>
  T get(const char* key, const char* expected) const {
    const nlohmann::json& value = at(key);
    const bool right_kind = std::is_same_v<T, std::string> ? value.is_string()
                            : std::is_same_v<T, bool>      ? value.is_boolean()
                                                           : value.is_number_unsigned();
    if (!right_kind) fail_input("{}: {}: expected {}, found {}", where_, key, expected, value.type_name());
    return value.get<T>();
  }
  const std::string& where() const { return where_; }

 private:
  const nlohmann::json& json_;
  std::string where_;
};

std::vector<TokenId> read_tokens(const Reader& reader) {
  const nlohmann::json& list = reader.at("tokens");
  if (!list.is_array()) fail_input("{}: tokens: expected a list, found {}", reader.where(), list.type_name());
  std::vector<TokenId> tokens;
  tokens.reserve(list.size());
  for (const nlohmann::json& id : list) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > INT32_MAX) {
      fail_input("{}: tokens: expected token ids, found {} at index {}", reader.where(), id.dump(), tokens.size());
    }
    tokens.push_back(id.get<TokenId>());
  }
  return tokens;
}

ChatTurn read_turn(const nlohmann::json& json, const std::string& where) {
  const Reader reader(json, where);
  ChatTurn turn;
  turn.user = reader.get<std::string>("user", "text");
  turn.thinking = reader.get<std::string>("thinking", "text");
  turn.answer = reader.get<std::string>("answer", "text");
  turn.with_thinking = reader.get<bool>("with_thinking", "true or false");
  turn.first_token = reader.get<std::size_t>("first_token", "a token index");
  return turn;
}

// The turns must lie one after the other in the tokens, from the prefix on.
void check_order(const StoredConversation& conversation, const std::string& where) {
  std::size_t least = conversation.prefix;
  for (std::size_t i = 0; i < conversation.turns.size(); ++i) {
    const std::size_t first = conversation.turns[i].first_token;
    const bool right_place = i == 0 ? first == least : first >= least;
    if (!right_place || first >= conversation.tokens.size()) {
      fail_input("{}: turns[{}].first_token: expected {} {} below {}, found {}", where, i,
                 i == 0 ? "exactly" : "at least", least, conversation.tokens.size(), first);
    }
    least = first + 1;
  }
  if (conversation.turns.empty() && conversation.prefix != conversation.tokens.size()) {
    fail_input("{}: prefix: expected {} (there are no turns), found {}", where, conversation.tokens.size(),
               conversation.prefix);
  }
}

}  // namespace

void write_conversation(const std::filesystem::path& path, const StoredConversation& conversation) {
  nlohmann::ordered_json json;
  json["format"] = kFormat;
  json["version"] = kVersion;
  json["model"] = {{"file", conversation.model}, {"fingerprint", fmt::format("{:016x}", conversation.fingerprint)}};
  json["settings"] = settings_to_json(conversation.settings);
  json["prefix"] = conversation.prefix;
  json["turns"] = nlohmann::ordered_json::array();
  for (const ChatTurn& turn : conversation.turns) {
    json["turns"].push_back({{"user", turn.user},
                             {"thinking", turn.thinking},
                             {"answer", turn.answer},
                             {"with_thinking", turn.with_thinking},
                             {"first_token", turn.first_token}});
  }
  json["tokens"] = conversation.tokens;
  // A message may hold any bytes, JSON text may not; the tokens keep them exactly.
  write_file(path, json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n", true);
}

StoredConversation read_conversation(const std::filesystem::path& path, const ChatSettings& base) {
  const nlohmann::json json = read_json(path);
  const std::string where = path.string();
  const Reader reader(json, where);
  const auto format = reader.get<std::string>("format", "text");
  if (format != kFormat) fail_input("{}: format: expected \"{}\", found \"{}\"", where, kFormat, format);
  const auto version = reader.get<std::uint64_t>("version", "a number");
  if (version != kVersion) fail_input("{}: version: expected {}, found {}", where, kVersion, version);

  StoredConversation result;
  const Reader model(reader.at("model"), where + ": model");
  result.model = model.get<std::string>("file", "text");
  const auto hex = model.get<std::string>("fingerprint", "text");
  const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), result.fingerprint, 16);
  if (error != std::errc{} || end != hex.data() + hex.size()) {
    fail_input("{}: model.fingerprint: expected 16 hexadecimal digits, found \"{}\"", where, hex);
  }
  result.settings = settings_from_json(reader.at("settings"), where, base);
  result.prefix = reader.get<std::size_t>("prefix", "a token index");
  result.tokens = read_tokens(reader);
  const nlohmann::json& turns = reader.at("turns");
  if (!turns.is_array()) fail_input("{}: turns: expected a list, found {}", where, turns.type_name());
  for (const nlohmann::json& turn : turns) {
    result.turns.push_back(read_turn(turn, fmt::format("{}: turns[{}]", where, result.turns.size())));
  }
  check_order(result, where);
  return result;
}

std::filesystem::path state_path_of(const std::filesystem::path& conversation) {
  std::filesystem::path state = conversation;
  return state.replace_extension(".state");
}

std::filesystem::path conversation_path(const std::string& name) {
  if (name.empty() || name == "." || name == "..")
    fail_input("expected a name for the conversation, found \"{}\"", name);
  std::filesystem::path path = name;
  if (path.extension() != ".json") path += ".json";
  if (name.find('/') != std::string::npos) return path;
  const std::filesystem::path folder = user_state_folder();
  if (folder.empty()) {
    fail_input(
        "no folder for conversations: expected HOME or XDG_STATE_HOME to be set. Fix: set one, or give a path "
        "with a slash, such as ./{}",
        name);
  }
  return folder / "chats" / path;
}

std::vector<std::string> saved_conversations() {
  std::vector<std::string> names;
  std::error_code ignored;
  const std::filesystem::path folder = user_state_folder() / "chats";
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

SavedChats read_saved_chats() {
  SavedChats saved;
  for (const std::string& name : saved_conversations()) {
    try {
      StoredConversation stored = read_conversation(conversation_path(name), {});
      SavedChat chat{stored.fingerprint, std::move(stored.tokens), {}};
      for (const ChatTurn& turn : stored.turns)
        for (const std::string* part : {&turn.user, &turn.thinking, &turn.answer}) chat.text += *part + "\n";
      saved.chats.push_back(std::move(chat));
    } catch (const InputError& problem) {
      saved.problems.emplace_back(problem.what());
    }
  }
  return saved;
}

// ---- the session's side ----

void ChatSession::save(const std::filesystem::path& path) const {
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  if (error) fail_input("{}: expected to make this folder, found: {}", path.parent_path().string(), error.message());
  const std::uint64_t fingerprint = engine_.model().fingerprint();
  state_.save(state_path_of(path), fingerprint);
  const std::string model = std::filesystem::path(engine_.model().gguf().name()).filename().string();
  write_conversation(path, StoredConversation{fingerprint, model, settings_, prefix_, tokens_, turns_});
}

std::string ChatSession::load(const std::filesystem::path& path) {
  StoredConversation stored = read_conversation(path, settings_);
  const std::uint64_t fingerprint = engine_.model().fingerprint();
  std::string note;
  if (stored.fingerprint == fingerprint) {
    const auto size = static_cast<TokenId>(engine_.tokenizer().size());
    const auto beyond =
        std::find_if(stored.tokens.begin(), stored.tokens.end(), [&](TokenId id) { return id >= size; });
    if (beyond != stored.tokens.end()) {
      fail_input("{}: tokens: expected ids below {}, found {}", path.string(), size, *beyond);
    }
  }
  settings_ = stored.settings;
  if (stored.fingerprint != fingerprint) {
    note =
        fmt::format("this conversation was held with another model ({}); it is read again from its text", stored.model);
    stored.tokens = rebuild_tokens(stored.turns);
    stored.prefix = system_prefix().size();
  }
  turns_ = std::move(stored.turns);
  tokens_ = std::move(stored.tokens);
  prefix_ = stored.prefix;
  attempt_ = 0;
  checkpoints_.clear();
  state_.reset();
  if (!note.empty()) return note;
  try {
    state_.restore(state_path_of(path), fingerprint);
  } catch (const InputError& problem) {
    note = fmt::format("the conversation is read again ({} tokens), because its saved state cannot be used: {}",
                       tokens_.size(), problem.what());
  }
  return note;
}

}  // namespace tandem
