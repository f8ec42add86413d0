#include "runtime/jinja_scan.h"

#include <algorithm>
#include <cstddef>

namespace tandem {
namespace {

using Kind = JinjaToken::Kind;

constexpr std::string_view kBlank = " \t\r\n";

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

class Scanner {
 public:
  explicit Scanner(std::string_view source) : rest_(source) {}

  std::vector<JinjaToken> run() {
    while (!rest_.empty()) {
      const std::size_t tag = find_tag();
      text(tag);
      if (rest_.empty()) break;
      if (rest_[1] == '#') {
        comment();
      } else {
        inside_tag();
      }
    }
    return std::move(tokens_);
  }

 private:
  std::size_t find_tag() const {
    for (std::size_t at = rest_.find('{'); at != std::string_view::npos; at = rest_.find('{', at + 1)) {
      if (at + 1 < rest_.size() && (rest_[at + 1] == '%' || rest_[at + 1] == '{' || rest_[at + 1] == '#')) return at;
    }
    return rest_.size();
  }

  // The text up to the tag at `end`. Chat templates are run with trim_blocks and lstrip_blocks: the line feed after a
  // statement and the indentation before one do not count, nor does anything blank on the side of a minus sign.
  void text(std::size_t end) {
    std::string_view text = rest_.substr(0, end);
    rest_.remove_prefix(end);
    if (strip_next_) text.remove_prefix(std::min(text.find_first_not_of(kBlank), text.size()));
    if (trim_next_ && !text.empty() && text.front() == '\n') text.remove_prefix(1);
    strip_next_ = trim_next_ = false;
    if (rest_.size() > 2 && rest_[2] == '-') {
      text = text.substr(0, text.find_last_not_of(kBlank) + 1);
    } else if (!rest_.empty() && rest_[1] != '{') {
      const std::size_t last = text.find_last_not_of(" \t");
      if (last == std::string_view::npos || text[last] == '\n') text = text.substr(0, last + 1);
    }
    if (!text.empty()) tokens_.push_back({Kind::kText, std::string(text)});
  }

  void comment() {
    const std::size_t end = rest_.find("#}");
    if (end == std::string_view::npos) {
      rest_ = {};
      return;
    }
    strip_next_ = rest_[end - 1] == '-';
    trim_next_ = true;
    rest_.remove_prefix(end + 2);
  }

  void inside_tag() {
    const bool statement = rest_[1] == '%';
    tokens_.push_back({statement ? Kind::kStatement : Kind::kOutput, std::string(rest_.substr(0, 2))});
    rest_.remove_prefix(rest_.size() > 2 && (rest_[2] == '-' || rest_[2] == '+') ? 3 : 2);
    const std::string_view close = statement ? "%}" : "}}";
    while (!rest_.empty()) {
      if (rest_.starts_with(close) || (rest_[0] == '-' && rest_.substr(1).starts_with(close))) {
        strip_next_ = rest_[0] == '-';
        trim_next_ = statement;
        rest_.remove_prefix(strip_next_ ? 3 : 2);
        break;
      }
      token();
    }
    tokens_.push_back({Kind::kEnd, std::string(close)});
  }

  void token() {
    const char first = rest_[0];
    if (kBlank.find(first) != std::string_view::npos) {
      rest_.remove_prefix(1);
    } else if (first == '\'' || first == '"') {
      string(first);
    } else if (is_name_character(first)) {
      const auto* end = std::find_if_not(rest_.begin(), rest_.end(), is_name_character);
      take(Kind::kName, static_cast<std::size_t>(end - rest_.begin()));
    } else {
      const std::string_view two = rest_.substr(0, 2);
      take(Kind::kSymbol, two == "==" || two == "!=" || two == "<=" || two == ">=" ? 2 : 1);
    }
  }

  void take(Kind kind, std::size_t length) {
    tokens_.push_back({kind, std::string(rest_.substr(0, length))});
    rest_.remove_prefix(length);
  }

  void string(char quote) {
    std::string value;
    std::size_t at = 1;
    for (; at < rest_.size() && rest_[at] != quote; ++at) {
      if (rest_[at] != '\\' || at + 1 == rest_.size()) {
        value += rest_[at];
        continue;
      }
      const char escaped = rest_[++at];
      switch (escaped) {
        case 'n':
          value += '\n';
          break;
        case 't':
          value += '\t';
          break;
        case 'r':
          value += '\r';
          break;
        case '\\':
        case '\'':
        case '"':
          value += escaped;
          break;
        default:  // no escape sequence that wording uses: kept as it is written
          value += '\\';
          value += escaped;
      }
    }
    tokens_.push_back({Kind::kString, std::move(value)});
    rest_.remove_prefix(std::min(at + 1, rest_.size()));
  }

  std::string_view rest_;
  std::vector<JinjaToken> tokens_;
  bool strip_next_ = false;  // the tag before ended with a minus sign
  bool trim_next_ = false;   // the tag before was a statement or comment
};

}  // namespace

std::vector<JinjaToken> scan_jinja(std::string_view source) {
  return Scanner(source).run();
}

}  // namespace tandem
