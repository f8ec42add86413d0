// A placement policy: what a user decides about memory, experts and drafting, from a YAML file. docs/policies.md
// documents every key; the loader refuses what it does not know.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

enum class Objective : std::uint8_t { kRoundTime, kHitRate };
enum class AdaptMode : std::uint8_t { kOff, kLru, kLfu, kSwaps };
enum class FetchAhead : std::uint8_t { kAuto, kOn, kOff };
enum class NgramPlace : std::uint8_t { kAuto, kRam, kDisk };
enum class CrewCores : std::uint8_t { kPerformance, kAll };
enum class KvFormat : std::uint8_t { kF16, kF32 };
enum class VocabularySource : std::uint8_t { kFile, kHistory, kText };

// Experts named in a policy: layers and experts as inclusive ranges.
struct ExpertRange {
  int first_layer = 0, last_layer = 0;
  int first_expert = 0, last_expert = 0;
  std::string where = {};  // for messages: "FILE:LINE:COLUMN: KEY"; empty when the range comes from no file
  int line = 0;
};

struct Policy {
  std::string name = "default";  // of a file that gives none: the file's name without its ending
  std::string description;
  std::filesystem::path file;  // what it was read from; empty: built in

  struct Memory {                              // empty: auto
    std::optional<std::int64_t> vram;          // bytes that Tandem may use on the card; auto: all that is free
    std::optional<std::int64_t> vram_reserve;  // of them left alone for the driver and the desktop
    std::optional<std::int64_t> ram;           // bytes that Tandem may use in RAM; auto: what is available
    std::optional<std::int64_t> ram_reserve;   // of them left alone for everything else
    std::optional<int> slots;                  // expert slots on the card, at most; auto: as many as fit
    bool lend_prompt_memory = true;            // to experts, between prompts
    bool lend_kv_cache = true;                 // to experts, what a conversation has not reached of it
  } memory;

  Objective objective = Objective::kRoundTime;
  std::optional<std::int64_t> context;  // positions
  KvFormat kv = KvFormat::kF16;

  struct CensusSource {
    std::filesystem::path file;  // absolute, or relative to the policy file (resolved by the loader)
    std::string domain;          // empty: all
    double weight = 1.0;
  };
  std::vector<CensusSource> census;  // empty: every expert counts as equally likely
  std::vector<ExpertRange> pins;     // always on the card
  std::vector<ExpertRange> bans;     // never on the card
  int floor_per_layer = 0;           // experts on the card in every layer, at least

  struct Adapt {
    AdaptMode mode = AdaptMode::kSwaps;
    int swaps_per_round = 2;                     // at most; at least 1 (mode off: none)
    double half_life_rows = 2000;                // rows after which a route counts half
    double margin = 1.3;                         // a newcomer must be this many times as hot as the one it replaces
    bool save_slots = false;                     // write the slots on exit and read them at the next start
    FetchAhead fetch_ahead = FetchAhead::kAuto;  // placement/fetch_ahead.h; auto: where it pays
  } adapt;

  NgramPlace ngram_place = NgramPlace::kAuto;

  struct Crew {
    std::optional<int> workers;  // auto: by calibration
    CrewCores cores = CrewCores::kPerformance;
    bool pin = true;
    bool lock_memory = true;  // pin the expert arena in RAM
  } crew;

  struct Drafting {
    bool mtp = true;
    bool lookup = true;
    std::optional<int> depth;       // 0..8; auto: by the cost of a round
    std::optional<int> vocabulary;  // tokens that the head chooses among; 0: all; auto: by the size of the vocabulary
    VocabularySource vocabulary_from = VocabularySource::kFile;  // whose most frequent tokens these are
    std::filesystem::path vocabulary_text;                       // kText: the file
  } drafting;

  // Switches that change the text. All off by default.
  struct Lossy {
    bool biased_acceptance = false;
    double tail_route_skip = 0.0;  // router weight a token may lose in off-card experts, 0 to 0.5
    bool any() const { return biased_acceptance || tail_route_skip > 0.0; }
  } lossy;
};

inline constexpr int kMostVocabulary = 1 << 24;
// "file" (the tokenizer of the model file), "history" (the user's saved conversations), or else a file with text,
// looked up from `folder`.
void set_vocabulary_source(std::string_view word, const std::filesystem::path& folder, Policy::Drafting& drafting);

// Throws InputError with file, line, column, the nearest known key, and how to fix it.
Policy load_policy(const std::filesystem::path& path);

// What a file alone cannot tell: pins and bans inside a model of `banks` layers with `experts` experts each (with a
// draft block it has a bank more than the trunk has layers), a floor that bans leave room for, slots that suffice for
// pins and floor. Throws InputError.
void check_policy_against(const Policy& policy, int banks, int experts);

}  // namespace tandem
