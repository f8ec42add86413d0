// Splits the stream of an answer into thinking and answer at the first </think>.
#pragma once

#include <string>
#include <string_view>

namespace tandem {

class ThinkSplitter {
 public:
  struct Parts {
    std::string thinking, answer;
  };

  // `starts_in_thinking`: the prompt ended with an open <think>. Otherwise everything is answer.
  explicit ThinkSplitter(bool starts_in_thinking);

  // What can be shown after `text` came. The line feeds that the template puts around the marker belong to neither
  // part; bytes that may become the marker are held back.
  Parts push(std::string_view text);
  Parts flush();  // what was held back, at the end

  bool in_thinking() const { return in_thinking_; }

 private:
  std::string take_answer(std::string_view text);

  bool in_thinking_;
  bool skip_line_feeds_ = false;
  std::string held_;
};

}  // namespace tandem
