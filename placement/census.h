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

// The routes of a number of rows; every row has Census::used routes in each bank.
struct RouteCounts {
  std::uint64_t rows = 0;
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

  // Adds the routes of one row in one bank. REQUIRES ids below `experts`.
  void add(const std::string& domain, Phase phase, int bank, std::span<const std::int32_t> ids);
  std::uint64_t rows() const;
};

// Text, one line per (domain, phase, bank) with counts; see docs/formats.md. Throws InputError with file and line.
Census load_census(const std::filesystem::path& path);
void save_census(const Census& census, const std::filesystem::path& path);
// Throws InputError (naming `where`) when the shapes differ.
void check_same_shape(const Census& a, const Census& b, std::string_view where);
// into += from. REQUIRES equal shapes.
void merge_census(Census& into, const Census& from);

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
