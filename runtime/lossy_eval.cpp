#include "runtime/lossy_eval.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "runtime/expert_store.h"
#include "runtime/prompt_lookup.h"

namespace tandem {
namespace {

// Rows of a pass: logits of three passes are held at a time.
constexpr std::size_t kMostRows = 64;

// The sampler's distributions of trunk and head over the tokens that either of them keeps.
class Distributions {
 public:
  explicit Distributions(const SamplerSettings& settings) : sampler_(settings) {}

  void set_trunk(std::span<const float> logits, std::span<const TokenId> prefix) {
    ids_.clear();
    trunk_ = probabilities(logits, prefix);
  }
  DistributionChange with_head(std::span<const float> logits, std::span<const TokenId> prefix,
                               std::span<const TokenId> ids) {
    std::vector<double> draft = probabilities(logits, prefix, ids);
    trunk_.resize(ids_.size(), 0.0);
    return biased_change(trunk_, draft);
  }
  DistributionChange with_token(TokenId token) {
    const std::size_t i = index(token);
    trunk_.resize(ids_.size(), 0.0);
    return biased_change(trunk_, i);
  }

 private:
  std::size_t index(TokenId id) { return ids_.try_emplace(id, ids_.size()).first->second; }

  std::vector<double> probabilities(std::span<const float> logits, std::span<const TokenId> prefix,
                                    std::span<const TokenId> ids = {}) {
    std::vector<double> p(ids_.size());
    const auto put = [&](TokenId id, double value) {
      const std::size_t i = index(id);
      p.resize(ids_.size(), 0.0);
      p[i] = value;
    };
    if (sampler_.settings().temperature == 0.0F) {
      put(sampler_.sample(logits, prefix, 0, ids), 1.0);
      return p;
    }
    const std::span<const Candidate> kept = sampler_.filter(logits, prefix, 0, ids);
    float top = kept.front().score;
    for (const Candidate& c : kept) top = std::max(top, c.score);
    double sum = 0;
    for (const Candidate& c : kept) sum += std::exp(static_cast<double>(c.score) - static_cast<double>(top));
    for (const Candidate& c : kept) put(c.id, std::exp(static_cast<double>(c.score) - static_cast<double>(top)) / sum);
    return p;
  }

  Sampler sampler_;
  std::unordered_map<TokenId, std::size_t> ids_;
  std::vector<double> trunk_;
};

// Puts back the budget that the store had.
class SkipGuard {
 public:
  explicit SkipGuard(ExpertStore* store) : store_(store), budget_(store != nullptr ? store->tail_skip().budget() : 0) {}
  ~SkipGuard() { set(budget_); }
  SkipGuard(const SkipGuard&) = delete;
  SkipGuard& operator=(const SkipGuard&) = delete;
  void set(double budget) const {
    if (store_ != nullptr) store_->tail_skip().set_budget(budget);
  }
  TailSkip::Counts counts() const { return store_ != nullptr ? store_->tail_skip().counts() : TailSkip::Counts{}; }

 private:
  ExpertStore* store_;
  double budget_;
};

struct LossyRun {
  Pipeline& pipeline;
  const LossyEvalOptions& options;
  SkipGuard skip;
  std::optional<MtpHead> head;
  Distributions distributions;
  LossyResult result;
  std::vector<float> exact_logits, logits, wide, draft;  // draft: the head's row for the next token but one
  bool draft_known = false;

  LossyRun(Pipeline& p, const LossyEvalOptions& o)
      : pipeline(p), options(o), skip(p.experts()), distributions(o.sampling) {
    if (o.lossy.biased_acceptance && p.model().mtp) head.emplace(p, o.norm, o.attention);
  }

  static void copy(ConstRows rows, std::vector<float>& to) { to.assign(rows.data, rows.data + rows.rows * rows.cols); }

  // One chunk of a window, from position `first` on.
  void chunk(SequenceState& exact, SequenceState& lossy, std::span<const TokenId> window, std::size_t first,
             std::size_t rows, PromptLookup& lookup) {
    const auto ids = window.subspan(first, rows);
    const bool skips = options.lossy.tail_route_skip > 0;
    skip.set(0);
    PassOutput out = pipeline.forward(exact, ids, PassMode::kCommit, LogitRows::kAll);
    copy(out.logits, exact_logits);
    if (skips) {
      skip.set(options.lossy.tail_route_skip);
      const TailSkip::Counts before = skip.counts();
      out = pipeline.forward(lossy, ids, PassMode::kCommit, LogitRows::kAll);
      const TailSkip::Counts met = skip.counts() - before;
      result.skipped.rows += met.rows;
      result.skipped.routes += met.routes;
      result.skipped.skipped += met.skipped;
      result.skipped.weight += met.weight;
    }
    copy(out.logits, logits);
    copy(out.wide, wide);
    const std::size_t vocab = out.logits.cols, width = out.wide.cols;
    // The head's row j stands for the token after next of position first + j.
    const std::size_t fed = head ? std::min(rows, window.size() - first - 1) : 0;
    ConstRows drafts;
    if (fed > 0)
      drafts = head->forward(skips ? lossy : exact, ConstRows(wide.data(), fed, width), window.subspan(first + 1, fed),
                             PassMode::kCommit, LogitRows::kAll)
                   .logits;
    for (std::size_t r = 0; r < rows && first + r + 1 < window.size(); ++r) {
      const std::span<const float> row(logits.data() + r * vocab, vocab);
      std::span<const float> drafted;
      if (head && r > 0)
        drafted = drafts.span(r - 1);
      else if (head && draft_known)
        drafted = draft;
      score(window, first + r, std::span<const float>(exact_logits.data() + r * vocab, vocab), row, drafted, lookup);
    }
    draft_known = fed == rows;  // never at the end of a window
    if (draft_known) {
      const auto last = drafts.span(rows - 1);
      draft.assign(last.begin(), last.end());
    }
  }

  void score(std::span<const TokenId> window, std::size_t at, std::span<const float> exact, std::span<const float> row,
             std::span<const float> drafted, PromptLookup& lookup) {
    const auto prefix = window.first(at + 1);
    LossyPosition p;
    p.window = result.windows;
    p.position = at + 1;
    p.token = window[at + 1];
    const auto token = static_cast<std::size_t>(p.token);
    p.exact_nll = log_sum_exp(exact) - static_cast<double>(exact[token]);
    p.nll = log_sum_exp(row) - static_cast<double>(row[token]);
    p.logits = logits_change(exact, row);
    if (options.lossy.biased_acceptance) {
      distributions.set_trunk(row, prefix);
      if (!drafted.empty()) p.head = distributions.with_head(drafted, prefix, pipeline.model().mtp->output_ids);
      lookup.extend(prefix);
      distributions.set_trunk(row, prefix);
      if (const PromptLookup::Match match = lookup.find(); match.length > 0)
        p.lookup = distributions.with_token(lookup.continuation(match, 0));
    }
    result.positions.push_back(p);
  }
};

}  // namespace

std::optional<LossyResult> evaluate_lossy(Pipeline& pipeline, SequenceState& exact, SequenceState& lossy,
                                          std::span<const TokenId> tokens, const LossyEvalOptions& options,
                                          const LossyHooks& hooks) {
  const std::size_t longest = std::min(options.text.window, tokens.size());
  CHECK(options.text.window > 1 && exact.context() >= longest && lossy.context() >= longest,
        "window {}, contexts {} and {}", options.text.window, exact.context(), lossy.context());
  const std::size_t chunk = std::min({options.text.chunk, pipeline.max_rows(), kMostRows});
  LossyRun run(pipeline, options);
  run.result.tokens = tokens.size();
  for (std::size_t start = 0; start < tokens.size(); start += options.text.window) {
    const auto window = tokens.subspan(start, std::min(options.text.window, tokens.size() - start));
    if (start > 0 && window.size() < options.text.last_window) break;
    exact.reset();
    lossy.reset();
    PromptLookup lookup;
    for (std::size_t first = 0; first < window.size(); first += chunk) {
      if (hooks.cancelled && hooks.cancelled()) return std::nullopt;
      const std::size_t rows = std::min(chunk, window.size() - first);
      run.chunk(exact, lossy, window, first, rows, lookup);
      if (hooks.progress) hooks.progress(start + first + rows, tokens.size());
    }
    ++run.result.windows;
  }
  return std::move(run.result);
}

}  // namespace tandem
