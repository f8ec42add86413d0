#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "placement/check.h"
#include "runtime/exact_math.h"
#include "runtime/philox.h"

namespace tandem {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Tokens whose score lies further below the best one than this have a weight under 2^-57 of it: they are left out of
// the normaliser of top_p.
constexpr float kNegligible = 40.0F;

bool better(const Candidate& a, const Candidate& b) {
  return a.score > b.score || (a.score == b.score && a.id < b.id);
}

TokenId token_of(std::size_t logit, std::span<const TokenId> ids) {
  return ids.empty() ? static_cast<TokenId>(logit) : ids[logit];
}

void check_logits(std::span<const float> logits, std::span<const TokenId> ids) {
  CHECK(!logits.empty() && (ids.empty() || ids.size() == logits.size()), "{} logits of {} tokens", logits.size(),
        ids.size());
  std::size_t bad = 0;
  for (const float x : logits) bad += !(x < kInfinity) ? 1U : 0U;
  if (bad == 0) return;
  const auto first = std::find_if(logits.begin(), logits.end(), [](float x) { return !(x < kInfinity); });
  fail_input(
      "logits: expected finite values, found {} for token {} ({} bad values in all). Fix: the weights are damaged or "
      "were read wrongly; check the file against its published checksum",
      *first, token_of(static_cast<std::size_t>(first - logits.begin()), ids), bad);
}

template <typename T>
void check_range(const char* name, T value, T low, T high) {
  if (value >= low && value <= high) return;
  fail_input("{}: expected a value from {} to {}, found {}", name, low, high, value);
}

}  // namespace

void check_settings(const SamplerSettings& settings) {
  // Below 0.01 a logit divided by T can overflow; 0 is the wanted limit.
  if (settings.temperature != 0.0F) check_range("temperature (0 for greedy)", settings.temperature, 0.01F, 100.0F);
  check_range("top-k (0 for off)", settings.top_k, 0, std::numeric_limits<int>::max());
  if (!(settings.top_p > 0.0F && settings.top_p <= 1.0F)) {
    fail_input("top-p (1 for off): expected a value above 0 and up to 1, found {}", settings.top_p);
  }
  check_range("min-p (0 for off)", settings.min_p, 0.0F, 1.0F);
  check_range("presence-penalty (0 for off)", settings.presence_penalty, -100.0F, 100.0F);
  check_range("repetition-penalty (1 for off)", settings.repetition_penalty, 0.01F, 100.0F);
}

std::optional<std::size_t> logit_of(TokenId token, std::span<const TokenId> ids, std::size_t logits) {
  if (ids.empty()) return token >= 0 && static_cast<std::size_t>(token) < logits ? std::optional(token) : std::nullopt;
  const auto found = std::lower_bound(ids.begin(), ids.end(), token);
  if (found == ids.end() || *found != token) return std::nullopt;
  return static_cast<std::size_t>(found - ids.begin());
}

TokenId argmax_token(std::span<const float> logits, std::span<const TokenId> ids) {
  check_logits(logits, ids);
  const auto best = std::max_element(logits.begin(), logits.end());  // the first of equal ones
  if (*best == -kInfinity) {
    fail_input("logits: expected a finite value, found -infinity for every token. Fix: check the file's checksum");
  }
  return token_of(static_cast<std::size_t>(best - logits.begin()), ids);
}

std::optional<TokenChoice> plain_choice(const SamplerSettings& s) {
  const bool filters = s.top_k != 0 || s.top_p < 1.0F || s.min_p > 0.0F;
  const bool penalties = s.repetition_penalty != 1.0F || s.presence_penalty != 0.0F;
  if (penalties || (filters && s.temperature != 0.0F)) return {};
  return TokenChoice{s.temperature, s.seed};
}

TokenId choose_token(std::span<const float> logits, const TokenChoice& choice, std::uint64_t position) {
  const TokenId top = argmax_token(logits);
  if (choice.temperature == 0.0F) return top;
  const auto noisy = [&](TokenId id) {
    return Candidate{id, logits[static_cast<std::size_t>(id)] / choice.temperature +
                             gumbel_noise(choice.seed, position, static_cast<std::uint32_t>(id))};
  };
  // The best score goes first: it rules out, without computing their noise, all tokens too far below it.
  Candidate best = noisy(top);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] == -kInfinity || logits[i] / choice.temperature + kMaxGumbel < best.score) continue;
    const Candidate value = noisy(static_cast<TokenId>(i));
    if (better(value, best)) best = value;
  }
  return best.id;
}

Sampler::Sampler(const SamplerSettings& settings) : settings_(settings) {
  check_settings(settings);
}

TokenId Sampler::sample(std::span<const float> logits, std::span<const TokenId> prefix, std::size_t answer_start,
                        std::span<const TokenId> ids) {
  if (settings_.temperature == 0.0F) return argmax_token(penalise(logits, prefix, answer_start, ids), ids);
  const std::span<const Candidate> candidates = filter(logits, prefix, answer_start, ids);
  const auto noisy = [&](const Candidate& candidate) {
    const auto id = static_cast<std::uint32_t>(candidate.id);
    return Candidate{candidate.id, candidate.score + gumbel_noise(settings_.seed, prefix.size(), id)};
  };
  // The best score goes first: it rules out, without computing their noise, all tokens too far below it.
  Candidate best = noisy(*std::min_element(candidates.begin(), candidates.end(), better));
  for (const Candidate& candidate : candidates) {
    if (candidate.score + kMaxGumbel < best.score) continue;
    const Candidate value = noisy(candidate);
    if (better(value, best)) best = value;
  }
  return best.id;
}

bool Sampler::at_least_as_likely(TokenId a, TokenId b) const {
  if (settings_.temperature == 0.0F) return false;
  const auto find = [&](TokenId id) {
    return std::find_if(candidates_.begin(), candidates_.end(), [id](const Candidate& c) { return c.id == id; });
  };
  const auto at_a = find(a), at_b = find(b);
  return at_a != candidates_.end() && at_b != candidates_.end() && at_a->score >= at_b->score;
}

std::span<const Candidate> Sampler::filter(std::span<const float> logits, std::span<const TokenId> prefix,
                                           std::size_t answer_start, std::span<const TokenId> ids) {
  CHECK(settings_.temperature > 0.0F);
  check_logits(logits, ids);
  collect_top_k(penalise(logits, prefix, answer_start, ids), ids);
  if (candidates_.empty()) {
    fail_input("logits: expected a finite value, found -infinity for every token. Fix: check the file's checksum");
  }
  for (Candidate& candidate : candidates_) candidate.score = candidate.score / settings_.temperature;
  if (settings_.top_p < 1.0F) keep_top_p();
  if (settings_.min_p > 0.0F) keep_min_p();
  return candidates_;
}

std::span<const float> Sampler::penalise(std::span<const float> logits, std::span<const TokenId> prefix,
                                         std::size_t answer_start, std::span<const TokenId> ids) {
  CHECK(answer_start <= prefix.size(), "{} {}", answer_start, prefix.size());
  const float repetition = settings_.repetition_penalty;
  const float presence = settings_.presence_penalty;
  if (repetition == 1.0F && presence == 0.0F) return logits;

  penalised_.assign(logits.begin(), logits.end());
  const std::size_t window = settings_.penalty_window == 0 ? prefix.size() : settings_.penalty_window;
  const std::size_t first = prefix.size() - std::min(window, prefix.size());
  const auto each_seen = [&](std::size_t begin, auto&& change) {
    seen_.assign(prefix.begin() + static_cast<std::ptrdiff_t>(begin), prefix.end());
    std::sort(seen_.begin(), seen_.end());
    seen_.erase(std::unique(seen_.begin(), seen_.end()), seen_.end());
    for (const TokenId id : seen_) {
      const std::optional<std::size_t> logit = logit_of(id, ids, penalised_.size());
      CHECK(logit || !ids.empty(), "token {}", id);
      if (logit) change(penalised_[*logit]);
    }
  };
  if (repetition != 1.0F) {
    each_seen(first, [&](float& logit) { logit = logit > 0.0F ? logit / repetition : logit * repetition; });
  }
  if (presence != 0.0F) each_seen(std::max(first, answer_start), [&](float& logit) { logit -= presence; });
  return penalised_;
}

// Fills candidates_ with what step 4 leaves. Dividing by T keeps the order, so the k best are taken before it.
void Sampler::collect_top_k(std::span<const float> logits, std::span<const TokenId> ids) {
  candidates_.clear();
  const std::size_t n = logits.size();
  const std::size_t k = settings_.top_k == 0 ? n : std::min(n, static_cast<std::size_t>(settings_.top_k));
  if (k == n) {
    for (std::size_t i = 0; i < n; ++i) {
      if (logits[i] != -kInfinity) candidates_.push_back({token_of(i, ids), logits[i]});
    }
    return;
  }
  // A heap of the k best so far, its worst on top. Ids come in ascending order, so an equal logit never displaces.
  float floor = -kInfinity;
  for (std::size_t i = 0; i < n; ++i) {
    if (!(logits[i] > floor)) continue;
    if (candidates_.size() == k) {
      std::pop_heap(candidates_.begin(), candidates_.end(), better);
      candidates_.pop_back();
    }
    candidates_.push_back({token_of(i, ids), logits[i]});
    std::push_heap(candidates_.begin(), candidates_.end(), better);
    if (candidates_.size() == k) floor = candidates_.front().score;
  }
  std::sort(candidates_.begin(), candidates_.end(), better);  // the heap's own order is the library's business
}

void Sampler::keep_top_p() {
  const float top = std::min_element(candidates_.begin(), candidates_.end(), better)->score;
  const auto weight = [top](const Candidate& candidate) {
    const float below = candidate.score - top;
    return below < -kNegligible ? 0.0 : static_cast<double>(exp_c(below));
  };
  // In the order of the candidates (best first after top_k, else by id), which is the same everywhere.
  double total = 0.0;
  for (const Candidate& candidate : candidates_) total += weight(candidate);
  const double wanted = static_cast<double>(settings_.top_p) * total;
  // Sort only as many of the best as it takes.
  double sum = 0.0;
  std::size_t kept = 0;
  std::size_t sorted = 0;
  while (sum < wanted && kept < candidates_.size()) {
    if (kept == sorted) {
      const std::size_t next = std::min(candidates_.size(), std::max<std::size_t>(64, 4 * sorted));
      const auto begin = candidates_.begin();
      std::partial_sort(begin + static_cast<std::ptrdiff_t>(sorted), begin + static_cast<std::ptrdiff_t>(next),
                        candidates_.end(), better);
      sorted = next;
    }
    sum += weight(candidates_[kept++]);
  }
  candidates_.resize(std::max<std::size_t>(kept, 1));
}

void Sampler::keep_min_p() {
  const float top = std::min_element(candidates_.begin(), candidates_.end(), better)->score;
  const float least = settings_.min_p;
  std::erase_if(candidates_, [&](const Candidate& candidate) { return exp_c(candidate.score - top) < least; });
}

}  // namespace tandem
