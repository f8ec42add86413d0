#include "runtime/python_json.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

#include "placement/check.h"

namespace tandem {
namespace {

constexpr int kDeepest = 64;

void append_string(std::string_view text, std::string& out) {
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

void append_float(double value, std::string& out) {
  if (!std::isfinite(value)) {
    out += std::isnan(value) ? "NaN" : value < 0 ? "-Infinity" : "Infinity";
    return;
  }
  const double size = std::abs(value);
  const bool fixed = size == 0 || (size >= 1e-4 && size < 1e16);
  std::array<char, 64> text;
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value,
                                          fixed ? std::chars_format::fixed : std::chars_format::scientific);
  CHECK(error == std::errc());
  const std::string_view digits(text.data(), static_cast<std::size_t>(end - text.data()));
  out += digits;
  if (fixed && digits.find('.') == std::string_view::npos) out += ".0";
}

void append(const nlohmann::ordered_json& value, std::string& out) {
  const char* separator = "";
  if (value.is_object()) {
    out += '{';
    for (const auto& [key, element] : value.items()) {
      out += separator;
      append_string(key, out);
      out += ": ";
      append(element, out);
      separator = ", ";
    }
    out += '}';
  } else if (value.is_array()) {
    out += '[';
    for (const auto& element : value) {
      out += separator;
      append(element, out);
      separator = ", ";
    }
    out += ']';
  } else if (value.is_string()) {
    append_string(value.get_ref<const std::string&>(), out);
  } else if (value.is_number_float()) {
    append_float(value.get<double>(), out);
  } else {
    out += value.dump();  // integers, true, false, null
  }
}

}  // namespace

std::string python_json(const nlohmann::ordered_json& value) {
  std::string out;
  append(value, out);
  return out;
}

std::optional<nlohmann::ordered_json> parse_json(std::string_view text) {
  int depth = 0;
  for (const char c : text) {
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth > kDeepest) return std::nullopt;
  }
  auto value = nlohmann::ordered_json::parse(text, nullptr, false);
  if (value.is_discarded()) return std::nullopt;
  return value;
}

}  // namespace tandem
