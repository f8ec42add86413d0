// Quality of a model on a text: negative log-likelihood, perplexity, top-1 rate, and the distance to reference logits.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "runtime/pipeline.h"

namespace tandem {

struct EvaluateOptions {
  std::size_t window = 1024;     // tokens run from an empty state; the text is cut into consecutive windows
  std::size_t last_window = 32;  // a shorter last window is left out
  std::size_t chunk = 512;       // rows of one pass
};

// Sums over scored positions: a window scores its tokens 2 .. end, each by the logits of the position before it.
struct EvaluateResult {
  std::size_t tokens = 0, scored = 0, windows = 0;
  double nll = 0;   // mean, natural logarithm
  double top1 = 0;  // share of scored tokens that are the most likely one
  std::vector<double> window_nll;
  // Against reference logits, where given: KL(reference || this), share of equal most likely tokens, largest logit
  // difference; over every position of the reference.
  struct Comparison {
    std::size_t rows = 0;
    double kl = 0, max_kl = 0, top1_agreement = 0, max_difference = 0;
  };
  std::optional<Comparison> comparison;
};

struct EvaluateHooks {
  // Logits of position `position` of window `window`, for every position in order.
  std::function<void(std::size_t window, std::size_t position, std::span<const float> logits)> on_row;
  // Logits to compare a position with; empty where there are none.
  std::function<std::span<const float>(std::size_t window, std::size_t position)> reference;
  std::function<void(std::size_t done, std::size_t total)> progress;
  std::function<bool()> cancelled;
};

// Runs `tokens` window by window. REQUIRES state.context() >= the window (or the text, where shorter); the state is
// reset. Returns nullopt when cancelled.
std::optional<EvaluateResult> evaluate(Pipeline& pipeline, SequenceState& state, std::span<const TokenId> tokens,
                                       const EvaluateOptions& options, const EvaluateHooks& hooks);

// ln sum exp of a row, in double. Index of the largest value, ties to the lower index; NaN is a CHECK failure.
double log_sum_exp(std::span<const float> row);
std::size_t arg_max(std::span<const float> row);

}  // namespace tandem
