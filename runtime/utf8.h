// UTF-8 by the well-formed table of the Unicode standard (no overlong forms, no surrogates, at most U+10FFFF).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tandem {

// What stands at the beginning of a text.
struct Utf8Step {
  enum class Kind {
    kCharacter,   // one well-formed sequence of `length` bytes
    kInvalid,     // `length` bytes that begin no sequence: the maximal subpart that one U+FFFD replaces
    kIncomplete,  // all `length` bytes of the text begin a sequence that more bytes could finish
  };
  Kind kind;
  std::size_t length;  // 1..4
};
Utf8Step utf8_step(std::string_view text);  // REQUIRES text is not empty

// The number of leading bytes that are well-formed UTF-8 as a whole.
std::size_t valid_utf8_prefix(std::string_view text);

// Turns a stream of byte chunks that may end inside a character into a stream of whole characters for display. The
// concatenation of all results depends only on the concatenation of all chunks; it is always well-formed: each maximal
// subpart of an ill-formed sequence becomes one U+FFFD.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);  // what can be shown now; holds back at most three bytes
  std::string flush();                       // U+FFFD if an unfinished character was held back, else nothing

 private:
  std::string held_;
};

}  // namespace tandem
