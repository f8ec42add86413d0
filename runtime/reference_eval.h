// Quality of one machine or file against another on the same text: both run the same windows from the same token ids,
// and every scored position is compared.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/evaluate.h"

namespace tandem {

// One scored token: the distributions that the position before it gives, by the model and by the reference.
struct PositionScore {
  std::size_t window = 0;
  std::size_t position = 0;  // of the token inside its window, from 1 on
  TokenId token = 0;
  double nll = 0, reference_nll = 0;        // -ln p(token)
  double kl = 0;                            // KL(reference || model), natural logarithm
  bool top1_equal = false;                  // both have the same most likely token
  bool hit = false, reference_hit = false;  // that token is this one
};

struct ReferenceComparison {
  std::size_t tokens = 0, windows = 0;
  std::vector<PositionScore> positions;  // in the order of the text
};

// What the positions come to; shares are of 1.
struct ReferenceSummary {
  std::size_t scored = 0;
  double nll = 0, reference_nll = 0;    // means
  double top1 = 0, reference_top1 = 0;  // scored tokens that are the most likely one
  double kl_mean = 0, kl_median = 0, kl_p99 = 0, kl_max = 0;
  double top1_agreement = 0;
  double perplexity() const;
  double reference_perplexity() const;
  double perplexity_ratio() const;  // model over reference: above 1, the model is worse
};

// One side of a comparison. The state is reset; REQUIRES context for a window.
struct EvalMachine {
  Pipeline& pipeline;
  SequenceState& state;
};

struct ReferenceHooks {
  std::function<void(std::size_t done, std::size_t total)> progress;
  std::function<bool()> cancelled;
};

// Windows, chunks and the rule for a short last window are those of evaluate(). REQUIRES equal vocabularies. Returns
// nullopt when cancelled.
std::optional<ReferenceComparison> evaluate_against(EvalMachine model, EvalMachine reference,
                                                    std::span<const TokenId> tokens, const EvaluateOptions& options,
                                                    const ReferenceHooks& hooks);

// REQUIRES a position.
ReferenceSummary summarize(std::span<const PositionScore> positions);

// KL(softmax(reference) || softmax(row)) in double. Never negative, and exact where the rows are close: the terms
// p (ln p - ln q) + q - p are summed, each of which is >= 0, not the differences that would cancel. REQUIRES equal
// sizes and finite values.
double kl_divergence(std::span<const float> reference, std::span<const float> row);

// The value below which the share 0 <= q <= 1 of `sorted` lies, linear between neighbours. REQUIRES a value.
double quantile(std::span<const double> sorted, double q);

// One line a position after a header line: window,position,token,nll,reference_nll,kl,top1_equal. Numbers are written
// with all their digits.
std::string per_position_csv(std::span<const PositionScore> positions);

// Throws InputError unless both tokenizers have the same tokens under the same ids. The names are those of flag and
// files, for the message.
void require_same_vocabulary(const Tokenizer& tokenizer, std::string_view name, const Tokenizer& other,
                             std::string_view other_name);

}  // namespace tandem
