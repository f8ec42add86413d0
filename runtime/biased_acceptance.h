// What biased acceptance does to the distribution of a token, computed, not sampled.
#pragma once

#include <cstddef>
#include <span>

namespace tandem {

// A distribution q against the exact one p.
struct DistributionChange {
  double total_variation = 0;  // sum |p - q| / 2
  double kl = 0;               // of the pair that the function names, natural logarithm
  bool top1_changed = false;   // the most likely tokens differ; ties go to the lower index
  double kept = 0;             // biased acceptance: chance that a draft stays which the sampler did not pick
};

// The sampler picks t from `p`, the head d from `draft`, both as the arg max of ln(probability) + noise under the same
// noise (docs/numerics.md, R8); d stays if p[d] >= p[t]. Over the noise, with R(i) = p[i] / draft[i] and
// S(r) = sum_i max(p[i], r draft[i]),
//   P(t = b, d = a) = p[b] draft[a] * integral of dr / S(r)^2 from R(a) to R(b),   where R(b) > R(a),
// which gives the distribution q of what stays; kl is KL(q || p), since q has nothing where p has nothing, but not the
// other way round. O(n log n). REQUIRES equal sizes, values >= 0, each of sum 1 to rounding.
DistributionChange biased_change(std::span<const double> p, std::span<const double> draft);

// The same for a draft that is known beforehand (a lookup): it stays if p[d] >= p[t], where p[d] > 0.
DistributionChange biased_change(std::span<const double> p, std::size_t draft);

// softmax(exact) and softmax(row), in double; kl is KL(exact || row).
DistributionChange logits_change(std::span<const float> exact, std::span<const float> row);

}  // namespace tandem
