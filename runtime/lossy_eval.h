// The price of the lossy switches on a text: the same windows exact and with the switches on, position by position.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "placement/policy.h"
#include "runtime/biased_acceptance.h"
#include "runtime/evaluate.h"
#include "runtime/pipeline.h"
#include "runtime/sampler.h"
#include "runtime/tail_skip.h"

namespace tandem {

// The distribution of one token of the text.
struct LossyPosition {
  std::size_t window = 0, position = 0;  // of the token, from 1 on
  TokenId token = 0;
  double nll = 0, exact_nll = 0;  // -ln p(token)
  DistributionChange logits;      // softmax of the logits with tail-route skip; kl is KL(exact || lossy)
  // What biased acceptance makes of the sampler's distribution (which the skip has changed, if it is on), when the
  // first draft of a round stands at this token: one of the head, one of the lookup. kl is KL(lossy || exact check).
  std::optional<DistributionChange> head, lookup;
};

struct LossyResult {
  std::size_t tokens = 0, windows = 0;
  std::vector<LossyPosition> positions;
  TailSkip::Counts skipped;
};

struct LossyEvalOptions {
  EvaluateOptions text;
  Policy::Lossy lossy;
  SamplerSettings sampling;  // biased acceptance depends on it
  MtpNorm norm = MtpNorm::kFull;
  MtpAttention attention = MtpAttention::kSparse;
};

struct LossyHooks {
  std::function<void(std::size_t done, std::size_t total)> progress;
  std::function<bool()> cancelled;
};

// Windows and the rule for a short last window are those of evaluate(). Both states are reset. The tail skip of the
// pipeline's store is as before afterwards. Returns nullopt when cancelled.
std::optional<LossyResult> evaluate_lossy(Pipeline& pipeline, SequenceState& exact, SequenceState& lossy,
                                          std::span<const TokenId> tokens, const LossyEvalOptions& options,
                                          const LossyHooks& hooks);

// The certificate in words. REQUIRES a position.
std::string lossy_certificate(const LossyResult& result, const LossyEvalOptions& options);
std::string lossy_certificate_json(const LossyResult& result, const LossyEvalOptions& options);
// One line a position after a header line; columns of what was not measured are empty.
std::string lossy_csv(const LossyResult& result);

}  // namespace tandem
