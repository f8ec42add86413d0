#include "runtime/chat_template.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sha2.h>

#include <algorithm>
#include <array>

#include "placement/check.h"
#include "runtime/python_json.h"

namespace tandem {
namespace {

constexpr std::string_view kOfficial = "qwen3.8";
constexpr std::string_view kNano = "flash-next-nano";

// Of the official template only the beginning of the hash is published knowledge; 64 bits identify it as well.
struct KnownTemplate {
  std::string_view sha256;  // a prefix, in hexadecimal
  std::string_view variant;
};
constexpr std::array<KnownTemplate, 2> kKnown{{
    {"c3cf9e34abf4f9e3", kOfficial},
    {"5c5b4dee014c283a6ec1e8887af620cf7128b8e2cf071afa7bac9d6cadcec0be", kNano},
}};

// The wording of flash-next-nano, and of every file whose own cannot be located.
constexpr std::string_view kToolsBefore = "# Tools\n\nYou have access to the following functions:\n\n<tools>";
constexpr std::string_view kToolsAfter =
    "\n</tools>\n\nCall a function like this:\n\n<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n"
    "</function>\n</tool_call>";

constexpr std::string_view kWhiteSpace = " \t\r\n";

std::string sha256_hex(std::string_view text) {
  std::array<char, SHA256_DIGEST_STRING_LENGTH> hex{};
  SHA256Data(reinterpret_cast<const std::uint8_t*>(text.data()), text.size(), hex.data());
  return hex.data();
}

// Collects pieces; neighbours of the same kind become one.
class Pieces {
 public:
  void fixed(std::string_view text) { add(text, true); }  // template text
  void free(std::string_view text) { add(text, false); }  // anybody else's text

  std::vector<TemplatePiece> take() { return std::move(pieces_); }

 private:
  void add(std::string_view text, bool parse_special) {
    if (text.empty()) return;
    if (pieces_.empty() || pieces_.back().parse_special != parse_special) pieces_.push_back({"", parse_special});
    pieces_.back().text += text;
  }

  std::vector<TemplatePiece> pieces_;
};

void check_message(const ChatMessage& message, std::size_t index, bool system_allowed) {
  const auto where = [&] { return fmt::format("conversation, message {}", index + 1); };
  const std::string& role = message.role;
  if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
    fail_input("{}: expected the role system, user, assistant or tool, found \"{}\". Fix: use one of these roles",
               where(), role);
  }
  if (role == "system" && !system_allowed) {
    fail_input(
        "{}: expected a system message only at the beginning of a conversation, found one here. Fix: move its "
        "text into the first message",
        where());
  }
  if (role != "assistant" && (!message.tool_calls.empty() || !message.reasoning.empty())) {
    fail_input(
        "{}: expected tool calls and reasoning only from the assistant, found them in a {} message. Fix: remove "
        "them or use the role assistant",
        where(), role);
  }
  for (const ToolCall& call : message.tool_calls) {
    if (!call.arguments.is_object()) {
      fail_input("{}: call of {}: expected an object of arguments, found {}. Fix: name each argument, or use {{}}",
                 where(), call.name, python_json(call.arguments));
    }
  }
}

void check_options(const ChatOptions& options) {
  const std::string& effort = options.reasoning_effort;
  if (effort != "low" && effort != "medium" && effort != "xhigh") {
    fail_input("reasoning effort: expected low, medium or xhigh, found \"{}\". Fix: use one of these values", effort);
  }
}

std::string_view without_trailing_space(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kWhiteSpace) + 1);
}

// Results of tools that a client has already wrapped into a user message are no question of a person.
bool is_question(const ChatMessage& message) {
  return message.role == "user" &&
         !(message.content.starts_with("<tool_response>") && message.content.ends_with("</tool_response>"));
}

// The number of messages up to and including the last question.
std::size_t after_last_question(const std::vector<ChatMessage>& messages) {
  std::size_t count = messages.size();
  while (count > 0 && !is_question(messages[count - 1])) --count;
  return count;
}

void render_calls(const ChatMessage& message, Pieces& out) {
  for (const ToolCall& call : message.tool_calls) {
    out.fixed(&call == message.tool_calls.data() ? "<tool_call>\n<function=" : "\n<tool_call>\n<function=");
    out.free(call.name);
    out.fixed(">\n");
    for (const auto& [key, value] : call.arguments.items()) {
      out.fixed("<parameter=");
      out.free(key);
      out.fixed(">\n");
      out.free(value.is_string() ? value.get_ref<const std::string&>() : python_json(value));
      out.fixed("\n</parameter>\n");
    }
    out.fixed("</function>\n</tool_call>");
  }
}

void render_assistant(const ChatMessage& message, bool with_thinking, bool nano, Pieces& out) {
  out.fixed("<|im_start|>assistant\n");
  if (with_thinking) {
    out.fixed("<think>\n");
    out.free(message.reasoning);
    out.fixed("\n</think>\n\n");
  }
  if (nano || message.tool_calls.empty()) {
    out.free(message.content);
  } else if (const auto content = without_trailing_space(message.content); !content.empty()) {
    out.free(content);
    out.fixed("\n\n");
  }
  render_calls(message, out);
  out.fixed("<|im_end|>\n");
}

// Consecutive results share one user turn.
void render_tool_result(const std::vector<ChatMessage>& messages, std::size_t index, Pieces& out) {
  if (index == 0 || messages[index - 1].role != "tool") out.fixed("<|im_start|>user");
  out.fixed("\n<tool_response>\n");
  out.free(messages[index].content);
  out.fixed("\n</tool_response>");
  if (index + 1 == messages.size() || messages[index + 1].role != "tool") out.fixed("<|im_end|>\n");
}

// All turns but the system turn.
void render_turns(const std::vector<ChatMessage>& messages, const ChatOptions& options, bool nano, Pieces& out) {
  const std::size_t first_with_thinking = options.preserve_thinking || nano ? 0 : after_last_question(messages);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (message.role == "user") {
      out.fixed("<|im_start|>user\n");
      out.free(message.content);
      out.fixed("<|im_end|>\n");
    } else if (message.role == "assistant") {
      render_assistant(message, i >= first_with_thinking, nano, out);
    } else if (message.role == "tool") {
      render_tool_result(messages, i, out);
    }
  }
  if (options.add_generation_prompt) {
    out.fixed("<|im_start|>assistant\n<think>\n");
    if (!options.thinking) out.fixed("\n</think>\n\n");
  }
}

// The system turn, if the message, the effort sentence or the tools ask for one.
void render_system(const ChatMessage* message, std::string_view effort, const ChatOptions& options,
                   const TemplateWording& wording, bool nano, Pieces& out) {
  const bool tools = !options.tools.empty();
  if (message == nullptr && effort.empty() && !tools) return;
  const bool text = message != nullptr && (nano || !message->content.empty());
  out.fixed("<|im_start|>system\n");
  out.fixed(effort);
  if (!effort.empty() && (tools || text) && !effort.ends_with('\n')) out.fixed("\n\n");
  if (tools) {
    out.fixed(*wording.tools_before);
    for (const auto& tool : options.tools) {
      out.fixed("\n");
      out.free(python_json(tool));
    }
    out.fixed(*wording.tools_after);
    if (text) out.fixed("\n\n");
  }
  if (text) out.free(message->content);
  out.fixed("<|im_end|>\n");
}

}  // namespace

ChatTemplate ChatTemplate::from_gguf(const Gguf& gguf) {
  return from_source(gguf.string("tokenizer.chat_template"), gguf.name());
}

ChatTemplate ChatTemplate::from_source(std::optional<std::string_view> source, std::string_view name) {
  ChatTemplate chat;
  chat.variant_ = kOfficial;
  std::vector<std::string> remarks;
  if (!source) {
    remarks.push_back("there is none");
  } else {
    const std::string hash = sha256_hex(*source);
    const auto* known = std::find_if(kKnown.begin(), kKnown.end(),
                                     [&](const KnownTemplate& entry) { return hash.starts_with(entry.sha256); });
    if (known != kKnown.end()) chat.variant_ = known->variant;
    const auto tokens = scan_jinja(*source);
    chat.wording_ = find_wording(tokens);
    if (known == kKnown.end()) {
      const std::string difference = describe_difference(tokens, chat.wording_);
      remarks.push_back(fmt::format("it is not one that is known (sha256 {})", hash.substr(0, 16)));
      remarks.push_back(difference.empty()
                            ? "it has the same markers, options and roles, so only wording or order differ"
                            : difference);
    }
    if (!chat.nano() && !(chat.wording_.effort_low && chat.wording_.effort_xhigh)) {
      remarks.push_back("its sentences for reasoning effort cannot be located and are left out");
    }
    if (!chat.wording_.tools_before) remarks.push_back("its tools section cannot be located; a plain one is used");
  }
  if (!chat.wording_.tools_before) {
    chat.wording_.tools_before = kToolsBefore;
    chat.wording_.tools_after = kToolsAfter;
  }
  if (!remarks.empty()) {
    chat.warning_ = fmt::format("{}: tokenizer.chat_template: conversations are written in the Qwen3.8 form, but {}",
                                name, fmt::join(remarks, "; "));
  }
  return chat;
}

bool ChatTemplate::nano() const {
  return variant_ == kNano;
}

std::vector<TemplatePiece> ChatTemplate::render(const std::vector<ChatMessage>& messages,
                                                const ChatOptions& options) const {
  if (messages.empty()) {
    fail_input("conversation: expected at least one message, found none. Fix: begin with a user message");
  }
  for (std::size_t i = 0; i < messages.size(); ++i) check_message(messages[i], i, i == 0);
  check_options(options);
  std::string_view effort;
  if (options.thinking && !nano()) {
    const auto& sentence = options.reasoning_effort == "low" ? wording_.effort_low : wording_.effort_xhigh;
    if (sentence && options.reasoning_effort != "medium") effort = *sentence;
  }
  Pieces out;
  render_system(messages[0].role == "system" ? &messages[0] : nullptr, effort, options, wording_, nano(), out);
  render_turns(messages, options, nano(), out);
  return out.take();
}

std::vector<TemplatePiece> ChatTemplate::render_continuation(const std::vector<ChatMessage>& messages,
                                                             const ChatOptions& options, bool turn_ended) const {
  if (messages.empty()) {
    fail_input("conversation: expected at least one new message, found none. Fix: add a user or tool message");
  }
  for (std::size_t i = 0; i < messages.size(); ++i) check_message(messages[i], i, false);
  check_options(options);
  Pieces out;
  out.fixed(turn_ended ? "\n" : "<|im_end|>\n");
  render_turns(messages, options, nano(), out);
  return out.take();
}

std::vector<TokenId> ChatTemplate::encode(const Tokenizer& tokenizer, const std::vector<ChatMessage>& messages,
                                          const ChatOptions& options) const {
  return encode(tokenizer, render(messages, options));
}

std::vector<TokenId> ChatTemplate::encode(const Tokenizer& tokenizer, const std::vector<TemplatePiece>& pieces) {
  std::vector<TextSpan> spans;
  spans.reserve(pieces.size());
  for (const TemplatePiece& piece : pieces) spans.push_back({piece.text, piece.parse_special});
  std::vector<TokenId> tokens;
  tokenizer.encode_append(spans, tokens);
  return tokens;
}

std::string ChatTemplate::join(const std::vector<TemplatePiece>& pieces) {
  std::string text;
  for (const TemplatePiece& piece : pieces) text += piece.text;
  return text;
}

}  // namespace tandem
