#include "runtime/evaluate.h"

#include <algorithm>
#include <cmath>

namespace tandem {

double log_sum_exp(std::span<const float> row) {
  const double top = row[arg_max(row)];
  double sum = 0;
  for (const float v : row) sum += std::exp(static_cast<double>(v) - top);
  return top + std::log(sum);
}

std::size_t arg_max(std::span<const float> row) {
  std::size_t best = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    CHECK(!std::isnan(row[i]), "logit {} is NaN", i);
    if (row[i] > row[best]) best = i;
  }
  return best;
}

namespace {

// Adds one row to the comparison; kl, max_kl and agreement are sums until the end.
void compare(std::span<const float> reference, std::span<const float> row, EvaluateResult::Comparison& sum) {
  const double lse_reference = log_sum_exp(reference), lse_row = log_sum_exp(row);
  double kl = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const double log_p = static_cast<double>(reference[i]) - lse_reference;
    kl += std::exp(log_p) * (log_p - (static_cast<double>(row[i]) - lse_row));
    sum.max_difference =
        std::max(sum.max_difference, std::fabs(static_cast<double>(reference[i]) - static_cast<double>(row[i])));
  }
  ++sum.rows;
  sum.kl += kl;
  sum.max_kl = std::max(sum.max_kl, kl);
  sum.top1_agreement += arg_max(reference) == arg_max(row) ? 1.0 : 0.0;
}

}  // namespace

std::optional<EvaluateResult> evaluate(Pipeline& pipeline, SequenceState& state, std::span<const TokenId> tokens,
                                       const EvaluateOptions& options, const EvaluateHooks& hooks) {
  CHECK(options.window > 1 && state.context() >= std::min(options.window, tokens.size()), "window {}, context {}",
        options.window, state.context());
  EvaluateResult result;
  result.tokens = tokens.size();
  EvaluateResult::Comparison comparison;
  for (std::size_t start = 0; start < tokens.size(); start += options.window) {
    const auto window = tokens.subspan(start, std::min(options.window, tokens.size() - start));
    if (start > 0 && window.size() < options.last_window) break;
    state.reset();
    double nll = 0;
    const auto score = [&](std::size_t first, const PassOutput& out) {
      for (std::size_t r = 0; r < out.logits.rows; ++r) {
        const std::span<const float> row = out.logits.span(r);
        const std::size_t position = first + r;
        if (hooks.on_row) hooks.on_row(result.windows, position, row);
        if (hooks.reference)
          if (const auto reference = hooks.reference(result.windows, position); !reference.empty())
            compare(reference, row, comparison);
        if (position + 1 == window.size()) continue;
        const auto next = static_cast<std::size_t>(window[position + 1]);
        nll += log_sum_exp(row) - static_cast<double>(row[next]);
        result.top1 += arg_max(row) == next ? 1.0 : 0.0;
        ++result.scored;
      }
      if (hooks.progress) hooks.progress(start + first + out.logits.rows, tokens.size());
    };
    if (!pipeline.prefill(state, window, std::min(options.chunk, pipeline.max_rows()), LogitRows::kAll, score,
                          hooks.cancelled))
      return std::nullopt;
    ++result.windows;
    result.nll += nll;
    if (window.size() > 1) result.window_nll.push_back(nll / static_cast<double>(window.size() - 1));
  }
  if (result.scored > 0) {
    result.nll /= static_cast<double>(result.scored);
    result.top1 /= static_cast<double>(result.scored);
  }
  if (comparison.rows > 0) {
    comparison.kl /= static_cast<double>(comparison.rows);
    comparison.top1_agreement /= static_cast<double>(comparison.rows);
    result.comparison = comparison;
  }
  return result;
}

}  // namespace tandem
