// Keeps the routes of passes until they are taken into a census and a trace, or dropped: what was only half run when a
// user stopped it is not counted.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "placement/census.h"
#include "placement/trace.h"
#include "runtime/pipeline.h"

namespace tandem {

class RouteRecorder : public RouteObserver {
 public:
  // What the following passes belong to. Without a phase, a committing pass of more than one row is prefill and every
  // other pass is decode.
  void begin(const std::string& domain, std::optional<Phase> phase = {});

  void on_routes(PassMode mode, int bank, std::size_t position, const Routes& routes) override;

  // Counts what was recorded and, with `trace`, appends it there; then it is forgotten. REQUIRES a census of the
  // model's shape.
  void take_into(Census& census, TraceWriter* trace);
  void drop();

 private:
  std::string domain_;
  std::optional<Phase> phase_;
  std::vector<TraceRound> rounds_;
};

}  // namespace tandem
