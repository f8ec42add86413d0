// Cuts text into the pieces that byte pair merging works on, by the `qwen35` regular expression (docs/formats.md).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

namespace tandem {

// Bytes that are not UTF-8 are outside the expression's world: every maximal run of well-formed text is cut by the
// expression as if it stood alone, and every other byte is a piece of its own. The pieces are consecutive and cover the
// whole text, whatever it is; the cost is linear in its length.
class Pretokenizer {
 public:
  Pretokenizer();
  Pretokenizer(Pretokenizer&&) noexcept;
  Pretokenizer& operator=(Pretokenizer&&) noexcept;
  ~Pretokenizer();

  // Calls `piece(view into text)` for each piece in order. Thread safe.
  void split(std::string_view text, const std::function<void(std::string_view)>& piece) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
