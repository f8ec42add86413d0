// Which tokens the draft head chooses among. Its output matrix is the widest of the model, and reading all of it for
// one guess takes longer than the block before it; most tokens are hardly ever meant. A token that is left out is never
// drafted, and that is all: drafts are checked as ever (runtime/draft.h), so the text does not depend on the list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "placement/policy.h"
#include "runtime/model.h"
#include "runtime/tokenizer.h"

namespace tandem {

// Of larger vocabularies the head gets this many tokens by itself (docs/drafting.md has the figures).
inline constexpr std::int64_t kAutoDraftVocabulary = 65536;

// One conversation that the user saved: its tokens, and its text for a model with other tokens.
struct SavedChat {
  std::uint64_t fingerprint = 0;  // of the model that the tokens belong to
  std::vector<TokenId> tokens;
  std::string text;
};
struct SavedChats {
  std::vector<SavedChat> chats;
  std::vector<std::string> problems;  // files that could not be read, as messages
};
using ReadSavedChats = std::function<SavedChats()>;

struct DraftVocabulary {
  std::vector<TokenId> ids;  // ascending; empty: all tokens
  std::size_t of = 0;        // tokens of the model
  std::string chosen_by;     // "the tokenizer's own order", ...
  std::vector<std::string> warnings;
};

// Tokens that the policy leaves the head of a model with `vocab` tokens; 0: all. Throws InputError for more than there
// are.
std::int64_t draft_vocabulary_size(const Policy::Drafting& drafting, std::int64_t vocab);

// The list: special tokens first, those that end an answer before the others; then by how often the source has them;
// then by the tokenizer's own order (Tokenizer::by_rank). Saved chats of another model are counted by their text. When
// none can be read, or `saved` is empty, the tokenizer's order decides alone, with a warning. Throws InputError for a
// text file that cannot be read or is empty. All tokens when the model has no draft head.
DraftVocabulary choose_draft_vocabulary(const Policy::Drafting& drafting, const Model& model,
                                        const Tokenizer& tokenizer, const ReadSavedChats& saved);

// "65,536 of 248,320 tokens, by the tokenizer's own order"; empty when the head has all.
std::string describe(const DraftVocabulary& vocabulary);

}  // namespace tandem
