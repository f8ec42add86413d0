#include "runtime/think_splitter.h"

#include <algorithm>
#include <utility>

namespace tandem {
namespace {

constexpr std::string_view kMarker = "</think>";

// How many bytes at the end of `text` may belong to line feeds and the marker that follows them.
std::size_t held_back(std::string_view text) {
  std::size_t partial = 0;
  for (std::size_t n = std::min(text.size(), kMarker.size() - 1); n > 0 && partial == 0; --n) {
    if (text.ends_with(kMarker.substr(0, n))) partial = n;
  }
  const std::string_view before = text.substr(0, text.size() - partial);
  const std::size_t last = before.find_last_not_of('\n');
  return text.size() - (last == std::string_view::npos ? 0 : last + 1);
}

}  // namespace

ThinkSplitter::ThinkSplitter(bool starts_in_thinking) : in_thinking_(starts_in_thinking) {}

ThinkSplitter::Parts ThinkSplitter::push(std::string_view text) {
  Parts parts;
  if (!in_thinking_) {
    parts.answer = take_answer(text);
    return parts;
  }
  held_ += text;
  const std::size_t marker = held_.find(kMarker);
  if (marker == std::string::npos) {
    parts.thinking = held_.substr(0, held_.size() - held_back(held_));
    held_.erase(0, parts.thinking.size());
    return parts;
  }
  const std::string all = std::exchange(held_, {});
  parts.thinking = all.substr(0, marker);
  parts.thinking.erase(parts.thinking.find_last_not_of('\n') + 1);
  in_thinking_ = false;
  skip_line_feeds_ = true;
  parts.answer = take_answer(std::string_view(all).substr(marker + kMarker.size()));
  return parts;
}

ThinkSplitter::Parts ThinkSplitter::flush() {
  return Parts{std::exchange(held_, {}), {}};
}

std::string ThinkSplitter::take_answer(std::string_view text) {
  if (skip_line_feeds_) {
    text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
    skip_line_feeds_ = text.empty();
  }
  return std::string(text);
}

}  // namespace tandem
