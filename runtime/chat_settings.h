// Everything that /set, /think and /system can change, by name: one table for changing, showing, saving and loading.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

#include "runtime/session_options.h"

namespace tandem {

// What happens when the conversation no longer fits the context.
enum class Overflow {
  kTrim,  // the oldest turns go (never the system message), visibly, and the rest is read again
  kStop,  // the message is refused, or the answer ends
};

enum class ThinkingView { kShow, kFold, kHide };

struct ChatSettings {
  ChatChoices chat;
  SamplingChoices sampling;       // `greedy` is not used: it is temperature 0
  std::uint64_t random_seed = 0;  // counts while no seed is chosen
  std::size_t max_tokens = 0;     // of one answer, 0: as many as fit
  std::vector<std::string> stop_strings;
  Overflow overflow = Overflow::kTrim;
  ThinkingView view = ThinkingView::kShow;
};

// The names that /set knows.
const std::vector<std::string>& setting_names();
std::string_view setting_help(std::string_view name);

// Changes one setting from text; "default" goes back to the recommendation. Throws InputError that names the nearest
// setting, or the values that are possible; the settings are then unchanged.
void change_setting(ChatSettings& settings, std::string_view name, std::string_view value);

// The value in force as text; `hints` is what the model recommends.
std::string show_setting(const ChatSettings& settings, std::string_view name, const SamplingHints& hints);
bool setting_is_chosen(const ChatSettings& settings, std::string_view name);  // not the recommendation or default

// The chosen ones, and back. from_json throws InputError naming `where` and the key.
nlohmann::ordered_json settings_to_json(const ChatSettings& settings);
ChatSettings settings_from_json(const nlohmann::json& json, const std::string& where, const ChatSettings& base);

}  // namespace tandem
