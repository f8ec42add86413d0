// A draft head that chooses among few tokens: text and logits are those without drafts, whatever the list, and a draft
// is what the sampler picks from the whole head's logits when nothing else could be picked.
#include <cstring>
#include <limits>
#include <random>
#include <set>

#include "cpu/cpu_ops.h"
#include "cpu/reference_ops.h"
#include "runtime/draft_vocabulary.h"
#include "runtime/lossy_eval.h"
#include "tests/e2e/draft_runs.h"
#include "tests/runtime/model_cases.h"

namespace tandem::testing {
namespace {

using Ids = std::vector<TokenId>;

// The trained model with a vocabulary for its head; empty: all tokens.
struct Machine {
  explicit Machine(const Ids& ids, int workers = 1)
      : model(Model::open(TANDEM_SOURCE_DIR "/models/flash-next-nano-q4.gguf")),
        ops(workers),
        pipeline((reduce(model, ids), model), ops, 128) {}
  static void reduce(Model& model, const Ids& ids) {
    if (!ids.empty()) model.mtp->reduce_output(ids);
  }
  Answer answer(std::span<const TokenId> prompt, const DraftSettings& settings, const Request& request) {
    SequenceState state(model.shape, kStateOptions);
    SequenceDrafter drafter(pipeline, state, settings);
    return run(pipeline, state, drafter, prompt, request);
  }
  Model model;
  CpuOps ops;
  Pipeline pipeline;
};

Machine& whole() {
  static Machine machine({});
  return machine;
}

const Tokenizer& tokenizer() {
  static const Tokenizer nano_tokenizer = Tokenizer::from_gguf(nano().gguf());
  return nano_tokenizer;
}

Ids by_source(int size, VocabularySource source) {
  Policy::Drafting drafting;
  drafting.vocabulary = size;
  drafting.vocabulary_from = source;
  drafting.vocabulary_text = TANDEM_SOURCE_DIR "/tests/golden/eval/chat.txt";
  const auto saved = [] {
    return SavedChats{{{nano().fingerprint(), prompts()[2], {}}, {1, {}, "The quick brown fox."}}, {}};
  };
  return choose_draft_vocabulary(drafting, nano(), tokenizer(), saved).ids;
}

// All tokens but these.
Ids without(const Ids& left_out) {
  const std::set<TokenId> out(left_out.begin(), left_out.end());
  Ids ids;
  for (TokenId id = 0; id < nano().shape.vocab; ++id)
    if (out.count(id) == 0) ids.push_back(id);
  return ids;
}

TEST(DraftVocabulary, EverySizeAndSourceGivesTheSameTextAndLogits) {
  const int vocab = static_cast<int>(nano().shape.vocab);
  std::vector<Ids> lists{{7}, by_source(1, VocabularySource::kFile)};
  for (const int size : {vocab - 1, vocab / 2, vocab / 8, 40})
    for (const VocabularySource source : {VocabularySource::kFile, VocabularySource::kText, VocabularySource::kHistory})
      if (size != 40 || source == VocabularySource::kText) lists.push_back(by_source(size, source));
  std::vector<std::pair<Request, std::vector<Answer>>> plain;  // by prompt
  for (const SamplerSettings& sampling : samplings()) {
    Request request;
    request.sampling = sampling;
    std::vector<Answer> answers;
    for (const std::size_t p : {0UL, 2UL})
      answers.push_back(whole().answer(std::span(prompts()[p]).first(90), off(), request));
    plain.emplace_back(request, std::move(answers));
  }
  std::uint64_t accepted = 0, drafted = 0;
  for (std::size_t n = 0; n < lists.size(); ++n) {
    Machine machine(lists[n], n % 2 == 0 ? 1 : 2);
    for (std::size_t s = 0; s < plain.size(); ++s)
      for (const std::size_t p : {0UL, 1UL})
        for (const DraftSettings& settings :
             {DraftSettings{true, false, 1 + static_cast<int>((n + s + p) % 8)}, DraftSettings{true, true, {}}}) {
          const Answer answer = machine.answer(std::span(prompts()[2 * p]).first(90), settings, plain[s].first);
          expect_same(answer, plain[s].second[p], fmt::format("list {} of {}, sampling {}", n, lists[n].size(), s));
          drafted += answer.result.drafts.source_drafted[0];
          accepted += answer.result.drafts.source_accepted[0];
        }
  }
  EXPECT_GT(drafted, 2000U);
  EXPECT_GT(accepted, 400U);
}

TEST(DraftVocabulary, NoTokenThatTheTextNeeds) {
  for (const SamplerSettings& sampling : samplings()) {
    Request request;
    request.sampling = sampling;
    const std::span<const TokenId> prompt = std::span(prompts()[0]).first(90);
    const Answer plain = whole().answer(prompt, off(), request);
    const Answer all = whole().answer(prompt, {true, false, 3}, request);
    Machine machine(without(plain.tokens));
    const Answer drafted = machine.answer(prompt, {true, false, 3}, request);
    expect_same(drafted, plain, "without its tokens");
    EXPECT_GT(drafted.result.drafts.source_drafted[0], 20U);
    EXPECT_EQ(drafted.result.drafts.all_accepted(), 0U);
    EXPECT_GT(all.result.drafts.all_accepted(), 0U);
  }
}

// With a token that ends the answer as the only one.
TEST(DraftVocabulary, OnlyTheEndOfAnAnswer) {
  const Ids ids = by_source(1, VocabularySource::kFile);
  ASSERT_EQ(ids, Ids{tokenizer().stop_ids()[0]});
  Machine machine(ids);
  Request request;
  request.sampling.temperature = 0.0F;
  const std::span<const TokenId> prompt = std::span(prompts()[2]).first(60);
  const Answer plain = whole().answer(prompt, off(), request);
  const Answer drafted = machine.answer(prompt, {true, false, 1}, request);
  expect_same(drafted, plain, "size 1");
  // The last token of the limit needs no draft after it.
  EXPECT_EQ(drafted.result.drafts.source_drafted[0], drafted.result.drafts.rounds - 1);
  EXPECT_EQ(drafted.result.drafts.source_accepted[0], 0U);
  // A text that comes to it.
  Request ending = request;
  ending.stop_ids = {plain.tokens[10]};
  Machine other({plain.tokens[10]});
  const Answer ended = other.answer(prompt, {true, false, 1}, ending);
  expect_same(ended, whole().answer(prompt, off(), ending), "the end drafted");
  EXPECT_EQ(ended.result.reason, EndReason::kStopToken);
}

// Saved with one list, restored with another.
TEST(DraftVocabulary, GoesOnAfterARestore) {
  TempDir dir;
  const int vocab = static_cast<int>(nano().shape.vocab);
  Machine half(by_source(vocab / 2, VocabularySource::kFile)), few(by_source(vocab / 8, VocabularySource::kText));
  Request request;
  request.sampling = samplings()[1];
  std::vector<Answer> runs;
  for (Machine* before : {&whole(), &half}) {
    SequenceState state(nano().shape, kStateOptions);
    SequenceDrafter drafter(before->pipeline, state, {true, true, 3});
    run(before->pipeline, state, drafter, std::span(prompts()[2]).first(120), request);
    state.save(dir / "sequence.state", before->model.fingerprint());
    for (Machine* after : {&whole(), &half, &few})
      for (const DraftSettings& settings : {off(), DraftSettings{true, false, 3}}) {
        SequenceState restored(nano().shape, kStateOptions);
        restored.restore(dir / "sequence.state", after->model.fingerprint());
        SequenceDrafter next(after->pipeline, restored, settings);
        runs.push_back(run(after->pipeline, restored, next, std::span(prompts()[0]).first(20), request));
        expect_same(runs.back(), runs.front(), "restored");
        if (settings.head) {
          EXPECT_GT(runs.back().result.drafts.source_drafted[0], 10U);
        }
      }
  }
}

// A head of a separate file, with an output matrix of its own or the model's.
TEST(DraftVocabulary, ASeparateDraftFile) {
  std::mt19937 random(5);
  for (const bool own : {false, true}) {
    SyntheticOptions options;
    options.shape.mtp_layers = 0;
    SyntheticOptions draft;
    draft.seed = 9;
    const GgufBuilder trunk = synthetic_model(options), head = synthetic_mtp(draft, own);
    std::vector<TokenId> prompt(30);
    for (TokenId& t : prompt) t = static_cast<TokenId>(random() % 256);
    for (const SamplerSettings& sampling : samplings()) {
      Request request;
      request.sampling = sampling;
      std::vector<Answer> answers;
      for (const Ids& ids : {Ids{}, Ids{0, 3, 17, 99, 256, 258, 300, 319}, Ids{319}}) {
        BoundModel bound = bind(trunk, head);
        Machine::reduce(*bound.model, ids);
        CpuOps ops(1);
        Pipeline pipeline(*bound.model, ops, 64);
        for (const DraftSettings& settings : {off(), DraftSettings{true, false, 4}}) {
          SequenceState state(bound->shape, kStateOptions);
          SequenceDrafter drafter(pipeline, state, settings);
          answers.push_back(run(pipeline, state, drafter, prompt, request));
          expect_same(answers.back(), answers.front(), fmt::format("own {}, {} tokens", own, ids.size()));
          if (settings.head) {
            EXPECT_GT(answers.back().result.drafts.source_drafted[0], 20U);
          }
        }
      }
    }
  }
}

// Logits of the head at every row of a prompt.
std::vector<float> head_logits(const Model& model, Ops& ops, std::span<const TokenId> tokens, Ids& ids) {
  Pipeline pipeline(model, ops, 64);
  SequenceState state(model.shape, StateOptions{64, KvType::kF16});
  const PassOutput trunk = pipeline.forward(state, tokens, PassMode::kCommit, LogitRows::kAll);
  const std::vector<float> wide(trunk.wide.data, trunk.wide.data + trunk.wide.rows * trunk.wide.cols);
  MtpHead head(pipeline, MtpNorm::kFull, MtpAttention::kSparse);
  const PassOutput out = head.forward(state, ConstRows(wide.data(), tokens.size() - 1, trunk.wide.cols),
                                      tokens.subspan(1), PassMode::kCommit, LogitRows::kAll);
  const std::vector<float> logits(out.logits.data, out.logits.data + out.logits.rows * out.logits.cols);
  ids.assign(out.ids.begin(), out.ids.end());
  EXPECT_EQ(out.logits.cols, ids.empty() ? static_cast<std::size_t>(model.shape.vocab) : ids.size());
  // The trunk goes on with all tokens.
  EXPECT_EQ(pipeline.forward(state, tokens.first(1), PassMode::kCommit, LogitRows::kAll).logits.cols,
            static_cast<std::size_t>(model.shape.vocab));
  return logits;
}

void expect_columns(const Model& all, const Model& few, const Ids& wanted, Ops& ops, const std::string& what) {
  Ids tokens, ids;
  for (TokenId i = 0; i < 9; ++i) tokens.push_back((i * 71 + 3) % 256);
  const std::vector<float> full = head_logits(all, ops, tokens, ids);
  EXPECT_TRUE(ids.empty());
  const std::vector<float> part = head_logits(few, ops, tokens, ids);
  EXPECT_EQ(ids, wanted);
  std::vector<float> columns;
  for (std::size_t r = 0; r + 1 < tokens.size(); ++r)
    for (const TokenId id : wanted)
      columns.push_back(full[r * static_cast<std::size_t>(all.shape.vocab) + static_cast<std::size_t>(id)]);
  ASSERT_EQ(part.size(), columns.size()) << what;
  EXPECT_EQ(std::memcmp(part.data(), columns.data(), part.size() * sizeof(float)), 0) << what;
}

TEST(DraftVocabulary, LogitsAreColumnsOfTheWholeHeads) {
  const auto machines = [] {
    std::vector<std::unique_ptr<Ops>> list;
    list.push_back(std::make_unique<ReferenceOps>());
    list.push_back(std::make_unique<CpuOps>(1));
    list.push_back(std::make_unique<CpuOps>(2));
    return list;
  };
  const Ids ids{0, 1, 2, 5, 8, 13, 21, 34, 55, 89, 144, 233, 258, 300, 310, 318, 319};  // a tile and one row
  for (const DType type : {DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0}) {
    SyntheticOptions options;
    options.type = [type](const tandem::TensorSpec& spec) {
      return spec.role == TensorRole::kHead ? type : spec.form == TensorForm::kMatrix ? DType::Q8_0 : DType::F32;
    };
    const GgufBuilder builder = synthetic_model(options);
    const BoundModel all = bind(builder);
    BoundModel few = bind(builder);
    few.model->mtp->reduce_output(ids);
    ASSERT_EQ(few->mtp->output.type, type);
    for (const auto& ops : machines())
      expect_columns(*all.model, *few.model, ids, *ops, fmt::format("{} {}", dtype_name(type), ops->describe()));
  }
  const Ids half = by_source(1000, VocabularySource::kFile);
  Machine few(half);
  for (const auto& ops : machines()) expect_columns(nano(), few.model, half, *ops, "nano");
}

// The certificate of biased acceptance takes the head's tokens for what they are: one that is left out but never likely
// (a byte that is in no UTF-8 text) moves all logits behind it and changes nothing.
TEST(DraftVocabulary, TheCertificateOfLossyDraftsKnowsTheTokens) {
  Machine machine(without(tokenizer().encode("\xff", false)));
  LossyEvalOptions options;
  options.text = {.window = 100, .last_window = 2, .chunk = 37};
  options.lossy.biased_acceptance = true;
  for (const float temperature : {0.0F, 0.8F}) {
    options.sampling.temperature = temperature;
    options.sampling.top_k = 20;
    std::vector<LossyResult> results;
    for (Machine* m : {&whole(), &machine}) {
      SequenceState exact(nano().shape, kStateOptions), state(nano().shape, kStateOptions);
      results.push_back(
          *evaluate_lossy(m->pipeline, exact, state, std::span(prompts()[2]).first(200), options, LossyHooks{}));
    }
    std::size_t changed = 0;
    ASSERT_EQ(results[0].positions.size(), results[1].positions.size());
    for (std::size_t i = 0; i < results[0].positions.size(); ++i) {
      const auto &a = results[0].positions[i].head, &b = results[1].positions[i].head;
      ASSERT_EQ(a.has_value(), b.has_value());
      if (!a) continue;
      EXPECT_EQ(a->total_variation, b->total_variation) << i;
      EXPECT_EQ(a->kl, b->kl) << i;
      changed += a->total_variation > 0;
    }
    if (temperature > 0) {
      EXPECT_GT(changed, 50U);
    }
  }
}

// Every draft, at every place: the sampler's pick from the whole head's logits with all others at minus infinity.
TEST(DraftVocabulary, ADraftIsTheSamplersPickAmongItsTokens) {
  const Ids ids = by_source(600, VocabularySource::kText);
  Machine machine(ids);
  const std::span<const TokenId> tokens = std::span(prompts()[2]).first(110);
  const auto walk = [&](Pipeline& pipeline, const SamplerSettings& sampling, auto&& look) {
    SequenceState state(nano().shape, kStateOptions);
    MtpDrafter head(pipeline, state, MtpNorm::kFull, MtpAttention::kSparse);
    PipelineDecoder decoder(pipeline, state, 64, nullptr, &head);
    ASSERT_TRUE(decoder.append(tokens.first(60), {}, {}));
    head.start(50, sampling);
    for (std::size_t i = 60; i + 1 < tokens.size(); ++i) {
      ASSERT_TRUE(head.begin(tokens.first(i + 1)));
      look(i, head.draft(tokens.first(i + 1)));
      head.end();
      decoder.open(tokens.subspan(i, 1));
      decoder.keep(1);
    }
  };
  SequenceState state(nano().shape, kStateOptions);
  const PassOutput trunk = whole().pipeline.forward(state, tokens, PassMode::kCommit, LogitRows::kNone);
  const std::vector<float> wide(trunk.wide.data, trunk.wide.data + trunk.wide.rows * trunk.wide.cols);
  MtpHead head(whole().pipeline, MtpNorm::kFull, MtpAttention::kSparse);
  const PassOutput out = head.forward(state, ConstRows(wide.data(), tokens.size() - 1, trunk.wide.cols),
                                      tokens.subspan(1), PassMode::kCommit, LogitRows::kAll);
  std::vector<std::vector<float>> logits;
  for (std::size_t r = 0; r < out.logits.rows; ++r) {
    std::vector<float>& row = logits.emplace_back(out.logits.cols, -std::numeric_limits<float>::infinity());
    for (const TokenId id : ids) row[static_cast<std::size_t>(id)] = out.logits.span(r)[static_cast<std::size_t>(id)];
  }
  std::vector<SamplerSettings> settings = samplings();
  settings.push_back(settings.back());
  settings.back().penalty_window = 0;  // so that it counts where the answer begins
  for (const SamplerSettings& sampling : settings) {
    Sampler sampler(sampling);
    std::size_t others = 0;
    walk(machine.pipeline, sampling, [&](std::size_t i, const Draft& draft) {
      EXPECT_EQ(draft.token, sampler.sample(logits[i - 1], tokens.first(i + 1), 50)) << i;
      EXPECT_TRUE(std::binary_search(ids.begin(), ids.end(), draft.token));
      others += draft.token != sampler.sample(out.logits.span(i - 1), tokens.first(i + 1), 50);
      // Its probability by the head, without penalties and filters.
      const float t = sampling.temperature > 0 ? sampling.temperature : 1.0F;
      double sum = 0;
      for (const float x : logits[i - 1]) sum += std::exp(static_cast<double>((x - out.logits.span(i - 1)[0]) / t));
      const float x = logits[i - 1][static_cast<std::size_t>(draft.token)];
      EXPECT_NEAR(draft.confidence, std::exp(static_cast<double>((x - out.logits.span(i - 1)[0]) / t)) / sum, 1e-4);
    });
    EXPECT_GT(others, 0U);
  }
}

}  // namespace
}  // namespace tandem::testing
