#include "runtime/stated_head.h"

#include "placement/check.h"
#include "runtime/philox.h"

namespace tandem {

Draft StatedHead::draft(std::span<const TokenId> prefix) {
  Draft draft = inner_.draft(prefix);
  draft.confidence = static_cast<float>(chance_);
  if (prefix.size() >= text_.size()) return draft;  // nobody can say what is right
  const TokenId right = text_[prefix.size()];
  constexpr double kAll = 4294967296.0;
  const bool hit = static_cast<double>(sampling_bits(seed_, prefix.size(), 0)) < chance_ * kAll;
  CHECK(right >= 0, "token {}", right);
  draft.token = hit ? right : right == 0 ? 1 : right - 1;
  return draft;
}

}  // namespace tandem
