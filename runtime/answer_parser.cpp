#include <algorithm>
#include <optional>

#include "runtime/chat_template.h"
#include "runtime/python_json.h"

namespace tandem {
namespace {

constexpr std::string_view kWhiteSpace = " \t\r\n";
constexpr std::string_view kCallBegin = "<tool_call>";
constexpr std::string_view kCallEnd = "</tool_call>";
constexpr std::string_view kFunctionBegin = "<function=";
constexpr std::string_view kFunctionEnd = "</function>";
constexpr std::string_view kParameterBegin = "<parameter=";
constexpr std::string_view kParameterEnd = "</parameter>";

std::string_view without_leading_space(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(kWhiteSpace), text.size()));
}

// Removes `prefix` from the beginning of `text`; false when it is not there.
bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// Removes and returns NAME from "NAME>"; nothing when the line holds no such thing.
std::optional<std::string> take_name(std::string_view& text) {
  const std::size_t end = text.find_first_of(">\n");
  if (end == std::string_view::npos || end == 0 || text[end] != '>') return std::nullopt;
  std::string name(text.substr(0, end));
  text.remove_prefix(end + 1);
  return name;
}

nlohmann::ordered_json parameter_value(std::string_view text) {
  if (auto value = parse_json(text); value && !value->is_string() && python_json(*value) == text) return *value;
  return std::string(text);
}

// Removes and returns VALUE from "\nVALUE\n</parameter>". The value may contain the end marker: the one that counts is
// followed by another parameter or the end of the function.
std::optional<std::string_view> take_value(std::string_view& text) {
  for (std::size_t at = text.find(kParameterEnd); at != std::string_view::npos; at = text.find(kParameterEnd, at + 1)) {
    const std::string_view after = without_leading_space(text.substr(at + kParameterEnd.size()));
    if (!after.starts_with(kParameterBegin) && !after.starts_with(kFunctionEnd)) continue;
    std::string_view value = text.substr(0, at);
    take(value, "\n");
    if (value.ends_with('\n')) value.remove_suffix(1);
    text = after;
    return value;
  }
  return std::nullopt;
}

// Both take a call from behind <tool_call>, its </tool_call> included, and leave `text` alone when there is none.
std::optional<ToolCall> take_function_call(std::string_view& text) {
  std::string_view rest = without_leading_space(text);
  if (!take(rest, kFunctionBegin)) return std::nullopt;
  const auto name = take_name(rest);
  if (!name) return std::nullopt;
  ToolCall call{*name, nlohmann::ordered_json::object()};
  rest = without_leading_space(rest);
  while (take(rest, kParameterBegin)) {
    const auto key = take_name(rest);
    if (!key) return std::nullopt;
    const auto value = take_value(rest);
    if (!value) return std::nullopt;
    call.arguments[*key] = parameter_value(*value);
  }
  if (!take(rest, kFunctionEnd)) return std::nullopt;
  rest = without_leading_space(rest);
  if (!take(rest, kCallEnd)) return std::nullopt;
  text = rest;
  return call;
}

std::optional<ToolCall> take_json_call(std::string_view& text) {
  const std::size_t end = text.find(kCallEnd);
  if (end == std::string_view::npos) return std::nullopt;
  const auto json = parse_json(text.substr(0, end));
  if (!json || !json->is_object()) return std::nullopt;
  const auto name = json->find("name");
  if (name == json->end() || !name->is_string()) return std::nullopt;
  ToolCall call{name->get<std::string>(), nlohmann::ordered_json::object()};
  if (const auto arguments = json->find("arguments"); arguments != json->end()) {
    if (!arguments->is_object()) return std::nullopt;
    call.arguments = *arguments;
  }
  text.remove_prefix(end + kCallEnd.size());
  return call;
}

// Takes the reasoning and the line feeds around </think>; all of `rest` when the reasoning has not ended.
std::string take_reasoning(std::string_view& rest) {
  constexpr std::string_view kThinkEnd = "</think>";
  const std::size_t end = rest.find(kThinkEnd);
  std::string_view reasoning = rest.substr(0, end);
  if (end == std::string_view::npos) {
    rest = {};
    return std::string(reasoning);
  }
  if (reasoning.ends_with('\n')) reasoning.remove_suffix(1);
  rest.remove_prefix(end + kThinkEnd.size());
  if (take(rest, "\n")) take(rest, "\n");
  return std::string(reasoning);
}

}  // namespace

ParsedAnswer parse_answer(std::string_view text, bool starts_in_thinking) {
  ParsedAnswer answer;
  std::string_view rest = text;
  if (starts_in_thinking) {
    answer.reasoning = take_reasoning(rest);
  } else if (take(rest, "<think>")) {
    take(rest, "\n");
    answer.reasoning = take_reasoning(rest);
  }
  // White space between and after calls separates them and says nothing.
  const auto add_content = [&](std::string_view part) {
    if (answer.tool_calls.empty() || !without_leading_space(part).empty()) answer.content += part;
  };
  while (true) {
    const std::size_t at = rest.find(kCallBegin);
    if (at == std::string_view::npos) break;
    std::string_view after = rest.substr(at + kCallBegin.size());
    auto call = take_function_call(after);
    if (!call) call = take_json_call(after);
    if (call) {
      add_content(rest.substr(0, at));
      answer.tool_calls.push_back(std::move(*call));
    } else {
      add_content(rest.substr(0, at + kCallBegin.size()));
    }
    rest = after;
  }
  add_content(rest);
  return answer;
}

}  // namespace tandem
