// The switches that change the text, in words: `lossy:` of the policy and the --lossy-* flags (docs/drafting.md).
#pragma once

#include <cstdint>
#include <string>

#include "placement/policy.h"
#include "runtime/tail_skip.h"

namespace tandem {

// "biased acceptance, tail-route skip 0.05"; empty when all are off.
std::string lossy_switches(const Policy::Lossy& lossy);
// The warning at the start of whoever runs with switches on.
std::string lossy_banner(const Policy::Lossy& lossy);
// "lossy: 12 tokens kept though rejected, 1.31 % of router weight skipped"; empty when all are off.
std::string lossy_status(const Policy::Lossy& lossy, std::uint64_t kept_though_rejected,
                         const TailSkip::Counts& skipped);

}  // namespace tandem
