#include "runtime/route_recorder.h"

#include <iterator>
#include <utility>

#include "placement/check.h"

namespace tandem {

void RouteRecorder::begin(const std::string& domain, std::optional<Phase> phase) {
  CHECK(is_domain_name(domain), "{}", domain);
  domain_ = domain;
  phase_ = phase;
}

void RouteRecorder::on_routes(PassMode mode, int bank, const Routes& routes) {
  CHECK(!domain_.empty());
  if (bank == 0) {
    const bool prompt = mode == PassMode::kCommit && routes.rows > 1;
    open_.phase = phase_.value_or(prompt ? Phase::kPrefill : Phase::kDecode);
    open_.domain = domain_;
  }
  open_.blocks.push_back(
      {bank, static_cast<std::uint32_t>(routes.rows), {routes.expert, routes.expert + routes.rows * routes.used}});
}

void RouteRecorder::end_pass() {
  rounds_.push_back(std::exchange(open_, {}));
}

void RouteRecorder::take_into(Census& census, TraceWriter* trace) {
  if (!rounds_.empty()) {
    auto& last = rounds_.back().blocks;
    last.insert(last.end(), std::make_move_iterator(open_.blocks.begin()), std::make_move_iterator(open_.blocks.end()));
    open_ = {};
  }
  for (const TraceRound& round : rounds_) {
    for (const TraceBlock& block : round.blocks) census.add(round.domain, round.phase, block.bank, block.ids);
    if (trace != nullptr) trace->add(round);
  }
  rounds_.clear();
}

void RouteRecorder::drop() {
  rounds_.clear();
  open_ = {};
}

}  // namespace tandem
