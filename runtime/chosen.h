// A token that a machine has chosen from a row of logits.
#pragma once

#include <cstdint>

#include "runtime/exact_math.h"

namespace tandem {

// The token, and what its probability is made of, as far as that was asked for.
struct Chosen {
  std::int32_t token;
  float logit;     // of the token
  float top, sum;  // the largest logit, and sum_i exp((logit_i - top) * softmax_scale(T)) (Ops::softmax_sum)
};

// What logits are multiplied by for a softmax at temperature T: 1 / T, or 1 for T = 0.
TANDEM_EXACT float softmax_scale(float temperature) {
  return temperature > 0.0F ? 1.0F / temperature : 1.0F;
}

// exp((logit - top) * softmax_scale(T)) / sum.
inline float probability(const Chosen& chosen, float temperature) {
  return exp_c((chosen.logit - chosen.top) * softmax_scale(temperature)) / chosen.sum;
}

}  // namespace tandem
