#include "runtime/pretokenizer.h"

#include <cstdint>
#include <limits>

#include "placement/check.h"
#include "runtime/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace tandem {
namespace {

// White space is spelled out because PCRE2's \s also takes U+180E, which Unicode has not counted as white space since
// 6.3 and which the engines that the vocabulary was trained with do not take either.
#define TANDEM_SPACE R"(\t-\r\x{85}\p{Z})"
constexpr std::string_view kPattern = R"((?i:'s|'t|'re|'ve|'m|'ll|'d))"
                                      R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+)"
                                      R"(|\p{N})"
                                      R"(| ?[^)" TANDEM_SPACE R"(\p{L}\p{M}\p{N}]+[\r\n]*)"
                                      R"(|[)" TANDEM_SPACE R"(]*[\r\n]+)"
                                      R"(|[)" TANDEM_SPACE R"(]+(?![^)" TANDEM_SPACE R"(]))"
                                      R"(|[)" TANDEM_SPACE R"(]+)";
#undef TANDEM_SPACE

template <auto kFree>
struct Deleter {
  template <typename T>
  void operator()(T* pointer) const {
    kFree(pointer);
  }
};
using Code = std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>>;

}  // namespace

struct Pretokenizer::Impl {
  Code code;
  MatchContext limits;

  // The end of the match that begins at `begin`. `text` is well-formed, so its check (which would look at the whole
  // rest of the text for every piece) is left out.
  std::size_t match_end(std::string_view text, std::size_t begin, pcre2_match_data* match) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    int found = pcre2_match(code.get(), subject, text.size(), begin, PCRE2_NO_UTF_CHECK, match, limits.get());
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      found =
          pcre2_match(code.get(), subject, text.size(), begin, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match, limits.get());
    }
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match);
    // Every character is white space, a letter or mark, a number or none of them, so some alternative takes it.
    CHECK(found > 0 && ends[0] == begin && ends[1] > begin, "pcre2 returned {} at byte {} of {}", found, begin,
          text.size());
    return ends[1];
  }
};

Pretokenizer::Pretokenizer() : impl_(std::make_unique<Impl>()) {
  int error = 0;
  PCRE2_SIZE where = 0;
  impl_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kPattern.data()), kPattern.size(),
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &where, nullptr));
  CHECK(impl_->code != nullptr, "pcre2 error {} at {}", error, where);
  // The expression is linear, so no limit on its effort is wanted: the default would fail on some 10 MB of white space.
  impl_->limits.reset(pcre2_match_context_create(nullptr));
  CHECK(impl_->limits != nullptr);
  pcre2_set_match_limit(impl_->limits.get(), std::numeric_limits<std::uint32_t>::max());
  pcre2_set_heap_limit(impl_->limits.get(), std::numeric_limits<std::uint32_t>::max());
  // Where a hardened system forbids generated code this fails, and pcre2_match interprets the pattern instead.
  pcre2_jit_compile(impl_->code.get(), PCRE2_JIT_COMPLETE);
}

Pretokenizer::Pretokenizer(Pretokenizer&&) noexcept = default;
Pretokenizer& Pretokenizer::operator=(Pretokenizer&&) noexcept = default;
Pretokenizer::~Pretokenizer() = default;

void Pretokenizer::split(std::string_view text, const std::function<void(std::string_view)>& piece) const {
  const MatchData match(pcre2_match_data_create(1, nullptr));
  CHECK(match != nullptr);
  while (!text.empty()) {
    const std::string_view valid = text.substr(0, valid_utf8_prefix(text));
    for (std::size_t at = 0; at < valid.size();) {
      const std::size_t end = impl_->match_end(valid, at, match.get());
      piece(valid.substr(at, end - at));
      at = end;
    }
    text.remove_prefix(valid.size());
    if (text.empty()) break;
    // One byte only, not the whole maximal subpart: what follows is looked at afresh, with the same result.
    piece(text.substr(0, 1));
    text.remove_prefix(1);
  }
}

}  // namespace tandem
