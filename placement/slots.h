// Which experts were on the card when a program ended, so that the next one begins where it left off.
#pragma once

#include <cstdint>
#include <filesystem>

#include "placement/plan.h"

namespace tandem {

// Text: a header with the model's fingerprint, then a line for each bank. docs/formats.md, "Slots file".
void save_slots(const ExpertPlacement& placement, std::uint64_t fingerprint, const std::filesystem::path& path);

// `planned` with the experts of the file on the card instead of the planned ones. Banks of one size (expert_bytes) keep
// the number of slots that the plan gave them together: where the file has more, its later ones are left out; where it
// has fewer, planned ones fill up. Experts that the plan pins (movable false) stay where they are. Throws InputError
// when the file is damaged or of another model.
ExpertPlacement restore_slots(const std::filesystem::path& path, const ExpertPlacement& planned,
                              const std::vector<std::int64_t>& expert_bytes, const std::vector<bool>& movable,
                              std::uint64_t fingerprint);

}  // namespace tandem
