// What the runtime takes from the text of a chat template, and how it tells that a template is not the one it renders.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/jinja_scan.h"

namespace tandem {

// The sentences that only the file knows. Nothing where they could not be located.
struct TemplateWording {
  std::optional<std::string> effort_low, effort_xhigh;  // the instruction at the start of the system turn
  // Before and after the tools, one JSON text a line: from "# Tools" to "<tools>", and from "\n</tools>" to the end of
  // the format instruction.
  std::optional<std::string> tools_before, tools_after;
};

TemplateWording find_wording(const std::vector<JinjaToken>& tokens);

// What the template lacks of the Qwen3.8 form (markers, options) and has beside it (markers, roles), as text for a
// warning; empty when nothing is found. `wording` is what find_wording found: its markers are no difference.
std::string describe_difference(const std::vector<JinjaToken>& tokens, const TemplateWording& wording);

}  // namespace tandem
