// Where every byte of a model lives, decided before anything is loaded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "placement/census.h"
#include "placement/footprint.h"
#include "placement/hardware.h"
#include "placement/model_shape.h"
#include "placement/policy.h"

namespace tandem {

enum class Place : std::uint8_t { kCard, kRam, kDisk };

// The place of every routed expert. Bank b is trunk layer b; bank `layers` is the draft block's, if there is one.
struct ExpertPlacement {
  int banks = 0, experts = 0;
  std::vector<Place> place;  // [banks * experts]
  Place at(int bank, int expert) const { return place[static_cast<std::size_t>(bank * experts + expert)]; }
  Place& at(int bank, int expert) { return place[static_cast<std::size_t>(bank * experts + expert)]; }
  std::int64_t count(Place where) const;
};
// Every expert in RAM: the plan of a machine without a card.
ExpertPlacement all_in_ram(int banks, int experts);

// What the planner is told about a model; headers alone give all of it.
struct PlanModel {
  std::string name;
  ModelShape shape;
  WeightBytes weights;
  std::vector<std::int64_t> expert_bytes;  // one packed expert of each bank (its blob); size = number of banks
  // The block types of its matrices with their shares of its bytes; may be empty.
  struct TypeShare {
    std::string type;
    double share = 0;
  };
  std::vector<std::vector<TypeShare>> expert_types;  // [banks]
  // Matrices as packed, and all other weights as they are in the file:
  std::int64_t dense_packed = 0;   // trunk without routed experts and head
  std::int64_t shared_packed = 0;  // of it, the shared experts
  std::int64_t head_packed = 0;    // output matrix (and a draft head of its own)
  std::int64_t draft_packed = 0;   // draft block without its routed experts
  // What a step of the draft head reads of an output matrix: the trunk's, one of its own, or, when it chooses among few
  // tokens, a matrix of their rows, which is no part of head_packed.
  std::int64_t draft_head_packed = 0;
  std::int64_t draft_tokens = 0;     // that the head chooses among; 0: all
  std::int64_t draft_head_rows = 0;  // their rows as they are in the file, which stay in RAM; 0: none
  std::int64_t workspace = 0;        // work memory of the largest pass
  std::int64_t short_workspace = 0;  // of a pass of kShortRows rows or fewer
  std::int64_t long_workspace = 0;   // of the largest pass without its logits
  std::int64_t prefill_rows = 0;     // rows of the largest pass
};

struct PlanInput {
  PlanModel model;
  Policy policy;
  Hardware hardware;
  RouteShares shares;       // from the policy's census files, or uniform
  StateLayout state;        // context and KV format resolved
  bool card = false;        // false: no card; everything in RAM or on disk
  bool plays_card = false;  // the CPU machine plays the card: a part of RAM holds the slots; REQUIRES not card
  double acceptance = 0.70, acceptance_decay = 0.85;  // see placement/cost_model.h
  double row_likeness = 0.03;                         // the same
};

enum class Memory : std::uint8_t { kVram, kRam, kDisk };
struct PlanItem {
  Memory memory;
  std::string what;  // "dense weights", "KV cache", "expert slots", ...
  std::int64_t bytes = 0;
  std::string note;  // "412 of 24,576"
};

// Predicted seconds of one round with w rows. total = dense + experts + head + sampling + draft.
struct RoundTime {
  int rows = 1;
  double dense = 0;    // mixers, hyper-connections, router, caches
  double experts = 0;  // the stage in which card and crew work side by side, with hand-offs and reads from disk
  double head = 0, sampling = 0, draft = 0;
  double total = 0;  // what the user waits
  // Of which, and beside each other:
  double card = 0;     // the card's own work in the layers: dense, shared experts, hits
  double crew = 0;     // the crew's work on experts in RAM
  double wait = 0;     // the card waiting for the crew
  double handoff = 0;  // hand-offs, in `wait` where the crew is the later one
  double disk = 0;     // reading and computing experts on disk
  double fetched = 0;  // experts that are fetched ahead and asked for (placement/fetch_ahead.h); 0: it does not pay
  double tokens = 1;   // expected tokens of the round
  double tokens_per_second() const { return total > 0 ? tokens / total : 0; }
};

struct Plan {
  ExpertPlacement placement;
  // Memory that only prompts need, apart from other work memory, and the caches of one sequence. Where the card is full
  // otherwise, both are lent to experts while text is generated (placement/lending.h): the first ones in them with half
  // of the context in use (bank * experts + expert; in RAM as well), how many of them are in the caches, and the routes
  // that each expert is expected to take of a row.
  std::int64_t lent_bytes = 0;
  CacheAreas lent_cache;
  std::vector<std::int32_t> lent;
  std::int64_t lent_in_cache = 0;
  std::vector<double> expected;
  // While text is generated: lent experts are on the card.
  ExpertPlacement generating() const;
  std::vector<PlanItem> items;
  // Used never exceeds the budget in a plan that fits. The reserve is an item too, beside the budget.
  std::int64_t vram_budget = 0, vram_used = 0, vram_reserve = 0;  // budget after the reserve
  std::int64_t ram_budget = 0, ram_used = 0, ram_reserve = 0;
  int slots = 0;                   // experts on the card
  std::vector<int> slots_by_bank;  // of them in each bank
  double hit_rate = 0;             // expected share of routes on the card, while text is generated
  double hit_rate_bytes = 0;       // the same by bytes
  double misses_per_row = 0;       // expected off-card experts of one row over all banks
  double disk_per_row = 0;         // of them, on disk
  std::vector<RoundTime> rounds;   // rows 1 .. 5 (drafts 0 .. 4), 1 only without a draft block; empty: not known
  // Tokens a second of the same rounds if the machine is as much slower, or faster, as its description may be off
  // (Hardware::spread); empty: it was measured.
  std::vector<double> slowest, fastest;
  std::string unknown;        // what is missing to predict times
  int stream_rows = 0;        // see CostModel::stream_rows
  bool ngram_in_ram = false;  // the n-gram table is read ahead into RAM
  int rows = 1;               // of the round that the objective was taken of
  int workers = 0;            // of the crew
  std::string limit;          // what limits, in words
  // What one more GiB would give; absent where there is no such memory or nothing to gain from it.
  struct Outlook {
    double hit_rate = 0;
    double disk_per_row = 0;
    double tokens_per_second = 0;  // of the best number of drafts; 0: not known
  };
  std::optional<Outlook> more_vram, more_ram;
  // Where caches are lent: at the start of a conversation, and at the end of its context.
  std::optional<Outlook> cache_empty, cache_full;
  std::vector<std::string> warnings;
  std::string shortfall;  // not empty: the plan does not fit; says by how much and what to do
  bool fits() const { return shortfall.empty(); }
  // The round with most tokens a second, or null.
  const RoundTime* best_round() const;
};

// Of a card, left alone where nobody says: what CUDA takes beside our allocations once it runs, for modules, the local
// memory of kernels and recorded passes. 335 to 460 MiB on an H200 with one conversation; the context itself, 527 MiB
// there, is no longer among what is free when a card is asked.
inline constexpr std::int64_t kVramReserve = std::int64_t{512} << 20;

// Pure: the same input gives the same plan. docs/placement.md has the equations.
Plan make_plan(const PlanInput& input);

}  // namespace tandem
