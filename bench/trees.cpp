#include "bench/trees.h"

#include <algorithm>
#include <cmath>

#include "placement/check.h"
#include "runtime/evaluate.h"

namespace tandem::bench {

std::vector<Choice> best_choices(std::span<const float> logits) {
  const double sum = log_sum_exp(logits);
  std::vector<Choice> all;
  for (std::size_t i = 0; i < logits.size(); ++i)
    all.push_back({static_cast<TokenId>(i), std::exp(static_cast<double>(logits[i]) - sum)});
  std::partial_sort(all.begin(), all.begin() + kChoices, all.end(),
                    [](const Choice& a, const Choice& b) { return a.p > b.p || (a.p == b.p && a.token < b.token); });
  all.resize(kChoices);
  return all;
}

void look(const std::function<std::vector<Choice>(std::span<const TokenId> path)>& after,
          const std::vector<Choice>& root, std::span<const TokenId> truth, Sums& sums) {
  ++sums.places;
  // Along the text: which choice is the true token.
  std::vector<Choice> choices = root;
  std::vector<std::vector<Choice>> along{root};
  for (std::size_t d = 0; d < kDepths; ++d) {
    std::size_t rank = 0;
    while (rank < kChoices && choices[rank].token != truth[d]) ++rank;
    ++sums.rank[d][rank];
    if (d + 1 < kDepths) along.push_back(choices = after(truth.first(d + 1)));
  }
  // The chain of first choices.
  std::size_t right = 0;
  for (choices = root; right < kChain && choices[0].token == truth[right]; ++right)
    if (right + 1 < kChain) choices = right + 1 < along.size() ? along[right + 1] : after(truth.first(right + 1));
  for (std::size_t n = 0; n <= kNodes; ++n) sums.chain[n] += static_cast<double>(1 + std::min({right, n, kChain}));
  // The tree.
  struct Node {
    std::vector<TokenId> path;
    double p;
  };
  std::vector<Node> open;
  const auto grow = [&](const std::vector<TokenId>& path, double p, const std::vector<Choice>& next) {
    for (const Choice& c : next) {
      open.push_back({path, p * c.p});
      open.back().path.push_back(c.token);
    }
  };
  grow({}, 1.0, root);
  std::size_t longest = 0;
  sums.tree[0] += 1;
  for (std::size_t n = 1; n <= kNodes; ++n) {
    const auto best =
        std::max_element(open.begin(), open.end(), [](const Node& a, const Node& b) { return a.p < b.p; });
    const Node node = *best;
    open.erase(best);
    if (std::equal(node.path.begin(), node.path.end(), truth.begin())) longest = std::max(longest, node.path.size());
    sums.tree[n] += static_cast<double>(1 + longest);
    if (n < kNodes && node.path.size() < kChain) grow(node.path, node.p, after(node.path));
  }
}

BestRates best_rates(const Sums& sums, std::span<const double> passes, double step) {
  CHECK(passes.size() > kNodes && sums.places > 0, "{} passes, {} places", passes.size(), sums.places);
  BestRates best;
  const auto all = static_cast<double>(sums.places);
  for (std::size_t n = 0; n <= kNodes; ++n) {
    const double time = passes[n] + static_cast<double>(n) * step;
    const auto keep = [&](BestRates::Rate& so_far, double tokens) {
      if (tokens / all / time > so_far.rate) so_far = {tokens / all / time, n};
    };
    if (n <= kChain) keep(best.chain, sums.chain[n]);
    keep(best.tree, sums.tree[n]);
  }
  return best;
}

}  // namespace tandem::bench
