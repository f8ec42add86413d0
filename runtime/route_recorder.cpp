#include "runtime/route_recorder.h"

#include "placement/check.h"

namespace tandem {

void RouteRecorder::begin(const std::string& domain, std::optional<Phase> phase) {
  CHECK(is_domain_name(domain), "{}", domain);
  domain_ = domain;
  phase_ = phase;
}

void RouteRecorder::on_routes(PassMode mode, int bank, std::size_t position, const Routes& routes) {
  CHECK(!domain_.empty());
  if (bank == 0 || rounds_.empty()) {  // a draft block that runs before any trunk pass has a round of its own
    const bool prompt = mode == PassMode::kCommit && routes.rows > 1;
    rounds_.push_back({phase_.value_or(prompt ? Phase::kPrefill : Phase::kDecode), domain_, {}, position});
  }
  rounds_.back().blocks.push_back(
      {bank, static_cast<std::uint32_t>(routes.rows), {routes.expert, routes.expert + routes.rows * routes.used}});
}

void RouteRecorder::take_into(Census& census, TraceWriter* trace) {
  for (const TraceRound& round : rounds_) {
    for (const TraceBlock& block : round.blocks) census.add(round.domain, round.phase, block.bank, block.ids);
    if (trace != nullptr) trace->add(round);
  }
  rounds_.clear();
}

void RouteRecorder::drop() {
  rounds_.clear();
}

}  // namespace tandem
