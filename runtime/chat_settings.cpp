#include "runtime/chat_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <optional>
#include <sstream>

#include "placement/check.h"
#include "placement/suggest.h"

namespace tandem {
namespace {

// One row of the table. `set` gets the text as typed; `reset` restores the default; `chosen` is empty when the default
// is in force; `in_force` is what counts in the end.
struct Setting {
  std::string name, help;
  std::function<void(ChatSettings&, std::string_view)> set;
  std::function<void(ChatSettings&)> reset;
  std::function<std::optional<std::string>(const ChatSettings&)> chosen;
  std::function<std::string(const ChatSettings&, const SamplerSettings&)> in_force;
};

template <typename T>
T parse_number(std::string_view name, std::string_view text) {
  if constexpr (std::is_floating_point_v<T>) {
    // The C++ library of g++ 12 and the one of clang 14 both read floats here; from_chars is not in all of them.
    std::istringstream stream{std::string(text)};
    stream.imbue(std::locale::classic());
    T value{};
    if (stream >> value && stream.eof()) return value;
  } else {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc{} && end == text.data() + text.size()) return value;
  }
  fail_input("{}: expected a number, found \"{}\"", name, text);
}

template <typename T>
std::string number_text(T value) {
  return fmt::format("{}", value);
}

// A setting that lives in an optional of SamplingChoices and in the same place of SamplerSettings.
template <typename T>
Setting sampling_setting(std::string name, std::string help, std::optional<T> SamplingChoices::*choice,
                         T SamplerSettings::*effective) {
  return Setting{
      name,
      std::move(help),
      [name, choice](ChatSettings& s, std::string_view text) { s.sampling.*choice = parse_number<T>(name, text); },
      [choice](ChatSettings& s) { s.sampling.*choice = std::nullopt; },
      [choice](const ChatSettings& s) {
        const std::optional<T>& value = s.sampling.*choice;
        return value ? std::optional(number_text(*value)) : std::nullopt;
      },
      [effective](const ChatSettings&, const SamplerSettings& s) { return number_text(s.*effective); }};
}

// A setting of a few words, index in the list = value of the enum.
template <typename T>
Setting word_setting(std::string name, std::string help, const std::vector<std::string>& words,
                     T ChatSettings::*member) {
  const auto set = [name, words, member](ChatSettings& s, std::string_view text) {
    const auto found = std::find(words.begin(), words.end(), text);
    if (found == words.end()) {
      fail_input("{}: expected one of {}, found \"{}\"", name, fmt::join(words, ", "), text);
    }
    s.*member = static_cast<T>(found - words.begin());
  };
  const auto word = [words, member](const ChatSettings& s) { return words.at(static_cast<std::size_t>(s.*member)); };
  return Setting{
      name,
      std::move(help),
      set,
      [member](ChatSettings& s) { s.*member = T{}; },
      [word, member](const ChatSettings& s) { return s.*member == T{} ? std::nullopt : std::optional(word(s)); },
      [word](const ChatSettings& s, const SamplerSettings&) { return word(s); }};
}

Setting max_tokens_setting() {
  return Setting{
      "max-tokens",
      "an answer ends after N tokens, 0 for as many as fit",
      [](ChatSettings& s, std::string_view text) { s.max_tokens = parse_number<std::size_t>("max-tokens", text); },
      [](ChatSettings& s) { s.max_tokens = 0; },
      [](const ChatSettings& s) { return s.max_tokens == 0 ? std::nullopt : std::optional(number_text(s.max_tokens)); },
      [](const ChatSettings& s, const SamplerSettings&) { return number_text(s.max_tokens); }};
}

Setting effort_setting() {
  return Setting{"effort",
                 "how long the model thinks: low, medium, xhigh",
                 [](ChatSettings& s, std::string_view text) {
                   if (text != "low" && text != "medium" && text != "xhigh") {
                     fail_input("effort: expected one of low, medium, xhigh, found \"{}\"", text);
                   }
                   s.chat.effort = text;
                 },
                 [](ChatSettings& s) { s.chat.effort = ChatChoices{}.effort; },
                 [](const ChatSettings& s) {
                   return s.chat.effort == ChatChoices{}.effort ? std::nullopt : std::optional(s.chat.effort);
                 },
                 [](const ChatSettings& s, const SamplerSettings&) { return s.chat.effort; }};
}

std::vector<Setting> make_table() {
  using C = SamplingChoices;
  using S = SamplerSettings;
  return {
      sampling_setting("temperature", "0 for greedy, else 0.01 to 100", &C::temperature, &S::temperature),
      sampling_setting("top-k", "keep the K best tokens, 0 for all", &C::top_k, &S::top_k),
      sampling_setting("top-p", "keep the best tokens that together reach this probability", &C::top_p, &S::top_p),
      sampling_setting("min-p", "keep tokens with this share of the best one's probability", &C::min_p, &S::min_p),
      sampling_setting("presence-penalty", "against tokens that the answer already holds", &C::presence_penalty,
                       &S::presence_penalty),
      sampling_setting("repetition-penalty", "against tokens of prompt and answer, 1 for off", &C::repetition_penalty,
                       &S::repetition_penalty),
      sampling_setting("penalty-window", "how many of the last tokens penalties look at, 0 for all", &C::penalty_window,
                       &S::penalty_window),
      sampling_setting("seed", "the same seed gives the same text", &C::seed, &S::seed),
      max_tokens_setting(),
      effort_setting(),
      word_setting<Overflow>("overflow", "context full: trim (drop the oldest turns) or stop", {"trim", "stop"},
                             &ChatSettings::overflow),
      word_setting<ThinkingView>("thinking", "how thinking is displayed: show, fold, hide", {"show", "fold", "hide"},
                                 &ChatSettings::view),
  };
}

const std::vector<Setting>& table() {
  static const std::vector<Setting> rows = make_table();
  return rows;
}

const Setting& find_setting(std::string_view name) {
  for (const Setting& setting : table()) {
    if (setting.name == name) return setting;
  }
  const std::string near = nearest_name(name, setting_names());
  fail_input("unknown setting \"{}\"{}", name, near.empty() ? "; /set lists them" : "; did you mean " + near + "?");
}

}  // namespace

const std::vector<std::string>& setting_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> result;
    for (const Setting& setting : table()) result.push_back(setting.name);
    return result;
  }();
  return names;
}

std::string_view setting_help(std::string_view name) {
  return find_setting(name).help;
}

void change_setting(ChatSettings& settings, std::string_view name, std::string_view value) {
  const Setting& setting = find_setting(name);
  ChatSettings changed = settings;
  if (value == "default") {
    setting.reset(changed);
  } else {
    setting.set(changed, value);
  }
  // Any recommendation is in range, so this judges the choices alone.
  resolve_sampling(changed.sampling, SamplingHints{1.0F, 1.0F, 0.0F, 0.0F, 0, {}}, 0);
  settings = changed;
}

std::string show_setting(const ChatSettings& settings, std::string_view name, const SamplingHints& hints) {
  return find_setting(name).in_force(settings, resolve_sampling(settings.sampling, hints, settings.random_seed));
}

bool setting_is_chosen(const ChatSettings& settings, std::string_view name) {
  return find_setting(name).chosen(settings).has_value();
}

nlohmann::ordered_json settings_to_json(const ChatSettings& settings) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  json["think"] = settings.chat.thinking;
  json["system"] = settings.chat.system;
  json["stop"] = settings.stop_strings;
  for (const Setting& setting : table()) {
    if (const auto value = setting.chosen(settings)) json[setting.name] = *value;
  }
  return json;
}

ChatSettings settings_from_json(const nlohmann::json& json, const std::string& where, const ChatSettings& base) {
  if (!json.is_object()) fail_input("{}: settings: expected an object, found {}", where, json.type_name());
  ChatSettings settings = base;
  for (const std::string& name : setting_names()) change_setting(settings, name, "default");
  for (const auto& [key, value] : json.items()) {
    try {
      if (key == "think") {
        settings.chat.thinking = value.get<bool>();
      } else if (key == "system") {
        settings.chat.system = value.get<std::string>();
      } else if (key == "stop") {
        settings.stop_strings = value.get<std::vector<std::string>>();
      } else {
        change_setting(settings, key, value.get<std::string>());
      }
    } catch (const nlohmann::json::exception&) {
      fail_input("{}: settings.{}: expected another type, found {}", where, key, value.type_name());
    } catch (const InputError& error) {
      fail_input("{}: settings: {}", where, error.what());
    }
  }
  return settings;
}

}  // namespace tandem
