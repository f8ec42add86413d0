#include "runtime/draft.h"

namespace tandem {
namespace {

double ratio(std::uint64_t a, std::uint64_t b) {
  return b == 0 ? 0.0 : static_cast<double>(a) / static_cast<double>(b);
}

}  // namespace

double DraftStats::tokens_per_round() const {
  return ratio(tokens, rounds);
}

double DraftStats::acceptance() const {
  return ratio(all_accepted(), all_drafted());
}

DraftStats& DraftStats::operator+=(const DraftStats& more) {
  rounds += more.rounds;
  tokens += more.tokens;
  for (std::size_t i = 0; i < kMaxDrafts; ++i) {
    drafted[i] += more.drafted[i];
    accepted[i] += more.accepted[i];
  }
  for (std::size_t s = 0; s < source_drafted.size(); ++s) {
    source_drafted[s] += more.source_drafted[s];
    source_accepted[s] += more.source_accepted[s];
  }
  kept_though_rejected += more.kept_though_rejected;
  draft_seconds += more.draft_seconds;
  pass_seconds += more.pass_seconds;
  sample_seconds += more.sample_seconds;
  return *this;
}

}  // namespace tandem
