#include "placement/fetch_ahead.h"

#include <algorithm>

#include "placement/footprint.h"

namespace tandem {
namespace {

constexpr double kRemembered = 4096;      // copies, and experts of the crew, that count in full
constexpr std::uint64_t kEvidence = 512;  // that a change needs: some ten passes
// Experts of the crew before the first trial, some 300 passes of a few rows; at most, some 20,000; and copies after
// which what was said of earlier trials is forgotten.
constexpr std::uint64_t kFirstTrial = 1 << 15, kLastTrial = 1 << 21, kSettled = 1 << 14;
constexpr double kClearly = 1.2;  // times more, or less, than a copy costs

}  // namespace

std::int64_t fetch_bytes(std::int64_t expert_bytes, std::int64_t experts) {
  constexpr std::int64_t kAlignment = 256, kWords = 4096;
  const std::int64_t place = (expert_bytes + kAlignment - 1) / kAlignment * kAlignment;
  return 2 * kNamedExperts * place + kWindowRows * experts * 4 + kWords;
}

double FetchJudge::gain() const {
  return copies_ > 0 && experts_ > 0 ? asked_ / copies_ * seconds_ / experts_ : 0.0;
}

void FetchJudge::count(const FetchCounts& fetched, std::uint64_t crew_experts, double crew_seconds) {
  all_.copies += fetched.copies;
  all_.asked += fetched.asked;
  copies_ += static_cast<double>(fetched.copies);
  asked_ += static_cast<double>(fetched.asked);
  experts_ += static_cast<double>(crew_experts);
  seconds_ += crew_seconds;
  if (copies_ > kRemembered) copies_ /= 2, asked_ /= 2;
  if (experts_ > kRemembered) experts_ /= 2, seconds_ /= 2;
  if (how_ != FetchAhead::kAuto) return;
  since_ += on_ ? fetched.copies : crew_experts;
  if (since_ < kEvidence || experts_ == 0) return;
  if (on_) {
    if (gain() * kClearly < cost_)
      turn(false);
    else if (since_ > kSettled)
      patience_ = 0;
  } else if (gain() > cost_ * kClearly) {
    turn(true);
  } else if (since_ >= patience_) {
    copies_ = asked_ = 0;  // of the trial alone
    turn(true);
  }
}

void FetchJudge::turn(bool on) {
  if (!on) patience_ = std::clamp(2 * patience_, kFirstTrial, kLastTrial);
  on_ = on;
  since_ = 0;
}

}  // namespace tandem
