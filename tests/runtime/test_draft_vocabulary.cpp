// Which tokens a draft head is left with: the tokenizer's order, counts of texts and conversations, sizes; the rows
// that are copied for it; the sampler among some tokens only.
#include "runtime/draft_vocabulary.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "placement/files.h"
#include "runtime/model_visit.h"
#include "runtime/packed_matrix.h"
#include "runtime/plan_model.h"
#include "runtime/sampler.h"
#include "runtime/workspace.h"
#include "tests/runtime/model_cases.h"

namespace tandem::testing {
namespace {

using Ids = std::vector<TokenId>;

// The synthetic vocabulary of 320 tokens (tests/synthetic_model.h): bytes 0 to 255, ten special ones, then the merges
// " t", "he", "in", " the", "er", "on", "  ", "ing", then unused ones.
constexpr TokenId kFirstMerge = 266, kThe = kFirstMerge + 3, kIng = kFirstMerge + 7, kUnused = kFirstMerge + 8;

const BoundModel& model() {
  static const BoundModel bound = bind(base_model());
  return bound;
}
const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::from_gguf(model()->gguf());
  return loaded;
}

DraftVocabulary choose(int size, VocabularySource source = VocabularySource::kFile,
                       const std::filesystem::path& text = {}, const ReadSavedChats& saved = {}) {
  Policy::Drafting drafting;
  drafting.vocabulary = size;
  drafting.vocabulary_from = source;
  drafting.vocabulary_text = text;
  return choose_draft_vocabulary(drafting, *model().model, tokenizer(), saved);
}

Ids sorted(Ids ids) {
  std::sort(ids.begin(), ids.end());
  return ids;
}

Ids specials() {
  Ids ids(10);
  std::iota(ids.begin(), ids.end(), kEndOfText);
  return ids;
}

std::string refused(const std::function<void()>& body) {
  try {
    body();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(DraftVocabulary, TheTokenizersOrder) {
  Ids expected{kImEnd, kEndOfText, kImStart, kImagePad};
  for (TokenId id = 260; id < kFirstMerge; ++id) expected.push_back(id);
  for (TokenId byte = 0; byte < 256; ++byte) expected.push_back(byte);
  for (TokenId id = kFirstMerge; id < 320; ++id) expected.push_back(id);
  EXPECT_EQ(tokenizer().by_rank(), expected);
}

// Merges whose order is not that of the ids, a merge made twice, bytes out of order.
TEST(DraftVocabulary, TheOrderIsByRank) {
  GgufBuilder builder = base_model();
  const auto space = std::string("\xC4\xA0");
  builder.add("tokenizer.ggml.merges",
              std::vector<std::string>{"o n", "in g", "i n", "h e", space + " t", space + "t he", "e r"});
  const std::vector<std::uint8_t> image = builder.build();
  const Ids order = Tokenizer::from_gguf(Gguf::parse(image, "model.gguf")).by_rank();
  ASSERT_EQ(order.size(), 320U);
  EXPECT_EQ(Ids(order.begin() + 266, order.begin() + 274),
            (Ids{kFirstMerge + 5, kIng, kFirstMerge + 2, kFirstMerge + 1, kFirstMerge, kThe, kFirstMerge + 4,
                 kFirstMerge + 6}));  // the last is made by none
  EXPECT_EQ(order[274], kUnused);
  EXPECT_EQ(sorted(order), sorted(tokenizer().by_rank()));
}

TEST(DraftVocabulary, OfTheFileEverySizeIsThatMuchOfTheOrder) {
  const Ids order = tokenizer().by_rank();
  for (int size = 1; size < 320; ++size) {
    const DraftVocabulary vocabulary = choose(size);
    EXPECT_EQ(vocabulary.ids, sorted(Ids(order.begin(), order.begin() + size)));
    EXPECT_TRUE(vocabulary.warnings.empty());
  }
  EXPECT_EQ(describe(choose(300)), "300 of 320 tokens, by the tokenizer's own order");
  for (const int all : {0, 320}) {
    EXPECT_TRUE(choose(all).ids.empty());
    EXPECT_EQ(describe(choose(all)), "");
  }
}

TEST(DraftVocabulary, SizesByThePolicy) {
  Policy::Drafting drafting;
  for (const std::int64_t vocab : {1, 320, 65535, 65536}) EXPECT_EQ(draft_vocabulary_size(drafting, vocab), 0);
  EXPECT_EQ(draft_vocabulary_size(drafting, 65537), 65536);
  EXPECT_EQ(draft_vocabulary_size(drafting, 248320), 65536);
  for (const int size : {1, 1000, 248319}) {
    drafting.vocabulary = size;
    EXPECT_EQ(draft_vocabulary_size(drafting, 248320), size);
  }
  drafting.vocabulary = 248320;
  EXPECT_EQ(draft_vocabulary_size(drafting, 248320), 0);
  drafting.vocabulary = 0;
  EXPECT_EQ(draft_vocabulary_size(drafting, 248320), 0);
  drafting.vocabulary = 321;
  EXPECT_EQ(refused([&] { draft_vocabulary_size(drafting, 320); }),
            "drafting.vocabulary (--draft-vocab): expected at most the 320 tokens of the model, found 321. Fix: fewer, "
            "or off");
  drafting.vocabulary = 300;
  for (const int depth : {0, 1}) {
    drafting.depth = depth;
    EXPECT_EQ(draft_vocabulary_size(drafting, 320), depth == 0 ? 0 : 300);
  }
}

TEST(DraftVocabulary, OfATextTheMostFrequentFirst) {
  TempDir dir;
  // "zz": 4 times z; " the" twice, with a first one without a blank ("t", "he"); "x" once. Markers are plain text here.
  tandem::write_file(dir / "text.txt", "zzzz the the x<|im_start|>");
  const Ids special = specials();
  const auto with = [&](const Ids& more) {
    Ids ids = special;
    ids.insert(ids.end(), more.begin(), more.end());
    return sorted(ids);
  };
  const auto list = [&](int size) { return choose(size, VocabularySource::kText, dir / "text.txt").ids; };
  EXPECT_EQ(list(10), special);
  EXPECT_EQ(list(11), with({'z'}));
  // Twice each: " the", "|", "t" of im_start... in the order of the tokenizer, bytes before merges.
  std::vector<int> counts(320);
  for (const TokenId id : tokenizer().encode("zzzz the the x<|im_start|>", false))
    ++counts[static_cast<std::size_t>(id)];
  EXPECT_EQ(counts['z'], 4);
  EXPECT_EQ(counts[kThe], 2);
  EXPECT_EQ(counts[kImStart], 0);
  const Ids order = tokenizer().by_rank();
  for (int size = 11; size < 320; ++size) {  // the list is the best by (count, then order), chosen one by one
    Ids ids = special;
    std::vector<bool> taken(320);
    for (const TokenId id : special) taken[static_cast<std::size_t>(id)] = true;
    while (static_cast<int>(ids.size()) < size) {
      TokenId best = -1;
      for (const TokenId id : order)
        if (!taken[static_cast<std::size_t>(id)] &&
            (best < 0 || counts[static_cast<std::size_t>(id)] > counts[static_cast<std::size_t>(best)]))
          best = id;
      taken[static_cast<std::size_t>(best)] = true;
      ids.push_back(best);
    }
    EXPECT_EQ(list(size), sorted(ids)) << size;
  }
  EXPECT_EQ(describe(choose(300, VocabularySource::kText, dir / "text.txt")),
            "300 of 320 tokens, by their number in text.txt");
}

TEST(DraftVocabulary, OfConversations) {
  const std::uint64_t ours = model()->fingerprint();
  const auto list = [&](const SavedChats& saved) {
    return choose(12, VocabularySource::kHistory, {}, [&] { return saved; });
  };
  const Ids special = specials();
  const auto with = [&](TokenId a, TokenId b) {
    Ids ids = special;
    ids.push_back(a);
    ids.push_back(b);
    return sorted(ids);
  };
  // Tokens of this model count as they are, those of another one by the text. Ids that there are not count for nothing.
  const SavedChats mine{{{ours, {kIng, kIng, 'q', 400, -1}, "zzzzzzzz"}}, {}};
  EXPECT_EQ(list(mine).ids, with(kIng, 'q'));
  const SavedChats both{{{ours, {kIng, kIng, 'q'}, "zzzzzzzz"}, {ours + 1, {'a', 'a', 'a', 'a'}, "zzz"}}, {}};
  EXPECT_EQ(list(both).ids, with('z', kIng));
  EXPECT_EQ(describe(list(both)), "12 of 320 tokens, by their number in 2 saved conversations");
  EXPECT_TRUE(list(both).warnings.empty());
  const SavedChats damaged{{{ours, {kIng, kIng, 'q'}, ""}}, {"a.json: expected JSON"}};
  EXPECT_EQ(list(damaged).ids, with(kIng, 'q'));
  EXPECT_EQ(joined(list(damaged).warnings), "not counted for the draft vocabulary: a.json: expected JSON\n");
  for (const ReadSavedChats& none : {ReadSavedChats{}, ReadSavedChats{[] { return SavedChats{}; }}}) {
    const DraftVocabulary vocabulary = choose(12, VocabularySource::kHistory, {}, none);
    EXPECT_EQ(vocabulary.ids, choose(12).ids);
    expect_parts(joined(vocabulary.warnings), {"history: expected saved conversations, found none", "Fix: /save"});
    EXPECT_EQ(describe(vocabulary), "12 of 320 tokens, by the tokenizer's own order");
  }
}

TEST(DraftVocabulary, WhatCannotBe) {
  TempDir dir;
  tandem::write_file(dir / "empty.txt", "");
  EXPECT_EQ(refused([&] { choose(12, VocabularySource::kText, dir / "empty.txt"); }),
            (dir / "empty.txt").string() +
                ": expected a text to count the tokens of, found an empty file. Fix: another --draft-vocab-from");
  expect_parts(refused([&] { choose(12, VocabularySource::kText, dir / "none.txt"); }),
               {"none.txt", "text for the draft vocabulary"});
  // A source without a size to use it for.
  expect_parts(joined(choose(0, VocabularySource::kHistory).warnings), {"vocabulary_from", "has no effect"});
  Policy::Drafting drafting;
  drafting.vocabulary = 12;
  const BoundModel trunk = bind(base_model(), MtpPolicy::kOff);
  EXPECT_TRUE(choose_draft_vocabulary(drafting, *trunk.model, tokenizer(), {}).ids.empty());
}

TEST(DraftVocabulary, RowsAreThoseOfTheFile) {
  const Ids ids{0, 7, 8, 100, 319};
  for (const bool own : {false, true}) {
    SyntheticOptions small;
    small.shape.mtp_layers = 0;
    BoundModel bound = bind(synthetic_model(small), synthetic_mtp({}, own));
    const WeightView whole = bound->mtp->output, trunk = bound->output;
    const std::uint64_t fingerprint = bound->fingerprint();
    bound.model->mtp->reduce_output(ids);
    const Model moved = std::move(*bound.model);
    const WeightView& few = moved.mtp->output;
    EXPECT_EQ(moved.mtp->output_ids, ids);
    ASSERT_EQ(few.rows, ids.size());
    EXPECT_EQ(few.cols, whole.cols);
    EXPECT_EQ(few.type, whole.type);
    for (std::size_t i = 0; i < ids.size(); ++i)
      EXPECT_EQ(std::memcmp(few.row(i), whole.row(static_cast<std::size_t>(ids[i])), whole.row_size()), 0) << i;
    EXPECT_EQ(moved.output.data, trunk.data);
    EXPECT_EQ(moved.output.rows, 320U);
    EXPECT_EQ(moved.fingerprint(), fingerprint);
    // Machines load it, and of a head of its own nothing else.
    std::vector<std::size_t> rows;
    for_each_matrix(moved, [&](const WeightView& view) {
      if (view.cols == 64 && (view.rows == 320 || view.data == few.data)) rows.push_back(view.rows);
    });
    EXPECT_EQ(rows, (std::vector<std::size_t>{320, 5}));
  }
}

TEST(DraftVocabulary, ThePlanCountsWhatIsLoaded) {
  const auto serial = [](std::size_t n, const std::function<void(std::size_t)>& body) {
    for (std::size_t i = 0; i < n; ++i) body(i);
  };
  for (const bool own : {false, true}) {
    SyntheticOptions small;
    small.shape.mtp_layers = 0;
    BoundModel bound = bind(synthetic_model(small), synthetic_mtp({}, own));
    const auto packed = [&](const WeightView& view) {
      return static_cast<std::int64_t>(pack_matrix(view, serial).bytes());
    };
    const std::int64_t trunk = packed(bound->output), head = packed(bound->mtp->output);
    const PlanModel whole = plan_model(*bound.model);
    EXPECT_EQ(whole.head_packed, own ? trunk + head : trunk);
    EXPECT_EQ(whole.draft_head_packed, head);
    EXPECT_EQ(whole.draft_tokens + whole.draft_head_rows, 0);
    const PlanModel planned = plan_model(*bound.model, 512, 21);
    bound.model->mtp->reduce_output([] {
      Ids ids(21);
      std::iota(ids.begin(), ids.end(), 40);
      return ids;
    }());
    const PlanModel loaded = plan_model(*bound.model, 512, 21);
    for (const PlanModel* plan : {&planned, &loaded}) {
      EXPECT_EQ(plan->head_packed, trunk);
      EXPECT_EQ(plan->draft_tokens, 21);
      EXPECT_EQ(plan->draft_head_packed, packed(bound->mtp->output));
      EXPECT_EQ(plan->draft_head_rows, static_cast<std::int64_t>(bound->mtp->output.bytes()));
      EXPECT_EQ(plan->dense_packed, whole.dense_packed);
      EXPECT_EQ(plan->draft_packed, whole.draft_packed);
    }
  }
  const BoundModel trunk = bind(base_model(), MtpPolicy::kOff);
  EXPECT_EQ(plan_model(*trunk.model, 512, 21).draft_tokens, 0);
  EXPECT_EQ(plan_model(*trunk.model, 512, 21).draft_head_packed, 0);
}

// Wide and narrow logits take turns in one piece of memory, which grows only.
TEST(DraftVocabulary, LogitsOfBothWidthsShareTheirMemory) {
  Workspace ws(host_memory(), tiny_shape(), 16, 100);
  ws.reserve_logits(2, 50);
  EXPECT_EQ(ws.logits.host(2).cols, 50U);
  ws.reserve_logits(3, 320);
  const std::uint64_t identity = ws.identity;
  const float* data = ws.logits.host(3).data;
  EXPECT_EQ(ws.logits.host(3).cols, 320U);
  ws.reserve_logits(16, 50);
  EXPECT_EQ(ws.logits.host(16).cols, 50U);
  EXPECT_EQ(ws.logits.rows(16).data, data);
  ws.reserve_logits(1, 320);
  EXPECT_EQ(ws.logits.host(1).cols, 320U);
  EXPECT_EQ(ws.identity, identity);
  ws.reserve_logits(20, 50);
  EXPECT_NE(ws.identity, identity);
}

// Among some tokens the sampler picks what it picks among all when the others are impossible.
TEST(SampleAmong, IsSamplingWithTheOthersAtMinusInfinity) {
  constexpr std::size_t kVocab = 500;
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0.0F, 4.0F);
  std::size_t elsewhere = 0;
  for (int n = 0; n < 2000; ++n) {
    std::vector<float> all(kVocab), masked(kVocab, -std::numeric_limits<float>::infinity()), few;
    for (float& x : all) x = n % 5 == 0 ? std::round(normal(random)) : normal(random);  // ties
    Ids ids;
    const auto share = 2 + random() % 60;
    for (TokenId id = 0; id < static_cast<TokenId>(kVocab); ++id)
      if (random() % share == 0) ids.push_back(id);
    if (ids.empty()) ids.push_back(3);
    for (const TokenId id : ids) {
      masked[static_cast<std::size_t>(id)] = all[static_cast<std::size_t>(id)];
      few.push_back(all[static_cast<std::size_t>(id)]);
    }
    SamplerSettings settings;
    settings.temperature = n % 4 == 0 ? 0.0F : 0.8F;
    settings.seed = random();
    // As many as there are would be another order of a sum.
    if (n % 3 == 1) settings.top_k = 1 + static_cast<int>(random() % ids.size());
    if (settings.top_k == static_cast<int>(ids.size())) settings.top_k = 0;
    if (n % 3 == 2) settings.top_p = 0.9F;
    if (n % 7 == 0) settings.min_p = 0.05F;
    if (n % 2 == 0) settings.presence_penalty = 1.5F;
    if (n % 5 != 1) settings.repetition_penalty = 1.2F;
    settings.penalty_window = 30;
    Ids prefix;
    for (int i = 0; i < 40; ++i) prefix.push_back(static_cast<TokenId>(random() % kVocab));
    Sampler a(settings), b(settings);
    const TokenId picked = a.sample(few, prefix, 10, ids);
    EXPECT_EQ(picked, b.sample(masked, prefix, 10)) << n;
    elsewhere += picked != b.sample(all, prefix, 10);
    b.sample(masked, prefix, 10);
    for (const TokenId id : {ids.front(), ids.back(), 3})
      EXPECT_EQ(a.at_least_as_likely(picked, id), b.at_least_as_likely(picked, id));
  }
  EXPECT_GT(elsewhere, 500U);
}

TEST(SampleAmong, MessagesAndPlacesAreThoseOfTheTokens) {
  const Ids ids{4, 9, 30};
  EXPECT_EQ(logit_of(9, ids, 3), 1U);
  EXPECT_EQ(logit_of(30, ids, 3), 2U);
  for (const TokenId none : {-1, 3, 5, 31}) EXPECT_FALSE(logit_of(none, ids, 3).has_value());
  EXPECT_EQ(logit_of(2, {}, 3), 2U);
  for (const TokenId none : {-1, 3}) EXPECT_FALSE(logit_of(none, {}, 3).has_value());
  EXPECT_EQ(argmax_token(std::vector<float>{1, 5, 5}, ids), 9);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  expect_parts(refused([&] { argmax_token(std::vector<float>{1, 5, nan}, ids); }), {"for token 30 (1 bad values"});
}

}  // namespace
}  // namespace tandem::testing
