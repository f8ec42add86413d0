// Chains and trees of drafts over a text, as bench_trees counts them: what a head says at a place, held against the
// tokens that follow.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "runtime/tokenizer.h"

namespace tandem::bench {

inline constexpr std::size_t kNodes = 15, kChain = 8, kChoices = 8, kDepths = 4;

struct Choice {
  TokenId token;
  double p;
};

// The kChoices most likely tokens with their probabilities, the likeliest first, ties to the lower token. REQUIRES that
// many logits.
std::vector<Choice> best_choices(std::span<const float> logits);

// Sums over all places of the text.
struct Sums {
  std::size_t places = 0;
  std::array<double, kNodes + 1> tree = {};                              // tokens of a round with n nodes
  std::array<double, kNodes + 1> chain = {};                             // ... of n drafts (kChain at most)
  std::array<std::array<std::size_t, kChoices + 1>, kDepths> rank = {};  // of the true token; the last: none of them
};

// One place more. `root`: the head's choices there; after(path): those after a path of tokens, which is not empty.
// `truth`: the tokens that follow. REQUIRES at least max(kChain, kDepths) of them.
void look(const std::function<std::vector<Choice>(std::span<const TokenId> path)>& after,
          const std::vector<Choice>& root, std::span<const TokenId> truth, Sums& sums);

// The number of drafts with the most tokens in a unit of time, when a pass over n drafts takes passes[n] and each draft
// `step`; of a chain (at most kChain drafts) and of a tree. REQUIRES kNodes + 1 passes and a place.
struct BestRates {
  struct Rate {
    double rate = 0;
    std::size_t n = 0;
  } chain, tree;
  double gain() const { return tree.rate / chain.rate - 1; }
};
BestRates best_rates(const Sums& sums, std::span<const double> passes, double step);

}  // namespace tandem::bench
