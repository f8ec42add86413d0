#include "placement/fetch_ahead.h"

#include "placement/footprint.h"

namespace tandem {
namespace {

constexpr double kRemembered = 4096;      // copies, and experts of the crew, that count in full
constexpr std::uint64_t kEvidence = 512;  // that a change needs: some ten passes
constexpr double kClearly = 1.2;          // times more, or less, than a copy costs

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
  if (since_ < kEvidence) return;
  const bool change = on_ ? gain() * kClearly < kFetchSeconds : gain() > kFetchSeconds * kClearly;
  if (!change) return;
  on_ = !on_;
  since_ = 0;
}

}  // namespace tandem
