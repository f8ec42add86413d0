#include "runtime/template_wording.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>

namespace tandem {
namespace {

using Kind = JinjaToken::Kind;
using Tokens = std::vector<JinjaToken>;

constexpr std::string_view kSystemBegin = "<|im_start|>system\n";
constexpr std::string_view kTurnEnd = "<|im_end|>\n";

bool is_level(std::string_view text) {
  constexpr std::array<std::string_view, 6> kLevels{"none", "minimal", "low", "medium", "high", "xhigh"};
  return std::find(kLevels.begin(), kLevels.end(), text) != kLevels.end();
}

bool is_effort_name(const JinjaToken& token) {
  return token.kind == Kind::kName && token.text.find("effort") != std::string::npos;
}

// A template writes the beginning and end of the system turn into the same literal, or into others.
std::string without_turn(std::string text) {
  if (text.starts_with(kSystemBegin)) text.erase(0, kSystemBegin.size());
  if (text.ends_with(kTurnEnd)) text.erase(text.size() - kTurnEnd.size());
  return text;
}

bool joins(const JinjaToken& token) {
  return token.is(Kind::kSymbol, "+") || token.is(Kind::kSymbol, "~");
}

// The literal at `at`, with those that are joined to it with + or ~, if it is long enough to be a sentence.
std::optional<std::string> sentence_at(const Tokens& tokens, std::size_t at) {
  if (tokens[at].kind != Kind::kString && tokens[at].kind != Kind::kText) return std::nullopt;
  std::string text = tokens[at].text;
  while (at + 2 < tokens.size() && joins(tokens[at + 1]) && tokens[at + 2].kind == Kind::kString) {
    at += 2;
    text += tokens[at].text;
  }
  text = without_turn(std::move(text));
  constexpr std::size_t kShortest = 12;
  if (text.size() < kShortest || text.find(' ') == std::string::npos) return std::nullopt;
  return text;
}

// The sentence that follows the literal of a level at `at`, before the branch or entry of another one begins.
std::optional<std::string> sentence_after(const Tokens& tokens, std::size_t at) {
  for (std::size_t i = at + 1; i < tokens.size(); ++i) {
    if (tokens[i].kind == Kind::kString && is_level(tokens[i].text)) break;
    if (tokens[i - 1].kind == Kind::kStatement &&
        (tokens[i].text == "elif" || tokens[i].text == "else" || tokens[i].text == "endif")) {
      break;
    }
    const bool raised = i >= 2 && tokens[i - 2].is(Kind::kName, "raise_exception");
    if (auto sentence = sentence_at(tokens, i); sentence && !raised) return sentence;
  }
  return std::nullopt;
}

// The sentence in "SENTENCE if NAME == LEVEL", where the name (with what it is an attribute of) ends before `at`.
std::optional<std::string> sentence_before(const Tokens& tokens, std::size_t at) {
  while (at >= 3 && tokens[at - 2].is(Kind::kSymbol, ".")) at -= 2;
  if (at < 3 || !tokens[at - 2].is(Kind::kName, "if") || tokens[at - 3].kind != Kind::kString) return std::nullopt;
  at -= 3;
  while (at >= 2 && joins(tokens[at - 1]) && tokens[at - 2].kind == Kind::kString) at -= 2;
  return sentence_at(tokens, at);
}

// Three ways to write it: if reasoning_effort == 'LEVEL' … SENTENCE; SENTENCE if reasoning_effort == 'LEVEL';
// {'LEVEL': SENTENCE}.
std::optional<std::string> find_effort(const Tokens& tokens, std::string_view level) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (!tokens[i].is(Kind::kString, level)) continue;
    const bool compared = i >= 2 && tokens[i - 1].is(Kind::kSymbol, "==") && is_effort_name(tokens[i - 2]);
    const bool entry = i + 1 < tokens.size() && tokens[i + 1].is(Kind::kSymbol, ":");
    auto sentence = compared ? sentence_before(tokens, i - 1) : std::nullopt;
    if (!sentence && (compared || entry)) sentence = sentence_after(tokens, i);
    if (sentence) return sentence;
  }
  return std::nullopt;
}

bool is_literal(const JinjaToken& token) {
  return token.kind == Kind::kString || token.kind == Kind::kText;
}

void find_tools(const Tokens& tokens, TemplateWording& wording) {
  std::size_t at = 0;
  const auto contains = [&](std::string_view text) {
    return is_literal(tokens[at]) && tokens[at].text.find(text) != std::string::npos;
  };
  while (at < tokens.size() && !contains("# Tools")) ++at;
  std::string before;
  for (; at < tokens.size() && tokens[at].kind != Kind::kStatement; ++at) {
    if (is_literal(tokens[at])) before += tokens[at].text;
    if (contains("<tools>")) break;
  }
  while (at < tokens.size() && !contains("</tools>")) ++at;
  std::string after;
  for (; at < tokens.size() && tokens[at].kind != Kind::kStatement; ++at) {
    if (is_literal(tokens[at])) after += tokens[at].text;
  }
  before = without_turn(std::move(before));
  after = without_turn(std::move(after));
  if (before.ends_with("<tools>") && after.starts_with("\n</tools>")) {
    wording.tools_before = std::move(before);
    wording.tools_after = std::move(after);
  }
}

// Appends the markers in `text`: <|name|>, <name>, </name>, <name= and [NAME].
void collect_markers(std::string_view text, std::vector<std::string>& markers) {
  constexpr std::string_view kNameCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
  for (std::size_t at = text.find_first_of("<["); at != std::string_view::npos; at = text.find_first_of("<[", at + 1)) {
    std::size_t begin = at + 1;
    const bool bar = text.substr(begin).starts_with('|');
    if (bar || text.substr(begin).starts_with('/')) ++begin;
    const std::size_t end = std::min(text.find_first_not_of(kNameCharacters, begin), text.size());
    const std::string_view rest = text.substr(end);
    const std::string_view close = text[at] == '[' ? "]" : bar ? "|>" : rest.starts_with('=') ? "=" : ">";
    if (end == begin || !rest.starts_with(close)) continue;
    std::string marker(text.substr(at, end + close.size() - at));
    const bool lower = std::any_of(marker.begin(), marker.end(), [](char c) { return c >= 'a' && c <= 'z'; });
    if (text[at] == '[' && lower) continue;
    if (std::find(markers.begin(), markers.end(), marker) == markers.end()) markers.push_back(std::move(marker));
  }
}

constexpr std::array<std::string_view, 11> kRendered{"<|im_start|>", "<|im_end|>",  "<think>",        "</think>",
                                                     "# Tools",      "<tools>",     "</tools>",       "<tool_call>",
                                                     "<function=",   "<parameter=", "<tool_response>"};
// The closing halves, and pictures, which this runtime does not take.
constexpr std::array<std::string_view, 8> kAccepted{"</tool_call>",     "</function>",      "</parameter>",
                                                    "</tool_response>", "<|vision_start|>", "<|vision_end|>",
                                                    "<|image_pad|>",    "<|video_pad|>"};
constexpr std::array<std::string_view, 3> kOptions{"enable_thinking", "reasoning_effort", "preserve_thinking"};
constexpr std::array<std::string_view, 4> kRoles{"system", "user", "assistant", "tool"};

template <std::size_t n>
bool contains(const std::array<std::string_view, n>& list, std::string_view text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

std::vector<std::string> other_roles(const Tokens& tokens) {
  std::vector<std::string> roles;
  for (std::size_t i = 2; i < tokens.size(); ++i) {
    const bool compared = tokens[i].kind == Kind::kString && tokens[i - 1].is(Kind::kSymbol, "==") &&
                          tokens[i - 2].is(Kind::kName, "role");
    if (compared && !contains(kRoles, tokens[i].text) &&
        std::find(roles.begin(), roles.end(), tokens[i].text) == roles.end()) {
      roles.push_back(tokens[i].text);
    }
  }
  return roles;
}

}  // namespace

TemplateWording find_wording(const std::vector<JinjaToken>& tokens) {
  TemplateWording wording;
  wording.effort_low = find_effort(tokens, "low");
  wording.effort_xhigh = find_effort(tokens, "xhigh");
  find_tools(tokens, wording);
  return wording;
}

std::string describe_difference(const std::vector<JinjaToken>& tokens, const TemplateWording& wording) {
  std::string literals;
  for (const JinjaToken& token : tokens) {
    if (is_literal(token)) literals += token.text + '\n';
  }
  std::vector<std::string> lacks;
  for (const std::string_view marker : kRendered) {
    if (literals.find(marker) == std::string::npos) lacks.emplace_back(marker);
  }
  for (const std::string_view option : kOptions) {
    const bool found = std::any_of(tokens.begin(), tokens.end(), [&](const JinjaToken& token) {
      return (token.kind == Kind::kName || token.kind == Kind::kString) && token.text == option;
    });
    if (!found) lacks.emplace_back(option);
  }
  std::vector<std::string> has;
  collect_markers(literals, has);
  std::erase_if(has, [&](const std::string& marker) {
    return contains(kRendered, marker) || contains(kAccepted, marker) ||
           wording.tools_before.value_or("").find(marker) != std::string::npos ||
           wording.tools_after.value_or("").find(marker) != std::string::npos;
  });
  const std::vector<std::string> roles = other_roles(tokens);
  std::vector<std::string> parts;
  if (!lacks.empty()) parts.push_back(fmt::format("it lacks {}", fmt::join(lacks, " ")));
  if (!has.empty()) parts.push_back(fmt::format("it has the other markers {}", fmt::join(has, " ")));
  if (!roles.empty()) parts.push_back(fmt::format("it has the other roles {}", fmt::join(roles, " ")));
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace tandem
