#include "placement/units.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

#include "placement/check.h"

namespace tandem {

std::optional<std::int64_t> parse_bytes(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error != std::errc{} || !(value >= 0) || !std::isfinite(value)) return std::nullopt;
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  double factor = 1;
  if (!unit.empty() && unit != "B") {
    constexpr std::string_view kPrefixes = "KMGTkmgt";
    const std::size_t at = kPrefixes.find(unit.front());
    if (at == std::string_view::npos) return std::nullopt;
    const std::string_view rest = unit.substr(1);
    if (!rest.empty() && rest != "iB" && rest != "B") return std::nullopt;
    factor = std::pow(rest == "B" ? 1000.0 : 1024.0, static_cast<double>(at % 4 + 1));
  }
  const double bytes = value * factor;
  if (bytes >= 9.0e18) return std::nullopt;
  return static_cast<std::int64_t>(std::llround(bytes));
}

std::int64_t parse_bytes_or_fail(std::string_view text, std::string_view where) {
  const std::optional<std::int64_t> bytes = parse_bytes(text);
  if (!bytes) fail_input("{}: expected a size such as 24GiB, 512MiB or 1.5GB, found \"{}\"", where, text);
  if (*bytes != 0 && text.find_first_not_of("0123456789.") == std::string_view::npos)
    fail_input("{}: expected a size with its unit, found \"{}\". Fix: {}GiB, {}MiB or, for single bytes, {}B", where,
               text, text, text, text);
  return *bytes;
}

std::string format_bytes(std::int64_t bytes) {
  constexpr std::array<std::string_view, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  const bool negative = bytes < 0;
  double value = std::fabs(static_cast<double>(bytes));
  std::size_t unit = 0;
  while (unit + 1 < kUnits.size() && value >= 999.5) {  // 1000 MiB reads better as 0.98 GiB
    value /= 1024;
    ++unit;
  }
  const int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{}{:.{}f} {}", negative ? "-" : "", value, decimals, kUnits[unit]);
}

std::string grouped(std::int64_t number) {
  std::string digits = fmt::format("{}", number);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > (number < 0 ? 1 : 0); at -= 3) {
    digits.insert(static_cast<std::size_t>(at), ",");
  }
  return digits;
}

}  // namespace tandem
