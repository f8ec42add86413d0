// A chat template in Jinja, cut into tokens. It is never executed: the runtime renders the known forms itself and looks
// into the file's template only for wording and for differences (runtime/template_wording.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tandem {

struct JinjaToken {
  enum class Kind {
    kText,       // outside of tags, with the white space removed that the engine removes around tags
    kStatement,  // {%
    kOutput,     // {{
    kEnd,        // %} or }}
    kString,     // a string literal; text is its value
    kName,       // a name, keyword or number
    kSymbol,     // an operator or bracket
  };
  Kind kind;
  std::string text;

  bool is(Kind wanted, std::string_view wanted_text) const { return kind == wanted && text == wanted_text; }
};

// Comments are left out. Any text is accepted: a tag or string that does not end is taken to end with the text.
std::vector<JinjaToken> scan_jinja(std::string_view source);

}  // namespace tandem
