// bench_trees: chains and trees over a made-up head, against all paths of it.
#include "bench/trees.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace tandem::bench {
namespace {

using Path = std::vector<TokenId>;

TEST(Trees, BestChoices) {
  std::vector<float> logits(40, -30.0F);
  for (std::size_t i = 0; i < 10; ++i) logits[3 * i] = static_cast<float>(i / 2);  // ties in pairs
  const std::vector<Choice> best = best_choices(logits);
  ASSERT_EQ(best.size(), kChoices);
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x));
  const std::array<TokenId, kChoices> expected{24, 27, 18, 21, 12, 15, 6, 9};
  for (std::size_t k = 0; k < kChoices; ++k) {
    EXPECT_EQ(best[k].token, expected[k]);
    EXPECT_NEAR(best[k].p, std::exp(static_cast<double>(logits[static_cast<std::size_t>(expected[k])])) / sum, 1e-9);
  }
}

// A head whose choices depend on the path in no simple way.
std::vector<Choice> choices_of(std::uint32_t seed, std::span<const TokenId> path, double sharpness) {
  std::vector<std::uint32_t> key{seed};
  for (const TokenId t : path) key.push_back(static_cast<std::uint32_t>(t));
  std::seed_seq mixed(key.begin(), key.end());
  std::mt19937 random(mixed);
  std::vector<float> logits(kChoices + 3);
  std::normal_distribution<float> normal(0.0F, 1.0F);
  for (float& x : logits) x = static_cast<float>(sharpness) * normal(random);
  return best_choices(logits);
}

struct Node {
  Path path;
  double p;
};

// All paths at least this likely, at most kChain tokens long.
void all_paths(std::uint32_t seed, double sharpness, const Path& path, double p, double least,
               std::vector<Node>& nodes) {
  for (const Choice& c : choices_of(seed, path, sharpness)) {
    if (p * c.p < least) continue;
    Node node{path, p * c.p};
    node.path.push_back(c.token);
    nodes.push_back(node);
    if (node.path.size() < kChain) all_paths(seed, sharpness, node.path, node.p, least, nodes);
  }
}

TEST(Trees, ATreeIsTheMostLikelyPaths) {
  std::mt19937 random(3);
  Sums sums, expected;
  std::size_t longest_seen = 0;
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    const double sharpness = 1.0 + seed % 4;
    const auto after = [&](std::span<const TokenId> path) { return choices_of(seed, path, sharpness); };
    // A text that often follows the head.
    Path truth;
    while (truth.size() < 10) {
      const std::vector<Choice> c = after(truth);
      const auto k = random() % 14;
      truth.push_back(k < 9 ? c[0].token : k < 13 ? c[k - 8].token : 99);
    }
    look(after, after({}), truth, sums);

    std::vector<Node> nodes;
    for (double least = 0.05; nodes.size() < kNodes; least /= 4) {
      nodes.clear();
      all_paths(seed, sharpness, {}, 1.0, least, nodes);
    }
    std::sort(nodes.begin(), nodes.end(), [](const Node& a, const Node& b) { return a.p > b.p; });
    ++expected.places;
    for (std::size_t n = 0; n <= kNodes; ++n) {
      std::size_t longest = 0, chain = 0;
      for (std::size_t i = 0; i < n; ++i)
        if (std::equal(nodes[i].path.begin(), nodes[i].path.end(), truth.begin()))
          longest = std::max(longest, nodes[i].path.size());
      longest_seen = std::max(longest_seen, longest);
      while (chain < std::min(n, kChain) && after(std::span(truth).first(chain))[0].token == truth[chain]) ++chain;
      expected.tree[n] += static_cast<double>(1 + longest);
      expected.chain[n] += static_cast<double>(1 + chain);
    }
    for (std::size_t d = 0; d < kDepths; ++d) {
      const std::vector<Choice> c = after(std::span(truth).first(d));
      std::size_t rank = 0;
      while (rank < kChoices && c[rank].token != truth[d]) ++rank;
      ++expected.rank[d][rank];
    }
  }
  EXPECT_EQ(sums.places, expected.places);
  EXPECT_EQ(sums.tree, expected.tree);
  EXPECT_EQ(sums.chain, expected.chain);
  EXPECT_EQ(sums.rank, expected.rank);
  EXPECT_GE(longest_seen, 4U);
}

TEST(Trees, TheBestNumberOfDrafts) {
  Sums sums;
  sums.places = 10;
  std::vector<double> passes;
  for (std::size_t n = 0; n <= kNodes; ++n) {
    sums.chain[n] = 10.0 * (1 + 0.5 * static_cast<double>(std::min<std::size_t>(n, 3)));
    sums.tree[n] = 10.0 * (1 + 0.5 * static_cast<double>(std::min<std::size_t>(n, 12)));
    passes.push_back(1 + 0.1 * static_cast<double>(n));
  }
  // Rows at a tenth bring a half: all that there is; with a step of a half, nothing pays.
  const BestRates cheap = best_rates(sums, passes, 0);
  EXPECT_EQ(cheap.chain.n, 3U);
  EXPECT_NEAR(cheap.chain.rate, 2.5 / 1.3, 1e-12);
  EXPECT_EQ(cheap.tree.n, 12U);
  EXPECT_NEAR(cheap.gain(), 7 / 2.2 / (2.5 / 1.3) - 1, 1e-12);
  const BestRates dear = best_rates(sums, passes, 0.5);
  EXPECT_EQ(dear.chain.n + dear.tree.n, 0U);
  EXPECT_EQ(dear.gain(), 0);
  // A chain has kChain drafts at most, whatever its sums say.
  for (std::size_t n = 0; n <= kNodes; ++n) sums.chain[n] = sums.tree[n];
  EXPECT_EQ(best_rates(sums, passes, 0).chain.n, kChain);
}

}  // namespace
}  // namespace tandem::bench
