#include "runtime/reference_eval.h"

#include <algorithm>
#include <cmath>

#include "runtime/tokenizer.h"

namespace tandem {

double kl_divergence(std::span<const float> reference, std::span<const float> row) {
  CHECK(reference.size() == row.size() && !row.empty(), "{} and {} logits", reference.size(), row.size());
  const double lse_reference = log_sum_exp(reference), lse_row = log_sum_exp(row);
  double sum = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const double log_p = static_cast<double>(reference[i]) - lse_reference;
    const double log_q = static_cast<double>(row[i]) - lse_row;
    const double p = std::exp(log_p), x = log_p - log_q;
    // q - p = p expm1(-x); far from each other p and expm1(-x) would leave the range of double.
    sum += std::fabs(x) < 1.0 ? p * (x + std::expm1(-x)) : p * x + (std::exp(log_q) - p);
  }
  return sum;
}

double quantile(std::span<const double> sorted, double q) {
  CHECK(!sorted.empty() && q >= 0.0 && q <= 1.0, "{} values, {}", sorted.size(), q);
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

double ReferenceSummary::perplexity() const {
  return std::exp(nll);
}
double ReferenceSummary::reference_perplexity() const {
  return std::exp(reference_nll);
}
double ReferenceSummary::perplexity_ratio() const {
  return std::exp(nll - reference_nll);
}

ReferenceSummary summarize(std::span<const PositionScore> positions) {
  CHECK(!positions.empty());
  ReferenceSummary summary;
  summary.scored = positions.size();
  std::vector<double> kl;
  const double share = 1.0 / static_cast<double>(positions.size());
  for (const PositionScore& score : positions) {
    summary.nll += score.nll * share;
    summary.reference_nll += score.reference_nll * share;
    summary.top1 += score.hit ? share : 0.0;
    summary.reference_top1 += score.reference_hit ? share : 0.0;
    summary.top1_agreement += score.top1_equal ? share : 0.0;
    summary.kl_mean += score.kl * share;
    kl.push_back(score.kl);
  }
  std::sort(kl.begin(), kl.end());
  summary.kl_median = quantile(kl, 0.5);
  summary.kl_p99 = quantile(kl, 0.99);
  summary.kl_max = kl.back();
  return summary;
}

namespace {

PositionScore score_position(std::span<const float> row, std::span<const float> reference, TokenId token) {
  const auto id = static_cast<std::size_t>(token);
  const std::size_t best = arg_max(row), reference_best = arg_max(reference);
  PositionScore score;
  score.token = token;
  score.nll = log_sum_exp(row) - static_cast<double>(row[id]);
  score.reference_nll = log_sum_exp(reference) - static_cast<double>(reference[id]);
  score.kl = kl_divergence(reference, row);
  score.top1_equal = best == reference_best;
  score.hit = best == id;
  score.reference_hit = reference_best == id;
  return score;
}

}  // namespace

std::optional<ReferenceComparison> evaluate_against(EvalMachine model, EvalMachine reference,
                                                    std::span<const TokenId> tokens, const EvaluateOptions& options,
                                                    const ReferenceHooks& hooks) {
  const std::size_t longest = std::min(options.window, tokens.size());
  CHECK(options.window > 1 && model.state.context() >= longest && reference.state.context() >= longest,
        "window {}, contexts {} and {}", options.window, model.state.context(), reference.state.context());
  CHECK(model.pipeline.model().shape.vocab == reference.pipeline.model().shape.vocab, "{} and {} tokens",
        model.pipeline.model().shape.vocab, reference.pipeline.model().shape.vocab);
  const std::size_t chunk = std::min({options.chunk, model.pipeline.max_rows(), reference.pipeline.max_rows()});
  ReferenceComparison result;
  result.tokens = tokens.size();
  for (std::size_t start = 0; start < tokens.size(); start += options.window) {
    const auto window = tokens.subspan(start, std::min(options.window, tokens.size() - start));
    if (start > 0 && window.size() < options.last_window) break;
    model.state.reset();
    reference.state.reset();
    for (std::size_t first = 0; first < window.size(); first += chunk) {
      if (hooks.cancelled && hooks.cancelled()) return std::nullopt;
      const auto ids = window.subspan(first, std::min(chunk, window.size() - first));
      const PassOutput out = model.pipeline.forward(model.state, ids, PassMode::kCommit, LogitRows::kAll);
      const PassOutput expected = reference.pipeline.forward(reference.state, ids, PassMode::kCommit, LogitRows::kAll);
      for (std::size_t r = 0; r < ids.size() && first + r + 1 < window.size(); ++r) {
        PositionScore score = score_position(out.logits.span(r), expected.logits.span(r), window[first + r + 1]);
        score.window = result.windows;
        score.position = first + r + 1;
        result.positions.push_back(score);
      }
      if (hooks.progress) hooks.progress(start + first + ids.size(), tokens.size());
    }
    ++result.windows;
  }
  return result;
}

std::string per_position_csv(std::span<const PositionScore> positions) {
  std::string csv = "window,position,token,nll,reference_nll,kl,top1_equal\n";
  for (const PositionScore& score : positions)
    csv += fmt::format("{},{},{},{},{},{},{}\n", score.window, score.position, score.token, score.nll,
                       score.reference_nll, score.kl, score.top1_equal ? 1 : 0);
  return csv;
}

void require_same_vocabulary(const Tokenizer& tokenizer, std::string_view name, const Tokenizer& other,
                             std::string_view other_name) {
  const std::string fix = "Fix: compare files that were made from the same model";
  if (tokenizer.size() != other.size())
    fail_input("{}: expected the {} tokens of {}, found {}. {}", other_name, tokenizer.size(), name, other.size(), fix);
  for (std::size_t i = 0; i < tokenizer.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    if (tokenizer.bytes(id) == other.bytes(id) && tokenizer.is_special(id) == other.is_special(id)) continue;
    const auto written = [id](const Tokenizer& t) {
      return fmt::format("{:?}{}", t.bytes(id), t.is_special(id) ? " (special)" : "");
    };
    fail_input("{}: token {}: expected {} as in {}, found {}. {}", other_name, id, written(tokenizer), name,
               written(other), fix);
  }
}

}  // namespace tandem
