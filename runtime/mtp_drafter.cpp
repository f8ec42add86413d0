#include "runtime/mtp_drafter.h"

#include <algorithm>
#include <cmath>

#include "placement/check.h"

namespace tandem {
namespace {

// exp(logit - log sum exp) of one of the logits. What lies this far below the best one adds less than one part in 10^7
// each.
constexpr float kNegligible = 16.0F;

float probability(std::span<const float> logits, std::size_t index, float temperature) {
  const float scale = temperature > 0.0F ? 1.0F / temperature : 1.0F;
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) {
    const float below = (logit - top) * scale;
    if (below > -kNegligible) sum += static_cast<double>(std::exp(below));
  }
  const float below = (logits[index] - top) * scale;
  return static_cast<float>(static_cast<double>(std::exp(below)) / sum);
}

}  // namespace

MtpDrafter::MtpDrafter(Pipeline& pipeline, SequenceState& state, MtpNorm norm, MtpAttention attention)
    : pipeline_(pipeline), state_(state), head_(pipeline, norm, attention) {}

void MtpDrafter::take(std::size_t first, ConstRows wide, Rows rows) {
  SequenceState::MtpState& mtp = state_.mtp;
  CHECK(first + wide.rows <= state_.position(), "{} + {} rows of {}", first, wide.rows, state_.position());
  // After positions that were run without this: what waits from before can still be fed, since its next token is known.
  std::vector<float> fresh;
  if (mtp.waiting(wide.cols) > 0 && mtp.hidden_first + mtp.waiting(wide.cols) != first) {
    fresh.assign(wide.data, wide.data + wide.rows * wide.cols);
    catch_up(state_.tokens(), false);
    mtp.hidden.clear();
    wide = ConstRows(fresh.data(), wide.rows, wide.cols);
  }
  if (mtp.hidden.empty()) mtp.hidden_first = first;
  mtp.hidden.insert(mtp.hidden.end(), wide.data, wide.data + wide.rows * wide.cols);
  if (rows == Rows::kPrompt) return catch_up(state_.tokens(), false);
  ++rounds_;
  const std::size_t waiting = mtp.waiting(wide.cols);
  if (rounds_ <= kPatience || waiting <= kMostWaiting) return;
  const std::size_t dropped = waiting - kLeastWaiting;
  mtp.hidden.erase(mtp.hidden.begin(), mtp.hidden.begin() + static_cast<std::ptrdiff_t>(dropped * wide.cols));
  mtp.hidden_first += dropped;
}

void MtpDrafter::catch_up(std::span<const TokenId> tokens, bool logits) {
  SequenceState::MtpState& mtp = state_.mtp;
  const auto width = static_cast<std::size_t>(state_.shape().wide());
  const std::size_t first = mtp.hidden_first, known = tokens.size() - std::min(tokens.size(), first + 1);
  const std::size_t rows = std::min(mtp.waiting(width), known);
  for (std::size_t done = 0; done < rows;) {
    const std::size_t count = std::min(rows - done, pipeline_.max_rows());
    const bool last = done + count == rows;
    out_ = head_.forward(state_, ConstRows(mtp.hidden.data() + done * width, count, width),
                         tokens.subspan(first + 1 + done, count), PassMode::kCommit,
                         last && logits ? LogitRows::kLast : LogitRows::kNone);
    done += count;
  }
  mtp.hidden.erase(mtp.hidden.begin(), mtp.hidden.begin() + static_cast<std::ptrdiff_t>(rows * width));
  mtp.hidden_first += rows;
}

void MtpDrafter::start(std::size_t answer_start, const SamplerSettings& sampling) {
  sampler_.emplace(sampling);
  answer_start_ = answer_start;
}

bool MtpDrafter::begin(std::span<const TokenId> prefix) {
  CHECK(prefix.size() == state_.position() + 1, "{} tokens at position {}", prefix.size(), state_.position());
  const auto width = static_cast<std::size_t>(state_.shape().wide());
  rounds_ = 0;
  // The chain hangs on the residual of the last position that was run.
  if (state_.mtp.hidden.empty() || state_.mtp.hidden_first + state_.mtp.waiting(width) != state_.position())
    return false;
  catch_up(prefix, true);
  return true;
}

Draft MtpDrafter::draft(std::span<const TokenId> prefix) {
  CHECK(out_.logits && sampler_);
  const std::span<const float> logits = out_.logits.span(0);
  const TokenId token = sampler_->sample(logits, prefix, answer_start_, out_.ids);
  const std::size_t logit = logit_of(token, out_.ids, logits.size()).value();
  return {token, DraftSource::kHead, probability(logits, logit, sampler_->settings().temperature)};
}

void MtpDrafter::advance(TokenId token, bool logits) {
  const ConstRows last = out_.wide.slice(out_.wide.rows - 1, 1);
  out_ = head_.forward(state_, last, {&token, 1}, PassMode::kWindow, logits ? LogitRows::kLast : LogitRows::kNone);
}

void MtpDrafter::end() {
  state_.keep_drafts(0);
}

}  // namespace tandem
