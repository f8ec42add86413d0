// Sizes as people write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tandem {

inline constexpr std::int64_t kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;

// "24GiB", "1.5 GB", "512M" (K, M, G, T and KiB.. are powers of 1024, KB.. powers of 1000), "4096" or "4096B".
// Nullopt for anything else, for negative values and for what does not fit.
std::optional<std::int64_t> parse_bytes(std::string_view text);
// The same, with an InputError that names `where` (a flag or a key).
std::int64_t parse_bytes_or_fail(std::string_view text, std::string_view where);
// "21.4 GiB", "512 MiB", "96 B": three digits at most, the largest unit that leaves at least 1.
std::string format_bytes(std::int64_t bytes);
// "12,345": with thousands separators.
std::string grouped(std::int64_t number);

}  // namespace tandem
