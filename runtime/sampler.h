// From a row of logits to a token: penalties, temperature, filters, then the largest logit plus counter-based noise.
//
// A sampled token is a pure function of (logits, prefix, settings): nothing is remembered between calls, so the same
// place asked again, by a draft, after an undo or in another run, gives the same token (docs/numerics.md, R8).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/chosen.h"
#include "runtime/tokenizer.h"

namespace tandem {

// The neutral values switch a step off. Steps run in this order:
//   1 repetition penalty r: the logit of every token in the window, prompt included, is divided by r when positive and
//     multiplied by r otherwise. Window: the last `penalty_window` tokens of the prefix, 0 = all of it.
//   2 presence penalty p: subtracted from the logit of every token that the present answer already holds (in the same
//     window). The prompt does not count: this is what published recommendations for it were made with.
//   3 temperature T: score = logit / T. T = 0 stops here: the largest logit wins.
//   4 top_k: the k best scores stay, 0 = all.
//   5 top_p: the smallest set of best tokens whose softmax (over what is left) reaches top_p stays.
//   6 min_p: tokens with at least min_p times the probability of the best one stay.
struct SamplerSettings {
  float temperature = 1.0F;
  int top_k = 0;
  float top_p = 1.0F;
  float min_p = 0.0F;
  float presence_penalty = 0.0F;
  float repetition_penalty = 1.0F;
  std::size_t penalty_window = 1024;
  std::uint64_t seed = 0;
};

// Throws InputError naming the setting, its range and the value found.
void check_settings(const SamplerSettings& settings);

// A choice that looks at nothing but the row: the arg max, or with a temperature above 0 the arg max of
// logit / temperature + gumbel_noise(seed, position, token) (docs/numerics.md, R8). Machines can make it themselves.
struct TokenChoice {
  float temperature = 0.0F;
  std::uint64_t seed = 0;
};
// The choice that these settings come to, if penalties and filters are off.
std::optional<TokenChoice> plain_choice(const SamplerSettings& settings);
// Ties go to the lower token; `position` is that of the token chosen, `ids` as for Sampler::sample. Throws InputError
// like it. Fills in token and logit.
Chosen choose_token(std::span<const float> logits, const TokenChoice& choice, std::uint64_t position,
                    std::span<const TokenId> ids = {});

struct Candidate {
  TokenId id;
  float score;  // penalised logit / T
};

class Sampler {
 public:
  explicit Sampler(const SamplerSettings& settings);  // throws like check_settings

  // The token that follows `prefix`; prefix[answer_start..] is the present answer. Ties go to the lower id.
  // Throws InputError when a logit is NaN or +infinity, or when all are -infinity. REQUIRES logits not empty,
  // answer_start <= prefix.size(), ids of the prefix below logits.size().
  // `ids`: the tokens that the logits belong to, ascending; the choice is then among them, each with the noise that it
  // has among all. Empty: token i is logit i.
  TokenId sample(std::span<const float> logits, std::span<const TokenId> prefix, std::size_t answer_start,
                 std::span<const TokenId> ids = {});

  // Of the row that was sampled or filtered last: whether `a` and `b` are both among the survivors of steps 1 to 6 and
  // `a` is at least as likely as `b`. Never with temperature 0, where one token alone has a probability.
  bool at_least_as_likely(TokenId a, TokenId b) const;

  // The survivors of steps 1 to 6, in no particular order; valid until the next call. REQUIRES temperature > 0.
  std::span<const Candidate> filter(std::span<const float> logits, std::span<const TokenId> prefix,
                                    std::size_t answer_start, std::span<const TokenId> ids = {});

  const SamplerSettings& settings() const { return settings_; }

 private:
  std::span<const float> penalise(std::span<const float> logits, std::span<const TokenId> prefix,
                                  std::size_t answer_start, std::span<const TokenId> ids);
  void collect_top_k(std::span<const float> logits, std::span<const TokenId> ids);
  void keep_top_p();
  void keep_min_p();

  SamplerSettings settings_;
  std::vector<float> penalised_;
  std::vector<TokenId> seen_;
  std::vector<Candidate> candidates_;
};

// The token with the largest value, ties to the lower one. Throws InputError like Sampler::sample.
TokenId argmax_token(std::span<const float> logits, std::span<const TokenId> ids = {});

// Which of the logits is that of a token: its place in `ids`, or the token itself where that is empty; empty when it
// has none.
std::optional<std::size_t> logit_of(TokenId token, std::span<const TokenId> ids, std::size_t logits);

}  // namespace tandem
