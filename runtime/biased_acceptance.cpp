#include "runtime/biased_acceptance.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "placement/check.h"
#include "runtime/evaluate.h"
#include "runtime/reference_eval.h"

namespace tandem {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Sums over prefixes of a list of pairs to which something is added now and then.
class PrefixSums {
 public:
  explicit PrefixSums(std::size_t n) : tree_(n + 1) {}
  struct Pair {
    double a = 0, b = 0;
  };
  void add(std::size_t i, double a, double b) {
    for (++i; i < tree_.size(); i += i & (~i + 1)) {
      tree_[i].a += a;
      tree_[i].b += b;
    }
  }
  Pair before(std::size_t i) const {  // of the first i
    Pair sum;
    for (; i > 0; i -= i & (~i + 1)) {
      sum.a += tree_[i].a;
      sum.b += tree_[i].b;
    }
    return sum;
  }

 private:
  std::vector<Pair> tree_;
};

// For every token, by rising R = p / draft: its place among the different values of R, and the integral of dr / S(r)^2
// from 0 to R.
struct Ratios {
  std::vector<std::size_t> rank;
  std::vector<double> integral;
  std::size_t ranks = 0;
};

Ratios integrate(std::span<const double> p, std::span<const double> draft) {
  const std::size_t n = p.size();
  std::vector<double> ratio(n);
  for (std::size_t i = 0; i < n; ++i) ratio[i] = draft[i] > 0 ? p[i] / draft[i] : kInfinity;
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return ratio[a] < ratio[b]; });
  // Between two values of R, S(r) = constant + slope * r.
  double constant = std::accumulate(p.begin(), p.end(), 0.0), slope = 0, last = 0, integral = 0;
  Ratios result{std::vector<std::size_t>(n), std::vector<double>(n)};
  for (std::size_t first = 0; first < n;) {
    const double r = ratio[order[first]];
    if (r == kInfinity)
      integral += slope > 0 ? 1 / (slope * (constant + slope * last)) : 0.0;
    else if (r > last)
      integral += (r - last) / ((constant + slope * last) * (constant + slope * r));
    for (; first < n && ratio[order[first]] == r; ++first) {
      const std::size_t i = order[first];
      result.rank[i] = result.ranks;
      result.integral[i] = integral;
      constant = std::max(0.0, constant - p[i]);
      slope += draft[i];
    }
    ++result.ranks;
    last = r;
  }
  return result;
}

DistributionChange against(std::span<const double> p, std::span<const double> q) {
  DistributionChange change;
  for (std::size_t i = 0; i < p.size(); ++i) {
    change.total_variation += std::fabs(p[i] - q[i]) / 2;
    if (q[i] > 0 && p[i] > 0) change.kl += q[i] * std::log(q[i] / p[i]);
  }
  change.kl = std::max(0.0, change.kl);
  const auto best = [](std::span<const double> x) { return std::max_element(x.begin(), x.end()) - x.begin(); };
  change.top1_changed = best(p) != best(q);
  return change;
}

}  // namespace

DistributionChange biased_change(std::span<const double> p, std::span<const double> draft) {
  CHECK(p.size() == draft.size() && !p.empty(), "{} and {}", p.size(), draft.size());
  const std::size_t n = p.size();
  const Ratios ratios = integrate(p, draft);
  std::vector<std::size_t> order;  // by falling p; tokens without any can neither stay nor give way
  for (std::size_t i = 0; i < n; ++i)
    if (p[i] > 0) order.push_back(i);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return p[a] > p[b]; });
  std::vector<double> q(p.begin(), p.end());
  double kept = 0;
  // What b loses to drafts a with p[a] >= p[b] and R(a) < R(b), equal p all at once.
  PrefixSums drafts(ratios.ranks);
  const auto each_group = [&](auto begin, auto end, auto&& enter, auto&& ask) {
    for (auto first = begin; first != end;) {
      auto next = first;
      for (; next != end && p[*next] == p[*first]; ++next) enter(*next);
      for (; first != next; ++first) ask(*first);
    }
  };
  each_group(
      order.begin(), order.end(),
      [&](std::size_t a) { drafts.add(ratios.rank[a], draft[a], draft[a] * ratios.integral[a]); },
      [&](std::size_t b) {
        const PrefixSums::Pair sum = drafts.before(ratios.rank[b]);
        const double loss = std::max(0.0, p[b] * (sum.a * ratios.integral[b] - sum.b));
        q[b] -= loss;
        kept += loss;
      });
  // What a wins from tokens b with p[b] <= p[a] and R(b) > R(a); ranks are mirrored to be prefixes.
  PrefixSums given(ratios.ranks);
  each_group(
      order.rbegin(), order.rend(),
      [&](std::size_t b) { given.add(ratios.ranks - 1 - ratios.rank[b], p[b], p[b] * ratios.integral[b]); },
      [&](std::size_t a) {
        const PrefixSums::Pair sum = given.before(ratios.ranks - 1 - ratios.rank[a]);
        q[a] += std::max(0.0, draft[a] * (sum.b - sum.a * ratios.integral[a]));
      });
  for (double& x : q) x = std::max(0.0, x);
  DistributionChange change = against(p, q);
  change.kept = kept;
  return change;
}

DistributionChange biased_change(std::span<const double> p, std::size_t draft) {
  CHECK(draft < p.size(), "{} of {}", draft, p.size());
  std::vector<double> q(p.begin(), p.end());
  double kept = 0;
  for (std::size_t i = 0; i < p.size() && p[draft] > 0; ++i) {
    if (i == draft || p[i] > p[draft]) continue;
    kept += p[i];
    q[i] = 0;
  }
  q[draft] += kept;
  DistributionChange change = against(p, q);
  change.kept = kept;
  return change;
}

DistributionChange logits_change(std::span<const float> exact, std::span<const float> row) {
  CHECK(exact.size() == row.size() && !row.empty(), "{} and {} logits", exact.size(), row.size());
  DistributionChange change;
  const double lse_exact = log_sum_exp(exact), lse_row = log_sum_exp(row);
  for (std::size_t i = 0; i < row.size(); ++i)
    change.total_variation += std::fabs(std::exp(static_cast<double>(exact[i]) - lse_exact) -
                                        std::exp(static_cast<double>(row[i]) - lse_row)) /
                              2;
  change.kl = kl_divergence(exact, row);
  change.top1_changed = arg_max(exact) != arg_max(row);
  return change;
}

}  // namespace tandem
