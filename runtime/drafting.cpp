#include "runtime/drafting.h"

namespace tandem {

SequenceDrafter::SequenceDrafter(Pipeline& pipeline, SequenceState& state, const DraftSettings& settings) {
  if (settings.head && pipeline.model().mtp && settings.depth.value_or(1) > 0)
    head_.emplace(pipeline, state, settings.norm, settings.attention);
  if (head_ || settings.lookup) speculator_.emplace(settings, head());
}

}  // namespace tandem
