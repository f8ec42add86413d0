// How often each expert is chosen: routes counted per (bank, expert), by domain, prefill and decode apart.
// A bank is the routed experts of one layer; bank `layers` is the draft block's when the model has one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

enum class Phase : std::uint8_t { kPrefill, kDecode };

// The routes of a number of rows. A row that passes a bank has Census::used routes there, so that the routes of a bank
// are a multiple of it; the draft block may see other rows than the trunk, or none.
struct RouteCounts {
  std::uint64_t rows = 0;             // rows of bank 0
  std::vector<std::uint64_t> routes;  // [banks * experts]
};

struct DomainCensus {
  RouteCounts prefill, decode;
  RouteCounts& of(Phase phase) { return phase == Phase::kPrefill ? prefill : decode; }
  const RouteCounts& of(Phase phase) const { return phase == Phase::kPrefill ? prefill : decode; }
};

struct Census {
  std::string model;              // the model's name, for people
  std::uint64_t fingerprint = 0;  // Model::fingerprint of the file it was taken on; 0: unknown
  int banks = 0, experts = 0, used = 0;
  std::map<std::string, DomainCensus> domains;

  // Adds the routes of one row, or of several, in one bank. REQUIRES ids below `experts`, a multiple of `used` of them,
  // a domain that is_domain_name.
  void add(const std::string& domain, Phase phase, int bank, std::span<const std::int32_t> ids);
  std::uint64_t rows() const;
};

inline constexpr int kMaxBanks = 4096, kMaxExperts = 65536;  // what files may hold
// A domain: 1 to 64 of letters, digits and . _ - (it stands in files, flags and paths).
bool is_domain_name(std::string_view name);
std::string_view phase_name(Phase phase);  // "prefill", "decode"

// Text, one line per (domain, phase, bank) with counts; see docs/formats.md. Throws InputError with file and line.
Census load_census(const std::filesystem::path& path);
// The same from text; `where` is what messages start with.
Census parse_census(std::string_view text, const std::string& where);
std::string format_census(const Census& census);
void save_census(const Census& census, const std::filesystem::path& path);
// Throws InputError (naming `where`) when the shapes differ.
void check_same_shape(const Census& a, const Census& b, std::string_view where);
// into += weight * from. REQUIRES equal shapes. Throws InputError when a count leaves 64 bits.
void merge_census(Census& into, const Census& from, std::uint64_t weight = 1);

// Share of routes per (bank, expert): for each bank the values sum to 1 (a bank without counts is uniform).
struct RouteShares {
  int banks = 0, experts = 0, used = 0;
  std::vector<double> share;  // [banks * experts]
  double at(int bank, int expert) const { return share[static_cast<std::size_t>(bank * experts + expert)]; }
};
RouteShares uniform_shares(int banks, int experts, int used);
// One part of a mixture; domain empty: all domains of the census together.
struct CensusPart {
  const Census* census = nullptr;
  std::string domain;
  double weight = 1.0;
};
// The weighted mean of the parts' shares (each part normalised per bank first, so that the length of a text does not
// matter), over prefill and decode routes together when `phases` is empty. REQUIRES equal shapes, weights >= 0, one >
// 0.
RouteShares mix_shares(std::span<const CensusPart> parts, std::span<const Phase> phases = {});

}  // namespace tandem
