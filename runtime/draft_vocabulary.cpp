#include "runtime/draft_vocabulary.h"

#include <fmt/format.h>

#include <algorithm>

#include "placement/check.h"
#include "placement/files.h"
#include "placement/units.h"

namespace tandem {
namespace {

using Counts = std::vector<std::uint64_t>;  // by token id

void count(std::span<const TokenId> tokens, Counts& counts) {
  for (const TokenId id : tokens)
    if (id >= 0 && static_cast<std::size_t>(id) < counts.size()) ++counts[static_cast<std::size_t>(id)];
}

void count_text(const std::filesystem::path& path, const Tokenizer& tokenizer, Counts& counts) {
  const std::string text = read_file(path, "text for the draft vocabulary");
  if (text.empty())
    fail_input("{}: expected a text to count the tokens of, found an empty file. Fix: another --draft-vocab-from",
               path.string());
  count(tokenizer.encode(text, false), counts);
}

// The number of chats that were counted.
std::size_t count_history(const SavedChats& saved, const Model& model, const Tokenizer& tokenizer, Counts& counts) {
  for (const SavedChat& chat : saved.chats)
    count(chat.fingerprint == model.fingerprint() ? chat.tokens : tokenizer.encode(chat.text, false), counts);
  return saved.chats.size();
}

}  // namespace

std::int64_t draft_vocabulary_size(const Policy::Drafting& drafting, std::int64_t vocab) {
  if (drafting.vocabulary.value_or(0) > vocab)
    fail_input(
        "drafting.vocabulary (--draft-vocab): expected at most the {} tokens of the model, found {}. Fix: fewer, or "
        "off",
        vocab, *drafting.vocabulary);
  if (drafting.depth == 0) return 0;  // the head is never asked
  const std::int64_t size = drafting.vocabulary ? *drafting.vocabulary : std::min(vocab, kAutoDraftVocabulary);
  return size == vocab ? 0 : size;
}

DraftVocabulary choose_draft_vocabulary(const Policy::Drafting& drafting, const Model& model,
                                        const Tokenizer& tokenizer, const ReadSavedChats& saved) {
  DraftVocabulary vocabulary;
  vocabulary.of = static_cast<std::size_t>(model.shape.vocab);
  const auto size = static_cast<std::size_t>(model.mtp ? draft_vocabulary_size(drafting, model.shape.vocab) : 0);
  if (size == 0) {
    if (drafting.vocabulary_from != VocabularySource::kFile)
      vocabulary.warnings.emplace_back(
          "drafting.vocabulary_from (--draft-vocab-from) has no effect: the draft head has all tokens to choose from, "
          "or there is none. Fix: --draft-vocab N, or leave it out");
    return vocabulary;
  }
  CHECK(tokenizer.size() == vocabulary.of, "{} and {} tokens", tokenizer.size(), vocabulary.of);
  Counts counts(vocabulary.of);
  vocabulary.chosen_by = "the tokenizer's own order";
  if (drafting.vocabulary_from == VocabularySource::kText) {
    count_text(drafting.vocabulary_text, tokenizer, counts);
    vocabulary.chosen_by = fmt::format("their number in {}", drafting.vocabulary_text.filename().string());
  } else if (drafting.vocabulary_from == VocabularySource::kHistory) {
    const SavedChats chats = saved ? saved() : SavedChats{};
    for (const std::string& problem : chats.problems)
      vocabulary.warnings.push_back("not counted for the draft vocabulary: " + problem);
    if (const std::size_t counted = count_history(chats, model, tokenizer, counts); counted > 0)
      vocabulary.chosen_by = fmt::format("their number in {} saved conversation{}", counted, counted == 1 ? "" : "s");
    else
      vocabulary.warnings.emplace_back(
          "drafting.vocabulary_from: history: expected saved conversations, found none; the tokenizer's own order "
          "decides. Fix: /save some in `tandem chat`, or leave it out");
  }
  std::vector<TokenId> order = tokenizer.by_rank();
  const auto plain = std::find_if(order.begin(), order.end(),
                                  [&](TokenId id) { return !tokenizer.is_special(id) && !tokenizer.is_stop(id); });
  std::stable_sort(plain, order.end(), [&](TokenId a, TokenId b) {
    return counts[static_cast<std::size_t>(a)] > counts[static_cast<std::size_t>(b)];
  });
  order.resize(size);
  std::sort(order.begin(), order.end());
  vocabulary.ids = std::move(order);
  return vocabulary;
}

std::string describe(const DraftVocabulary& vocabulary) {
  if (vocabulary.ids.empty()) return {};
  return fmt::format("{} of {} tokens, by {}", grouped(static_cast<std::int64_t>(vocabulary.ids.size())),
                     grouped(static_cast<std::int64_t>(vocabulary.of)), vocabulary.chosen_by);
}

}  // namespace tandem
