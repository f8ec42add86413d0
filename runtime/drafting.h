// A sequence's drafter, put together from settings: the model's head, if it has one, and the scheduler above it.
#pragma once

#include <optional>

#include "runtime/mtp_drafter.h"
#include "runtime/speculator.h"

namespace tandem {

class SequenceDrafter {
 public:
  // Pipeline and state must outlive this.
  SequenceDrafter(Pipeline& pipeline, SequenceState& state, const DraftSettings& settings);
  MtpDrafter* head() { return head_ ? &*head_ : nullptr; }              // for the decoder
  Drafter* drafter() { return speculator_ ? &*speculator_ : nullptr; }  // null: nothing to draft with
  const Speculator* speculator() const { return speculator_ ? &*speculator_ : nullptr; }

 private:
  std::optional<MtpDrafter> head_;
  std::optional<Speculator> speculator_;
};

}  // namespace tandem
