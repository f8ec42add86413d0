// JSON in the form that chat templates print it in.
#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <string_view>

namespace tandem {

// One line with ", " and ": " between elements, keys in their order, characters outside ASCII as they are, floats as
// the shortest text that reads back (1.0, 0.1, 1e+16): what the template engine of the training data makes of a value,
// so what the model has seen.
std::string python_json(const nlohmann::ordered_json& value);

// The value that `text` as a whole describes; nothing when it is no JSON, or nested deeper than any call needs (so that
// no text can exhaust the stack).
std::optional<nlohmann::ordered_json> parse_json(std::string_view text);

}  // namespace tandem
