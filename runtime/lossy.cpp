#include "runtime/lossy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

namespace tandem {

std::string lossy_switches(const Policy::Lossy& lossy) {
  std::vector<std::string> on;
  if (lossy.biased_acceptance) on.push_back("biased acceptance");
  if (lossy.tail_route_skip > 0) on.push_back(fmt::format("tail-route skip {}", lossy.tail_route_skip));
  return fmt::format("{}", fmt::join(on, ", "));
}

std::string lossy_banner(const Policy::Lossy& lossy) {
  std::vector<std::string> causes;
  if (lossy.biased_acceptance) causes.push_back("what was drafted");
  if (lossy.tail_route_skip > 0) causes.push_back("which experts are on the card");
  return fmt::format(
      "LOSSY: {}. The text is not that of the model: it depends on {}. `tandem eval --lossy` measures by how much. For "
      "exact text: --lossy-biased-acceptance off --lossy-tail-route-skip 0, or leave `lossy` out of the policy",
      lossy_switches(lossy), fmt::join(causes, " and "));
}

std::string lossy_status(const Policy::Lossy& lossy, std::uint64_t kept_though_rejected,
                         const TailSkip::Counts& skipped) {
  std::vector<std::string> parts;
  if (lossy.biased_acceptance)
    parts.push_back(
        fmt::format("{} token{} kept though rejected", kept_though_rejected, kept_though_rejected == 1 ? "" : "s"));
  if (lossy.tail_route_skip > 0)
    parts.push_back(fmt::format("{:.2f} % of router weight skipped", 100 * skipped.weight_share()));
  return parts.empty() ? std::string{} : fmt::format("lossy: {}", fmt::join(parts, ", "));
}

}  // namespace tandem
