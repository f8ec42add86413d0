// The Qwen3.8 chat template without a template engine (docs/formats.md, "Chat template"). Text written by a user is
// never scanned for special tokens: rendering yields pieces, and only template pieces are.
#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/gguf.h"
#include "runtime/template_wording.h"
#include "runtime/tokenizer.h"

namespace tandem {

struct ToolCall {
  std::string name;
  nlohmann::ordered_json arguments;  // an object
};

struct ChatMessage {
  std::string role;  // system (first only), user, assistant, tool
  std::string content;
  std::string reasoning;             // assistant: the text between <think> and </think>
  std::vector<ToolCall> tool_calls;  // assistant
};

struct ChatOptions {
  bool thinking = true;
  std::string reasoning_effort = "xhigh";  // low, medium, xhigh; only with thinking
  bool preserve_thinking = true;           // render the reasoning of earlier assistant turns
  bool add_generation_prompt = true;
  std::vector<nlohmann::ordered_json> tools;  // JSON of each tool
};

struct TemplatePiece {
  std::string text;
  bool parse_special;  // true: template text; false: text of a person, a tool or the model
};

// Two variants. Both write turns as <|im_start|>ROLE\nCONTENT<|im_end|>\n, results of tools as one user turn, calls in
// the <function=…><parameter=…> form, and every assistant turn with its <think> block, empty or not. They differ:
//                     flash-next-nano                     qwen3.8 (and every template that is not known)
//   tools section     the wording of the nano template    the wording of the file's own template
//   effort            ignored                             low and xhigh put the file's sentence first in the system
//   turn preserve_thinking ignored: always rendered            false: <think> only in turns after the last user
//   question before a call     the content as it is                trailing white space removed, "\n\n" after what is
//   left
class ChatTemplate {
 public:
  // Picks the known variant that matches tokenizer.chat_template (by SHA-256); for an unknown or missing template uses
  // the official one and sets warning() to a text that names the difference.
  static ChatTemplate from_gguf(const Gguf& gguf);
  // The same for the text of a template, or none; `name` is the file's, for the warning.
  static ChatTemplate from_source(std::optional<std::string_view> source, std::string_view name);

  // Throws InputError: no messages, unknown role, system message not first, arguments that are no object, unknown
  // reasoning effort (the message lists the values).
  std::vector<TemplatePiece> render(const std::vector<ChatMessage>& messages, const ChatOptions& options) const;

  // What to append to a conversation that ends with the model's own answer, without rendering it again: the end of that
  // turn, `messages` (user and tool; at least one) and the generation prompt. `turn_ended`: the answer's <|im_end|> is
  // already there; without it (the answer was stopped) it is the first thing here. With preserve_thinking
  //   text(render(all)) == text(render(earlier)) + answer + text(render_continuation(new ones))
  // for every answer that parse_answer splits into parts that render back to it; without preserve_thinking render()
  // leaves out what is still in the conversation here. Throws InputError as render does, and for a system message.
  std::vector<TemplatePiece> render_continuation(const std::vector<ChatMessage>& messages, const ChatOptions& options,
                                                 bool turn_ended = true) const;

  std::vector<TokenId> encode(const Tokenizer& tokenizer, const std::vector<ChatMessage>& messages,
                              const ChatOptions& options) const;
  // The tokens of pieces: those of the joined text, except that special tokens are found in template text only.
  static std::vector<TokenId> encode(const Tokenizer& tokenizer, const std::vector<TemplatePiece>& pieces);
  static std::string join(const std::vector<TemplatePiece>& pieces);  // plain text, for display and tests

  const std::string& variant() const { return variant_; }  // "qwen3.8" or "flash-next-nano"
  const std::string& warning() const { return warning_; }  // empty when the template is known

 private:
  bool nano() const;

  std::string variant_, warning_;
  TemplateWording wording_;  // tools_before and tools_after are always there
};

// Splits what the model wrote (without its end token) into reasoning, content and tool calls, starting inside the
// reasoning when the prompt ended with an open <think>. The line feeds that the template puts around the parts belong
// to no part. Content may stand before, between and after calls; a call that was cut off or is malformed stays content.
// Calls in the JSON form {"name": …, "arguments": {…}} inside <tool_call> are taken too. The value of a parameter is
// the JSON value when that prints as exactly the same text (5, true, [1, 2]) and the text itself otherwise, so a call
// always renders back to what was written.
struct ParsedAnswer {
  std::string reasoning, content;
  std::vector<ToolCall> tool_calls;
};
ParsedAnswer parse_answer(std::string_view text, bool starts_in_thinking);

}  // namespace tandem
