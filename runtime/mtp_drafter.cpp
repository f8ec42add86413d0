#include "runtime/mtp_drafter.h"

#include <algorithm>

#include "placement/check.h"
#include "runtime/expert_store.h"

namespace tandem {

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
  next_ = tokens.size();
  const auto width = static_cast<std::size_t>(state_.shape().wide());
  const std::size_t first = mtp.hidden_first, known = tokens.size() - std::min(tokens.size(), first + 1);
  const std::size_t rows = std::min(mtp.waiting(width), known);
  // Not in passes that take lent memory back, where the trunk has left it: rows of a short prompt after others that
  // waited, or of many rounds without a chain.
  const ExpertStore* store = pipeline_.experts();
  const bool lent = store != nullptr && store->prompt_memory_lent();
  const std::size_t most = lent ? std::min(store->short_rows(), pipeline_.max_rows()) : pipeline_.max_rows();
  for (std::size_t done = 0; done < rows;) {
    const std::size_t count = std::min(rows - done, most);
    const bool last = done + count == rows;
    out_ =
        head_.forward(state_, ConstRows(mtp.hidden.data() + done * width, count, width),
                      tokens.subspan(first + 1 + done, count), PassMode::kCommit,
                      last && logits ? LogitRows::kLast : LogitRows::kNone, last && logits ? choice() : std::nullopt);
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

std::optional<DraftChoice> MtpDrafter::choice() const {
  const SamplerSettings& settings = sampler_->settings();
  const std::optional<TokenChoice> alone = plain_choice(settings);
  return DraftChoice{alone.value_or(TokenChoice{settings.temperature, settings.seed}), alone.has_value(), next_};
}

Draft MtpDrafter::draft(std::span<const TokenId> prefix) {
  CHECK(!out_.tokens.empty() && prefix.size() == next_, "a draft of token {}, the head is at {}", prefix.size(), next_);
  Chosen chosen = out_.tokens[0];
  if (out_.logits) {
    const std::span<const float> logits = out_.logits.span(0);
    chosen.token = sampler_->sample(logits, prefix, answer_start_, out_.ids);
    chosen.logit = logits[logit_of(chosen.token, out_.ids, logits.size()).value()];
  }
  return {chosen.token, DraftSource::kHead, probability(chosen, sampler_->settings().temperature)};
}

void MtpDrafter::advance(TokenId token, bool logits) {
  const ConstRows last = out_.wide.slice(out_.wide.rows - 1, 1);
  ++next_;
  out_ = head_.forward(state_, last, {&token, 1}, PassMode::kWindow, logits ? LogitRows::kLast : LogitRows::kNone,
                       logits ? choice() : std::nullopt);
}

void MtpDrafter::end() {
  state_.keep_drafts(0);
}

}  // namespace tandem
