// The planner's steps (placement/plan.h has what it makes). Bytes and items are planner_memory.cpp, which experts go
// where planner_experts.cpp, what is lent and what it all means planner.cpp.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "placement/cost_model.h"
#include "placement/plan.h"
#include "placement/select_experts.h"
#include "placement/units.h"

namespace tandem {

inline std::size_t sz(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

inline std::string gib(std::int64_t bytes) {
  return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / static_cast<double>(kGiB));
}

class Planner {
 public:
  // lends: prompts have memory of their own, which is lent between them.
  Planner(const PlanInput& input, std::int64_t more_vram, std::int64_t more_ram, bool lends);
  Plan run();

 private:
  // ---- budgets and fixed items

  void set_budgets(std::int64_t more_vram, std::int64_t more_ram);
  void add(Memory memory, std::string what, std::int64_t bytes, std::string note = {});
  void add_fixed_items();
  void short_of(std::string_view memory, std::int64_t missing, std::string_view when);
  // The largest context by halving that frees `missing` bytes; 0: none.
  std::int64_t context_that_fits(std::int64_t missing) const;

  // ---- experts on the card

  std::int64_t bank_bytes(int bank) const { return input_.model.expert_bytes[sz(bank)]; }
  std::int64_t all_expert_bytes() const;
  static bool named(const std::vector<ExpertRange>& ranges, int bank, int expert);
  // A bank's experts in the order in which they go to the card: pins, then hottest first; without the banned ones.
  struct BankOrder {
    std::vector<int> experts;
    int pins = 0;
  };
  BankOrder order_of(int bank) const;
  BankCurve empty_curve(int bank) const;
  // Minus the routes of one row that hit.
  BankCurve hit_curve(int bank) const;
  // Seconds of the bank's expert stages in a round.
  BankCurve time_curve(int bank) const;
  void choose_card();
  static void raise_least(BankCurve& curve, int least);
  std::int64_t bytes_of(const std::vector<int>& counts) const;
  void explain_limit(std::int64_t room_left, int slots);

  // ---- experts off the card, and the n-gram table

  void place_off_card();
  // Moves the experts that are used least per byte from RAM to disk until `bytes` are free. Returns the bytes moved.
  std::int64_t move_to_disk(std::int64_t bytes);

  // ---- lent memory, and the items that tell of experts

  // Only where the card is full: a limit of the policy, or the balance with the crew, holds for lent experts as well.
  void lend();
  // Near the balance of card and crew, more experts on the card make a round longer.
  bool slower_with_cache() const;
  void add_expert_items();

  // ---- what it means

  void summarise();
  struct Share {
    double hit_rate = 0, hit_rate_bytes = 0, misses_per_row = 0;
  };
  Share share_on_card(const ExpertPlacement& placement) const;
  // What the plan comes to with these experts in lent memory.
  Plan::Outlook with_lent(const std::vector<std::int32_t>& lent) const;
  // Tokens a second of each number of drafts, on a machine that is faster by `factor`, with the same placement.
  std::vector<double> speeds(double factor) const;

  const PlanInput& input_;
  bool lends_;
  CostModel costs_;
  int banks_, experts_;
  bool slots_possible_;
  int max_drafts_ = 0;
  Plan plan_;
  std::vector<BankOrder> orders_;
  std::int64_t arena_bytes_ = 0, disk_bytes_ = 0, on_disk_ = 0;
  std::size_t cache_item_ = 0;  // of the plan's items
  bool table_in_ram_ = false, vram_full_ = false;
  std::vector<std::int32_t> lent_empty_, lent_full_;  // with nothing of the context in use, and with all of it
};

}  // namespace tandem
