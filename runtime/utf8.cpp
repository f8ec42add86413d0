#include "runtime/utf8.h"

#include <cstdint>
#include <cstring>

#include "placement/check.h"

namespace tandem {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// The length of the sequence that `lead` begins and the range of its second byte; length 0 when it begins none.
struct LeadByte {
  std::size_t length;
  std::uint8_t second_min, second_max;
};

LeadByte lead_byte(std::uint8_t lead) {
  if (lead < 0x80) return {1, 0, 0};
  if (lead < 0xC2) return {0, 0, 0};
  if (lead < 0xE0) return {2, 0x80, 0xBF};
  if (lead < 0xF0) {
    return {3, static_cast<std::uint8_t>(lead == 0xE0 ? 0xA0 : 0x80),
            static_cast<std::uint8_t>(lead == 0xED ? 0x9F : 0xBF)};
  }
  if (lead < 0xF5) {
    return {4, static_cast<std::uint8_t>(lead == 0xF0 ? 0x90 : 0x80),
            static_cast<std::uint8_t>(lead == 0xF4 ? 0x8F : 0xBF)};
  }
  return {0, 0, 0};
}

}  // namespace

Utf8Step utf8_step(std::string_view text) {
  CHECK(!text.empty());
  const LeadByte lead = lead_byte(static_cast<std::uint8_t>(text[0]));
  if (lead.length == 0) return {Utf8Step::Kind::kInvalid, 1};
  for (std::size_t i = 1; i < lead.length; ++i) {
    if (i == text.size()) return {Utf8Step::Kind::kIncomplete, i};
    const auto byte = static_cast<std::uint8_t>(text[i]);
    const bool good = i == 1 ? byte >= lead.second_min && byte <= lead.second_max : (byte & 0xC0) == 0x80;
    if (!good) return {Utf8Step::Kind::kInvalid, i};
  }
  return {Utf8Step::Kind::kCharacter, lead.length};
}

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    // Eight ASCII bytes at a time: most text is ASCII, and this runs over every byte that is encoded.
    std::uint64_t word = 0;
    if (text.size() - at >= sizeof word) {
      std::memcpy(&word, text.data() + at, sizeof word);
      if ((word & 0x8080808080808080u) == 0) {
        at += sizeof word;
        continue;
      }
    }
    const Utf8Step step = utf8_step(text.substr(at));
    if (step.kind != Utf8Step::Kind::kCharacter) break;
    at += step.length;
  }
  return at;
}

std::string Utf8Stream::push(std::string_view bytes) {
  held_ += bytes;
  std::string shown;
  std::string_view rest = held_;
  while (!rest.empty()) {
    const std::size_t whole = valid_utf8_prefix(rest);
    shown += rest.substr(0, whole);
    rest.remove_prefix(whole);
    if (rest.empty()) break;
    const Utf8Step step = utf8_step(rest);
    if (step.kind == Utf8Step::Kind::kIncomplete) break;
    shown += kReplacement;
    rest.remove_prefix(step.length);
  }
  held_ = std::string(rest);
  return shown;
}

std::string Utf8Stream::flush() {
  const bool unfinished = !held_.empty();
  held_.clear();
  return unfinished ? std::string(kReplacement) : std::string();
}

}  // namespace tandem
