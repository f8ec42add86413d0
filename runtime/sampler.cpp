#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

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

// Rows of a large vocabulary are looked at in strips, lane by lane, which a compiler turns into vectors; the largest
// value of a strip then rules nearly all of them out. 248,320 logits on one core of an AMD EPYC: top-k 20 and top-p 0.8
// take 117 us instead of 254, the arg max 90 instead of 244.
constexpr std::size_t kStrip = 512, kStripLanes = 16;

float top_of(std::span<const float> strip) {
  float top[kStripLanes];
  std::fill_n(top, kStripLanes, -kInfinity);
  const std::size_t whole = strip.size() / kStripLanes * kStripLanes;
  for (std::size_t i = 0; i < whole; i += kStripLanes)
    for (std::size_t l = 0; l < kStripLanes; ++l) top[l] = strip[i + l] > top[l] ? strip[i + l] : top[l];
  for (std::size_t i = whole; i < strip.size(); ++i) top[i - whole] = std::max(top[i - whole], strip[i]);
  return *std::max_element(top, top + kStripLanes);
}
// visit(first index, strip) for those that hold something above floor(), which may rise meanwhile.
template <typename Floor, typename Visit>
void strips_above(std::span<const float> logits, Floor&& floor, Visit&& visit) {
  for (std::size_t first = 0; first < logits.size(); first += kStrip) {
    const std::span<const float> strip = logits.subspan(first, std::min(kStrip, logits.size() - first));
    if (top_of(strip) > floor()) visit(first, strip);
  }
}

// The noise of one position. Tokens in ascending order make the most of it: four of them share a block of bits.
class Noise {
 public:
  Noise(std::uint64_t seed, std::uint64_t position) : seed_(seed), position_(position) {}
  float of(TokenId token) { return gumbel_from_bits(bits(token)); }
  // Whether score + of(token) is below `best` for certain, told without logarithms: for bits r the noise is at most
  // -ln((r + 1/2) 2^-32), so below k ln 2 when r >= 2^(32-k). With no filter all of a vocabulary is asked for: 3.2 ms
  // instead of 10.0 for 248,320 logits (a busy core).
  bool leaves_below(TokenId token, float score, float best) {
    constexpr float kMargin = 0.01F, kPerNat = 1.4426F;  // of roundings; just below 1 / ln 2
    const float missing = best - score - kMargin;
    if (!(missing > 0.0F)) return false;
    const auto halvings = static_cast<unsigned>(std::min(missing, kMaxGumbel) * kPerNat);
    return halvings > 32U || bits(token) >= std::uint64_t{1} << (32U - halvings);
  }

 private:
  std::uint32_t bits(TokenId token) {
    const auto id = static_cast<std::uint32_t>(token);
    if (id / 4 != block_) {
      block_ = id / 4;
      const PhiloxBlock counter{
          {static_cast<std::uint32_t>(position_), static_cast<std::uint32_t>(position_ >> 32), block_, 0}};
      const PhiloxBlock block =
          philox4x32_10(counter, static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32));
      std::copy_n(block.lane, 4, bits_);
    }
    return bits_[id % 4];
  }

  std::uint64_t seed_, position_;
  std::uint32_t block_ = ~0U;
  std::uint32_t bits_[4];
};

void check_logits(std::span<const float> logits, std::span<const TokenId> ids) {
  CHECK(!logits.empty() && (ids.empty() || ids.size() == logits.size()), "{} logits of {} tokens", logits.size(),
        ids.size());
  std::uint32_t wrong[kStripLanes] = {};
  const std::size_t whole = logits.size() / kStripLanes * kStripLanes;
  for (std::size_t i = 0; i < whole; i += kStripLanes)
    for (std::size_t l = 0; l < kStripLanes; ++l) wrong[l] += logits[i + l] < kInfinity ? 0U : 1U;
  for (std::size_t i = whole; i < logits.size(); ++i) wrong[0] += logits[i] < kInfinity ? 0U : 1U;
  const std::size_t bad = std::accumulate(wrong, wrong + kStripLanes, std::size_t{0});
  if (bad == 0) return;
  const auto first = std::find_if(logits.begin(), logits.end(), [](float x) { return !(x < kInfinity); });
  fail_input(
      "logits: expected finite values, found {} for token {} ({} bad values in all). Fix: the weights are damaged or "
      "were read wrongly; check the file against its published checksum",
      *first, token_of(static_cast<std::size_t>(first - logits.begin()), ids), bad);
}

// Which logit is the largest, the first of equal ones. Throws like argmax_token.
std::size_t arg_max(std::span<const float> logits, std::span<const TokenId> ids) {
  check_logits(logits, ids);
  float best = -kInfinity;
  std::size_t at = 0;
  strips_above(
      logits, [&] { return best; },
      [&](std::size_t first, std::span<const float> strip) {
        const auto top = std::max_element(strip.begin(), strip.end());  // the first of equal ones
        best = *top;
        at = first + static_cast<std::size_t>(top - strip.begin());
      });
  if (best == -kInfinity) {
    fail_input("logits: expected a finite value, found -infinity for every token. Fix: check the file's checksum");
  }
  return at;
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
  return token_of(arg_max(logits, ids), ids);
}

std::optional<TokenChoice> plain_choice(const SamplerSettings& s) {
  const bool filters = s.top_k != 0 || s.top_p < 1.0F || s.min_p > 0.0F;
  const bool penalties = s.repetition_penalty != 1.0F || s.presence_penalty != 0.0F;
  if (penalties || (filters && s.temperature != 0.0F)) return {};
  return TokenChoice{s.temperature, s.seed};
}

Chosen choose_token(std::span<const float> logits, const TokenChoice& choice, std::uint64_t position,
                    std::span<const TokenId> ids) {
  std::size_t at = arg_max(logits, ids);
  if (choice.temperature == 0.0F) return {token_of(at, ids), logits[at], 0, 0};
  Noise noise(choice.seed, position);
  const TokenId top = token_of(at, ids);
  // The best score goes first: it rules out, without computing their noise, most tokens below it.
  Candidate best{top, logits[at] / choice.temperature + noise.of(top)};
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const TokenId id = token_of(i, ids);
    const float score = logits[i] / choice.temperature;
    if (logits[i] == -kInfinity || noise.leaves_below(id, score, best.score)) continue;
    const Candidate value{id, score + noise.of(id)};
    if (!better(value, best)) continue;
    best = value;
    at = i;
  }
  return {best.id, logits[at], 0, 0};
}

Sampler::Sampler(const SamplerSettings& settings) : settings_(settings) {
  check_settings(settings);
}

TokenId Sampler::sample(std::span<const float> logits, std::span<const TokenId> prefix, std::size_t answer_start,
                        std::span<const TokenId> ids) {
  if (settings_.temperature == 0.0F) return argmax_token(penalise(logits, prefix, answer_start, ids), ids);
  const std::span<const Candidate> candidates = filter(logits, prefix, answer_start, ids);
  Noise noise(settings_.seed, prefix.size());
  // The best score goes first: it rules out, without computing their noise, most tokens below it.
  Candidate best = *std::min_element(candidates.begin(), candidates.end(), better);
  best.score = best.score + noise.of(best.id);
  for (const Candidate& candidate : candidates) {
    if (noise.leaves_below(candidate.id, candidate.score, best.score)) continue;
    const Candidate value{candidate.id, candidate.score + noise.of(candidate.id)};
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
  strips_above(
      logits, [&] { return floor; },
      [&](std::size_t first, std::span<const float> strip) {
        for (std::size_t i = 0; i < strip.size(); ++i) {
          if (!(strip[i] > floor)) continue;
          if (candidates_.size() == k) {
            std::pop_heap(candidates_.begin(), candidates_.end(), better);
            candidates_.pop_back();
          }
          candidates_.push_back({token_of(first + i, ids), strip[i]});
          std::push_heap(candidates_.begin(), candidates_.end(), better);
          if (candidates_.size() == k) floor = candidates_.front().score;
        }
      });
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
