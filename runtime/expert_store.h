// Where every routed expert of a loaded model is: on the card, in RAM, or in the file; and the moving of experts
// between card and RAM while text is generated. An expert's blob is the same bytes everywhere (runtime/expert_blob.h),
// so where it is cannot change a result.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "placement/adapt.h"
#include "runtime/arena.h"
#include "runtime/expert_blob.h"
#include "runtime/ops.h"
#include "runtime/region.h"
#include "runtime/sequence_state.h"
#include "runtime/tail_skip.h"

namespace tandem {

// Memory and copies of a machine that has a card, or plays one.
class CardMemory {
 public:
  virtual ~CardMemory() = default;
  // Memory of the card, freed with the returned owner.
  virtual std::shared_ptr<std::uint8_t> allocate(std::size_t bytes) = 0;
  struct Copy {
    std::uint8_t* to;
    const std::uint8_t* from;
    std::size_t bytes;
  };
  // Fills a slot, and reads it back; any thread. An upload takes effect before what is asked of this card later, but
  // for others only when wait() has returned.
  virtual void upload(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
  virtual void download(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
  // Makes RAM such that copies need no detour; undone by unpin. Returns what it costs if that is refused, for a
  // warning.
  virtual std::string pin(std::uint8_t* ram, std::size_t bytes) {
    (void)ram, (void)bytes;
    return {};
  }
  virtual void unpin(std::uint8_t* ram) { (void)ram; }
  // Starts copies between card and RAM and returns; the span is copied. REQUIRES that none are running.
  virtual void start(std::span<const Copy> copies) = 0;
  virtual void wait() = 0;
  // Whether the CPU may read the card's memory (a card that is played).
  virtual bool host_readable() const = 0;
  // Exchanges two blobs at once, for moves that found no spare place.
  virtual void exchange(std::uint8_t* card, std::uint8_t* ram, std::size_t bytes) = 0;
};

// What was met, by phase. Everything but times can be predicted by a replay of the routes.
struct ExpertCounts {
  std::uint64_t rounds = 0, rows = 0;
  std::uint64_t routes = 0, hits = 0;      // (row, rank) pairs
  std::uint64_t bytes = 0, hit_bytes = 0;  // of the different experts met in each round
  std::uint64_t misses = 0;                // different off-card experts, summed over rounds
  std::uint64_t swaps = 0, swap_bytes = 0;
  double crew_wait_seconds = 0;  // a played card's side had nothing left to do; 0 on a card, which is not asked
  double copy_wait_seconds = 0;  // rounds that waited for a move to end
  double hit_rate() const { return routes == 0 ? 0.0 : static_cast<double>(hits) / static_cast<double>(routes); }
  double byte_hit_rate() const {
    return bytes == 0 ? 0.0 : static_cast<double>(hit_bytes) / static_cast<double>(bytes);
  }
  double misses_per_round() const {
    return rounds == 0 ? 0.0 : static_cast<double>(misses) / static_cast<double>(rounds);
  }
  ExpertCounts operator-(const ExpertCounts& earlier) const;
  ExpertCounts& operator+=(const ExpertCounts& more);
};
struct ExpertStats {
  ExpertCounts prefill, decode;
};

// The memory of a machine that a store lends (placement/lending.h); null: none of that kind.
struct LentMemory {
  std::shared_ptr<Region> prompt, cache;
  LentMemory() = default;
  LentMemory(MachineMemory& memory, const Lending& lending);
  explicit operator bool() const { return prompt || cache; }
};

class ExpertStore {
 public:
  // Reads and packs every expert that the placement puts on the card or in RAM. Banks without a tile layout stay in the
  // file. `card` may be null when nothing is placed on it. `lent_memory` is memory of the card, as
  // options.lending says.
  ExpertStore(const Model& model, const LoadOptions& options, CardMemory* card, const ParallelFor& parallel,
              LentMemory lent_memory = {});
  ~ExpertStore();  // ends running copies
  // Bytes of the file that such a load reads.
  static std::size_t load_bytes(const Model& model, const LoadOptions& options);

  int banks() const { return static_cast<int>(banks_.size()); }
  bool has_card() const { return adapter_.has_value(); }
  // Null for a bank whose types have no tile layout.
  const ExpertBlobLayout* layout(int bank) const;
  // Null: read the expert from the file.
  const std::uint8_t* blob(int bank, std::int32_t expert) const { return blobs_[at(bank, expert)]; }
  bool on_card(int bank, std::int32_t expert) const { return adapter_ && adapter_->on_card(bank, expert); }

  // Splits routes: hits and misses each get the ids that are theirs and -1 elsewhere. Routes that the tail skip drops
  // become -1 in `routes` too.
  RouteSplit split(int bank, const Routes& routes, const Routes& hits, const Routes& misses) const;
  // Counts the routes [rows, used] of a bank in the open round, as the router chose them, dropped ones included. After
  // every pass, bank by bank.
  void count(int bank, std::span<const std::int32_t> routes, std::size_t rows);
  // A pass of the trunk begins, and with it a round; the draft block's passes up to the next one belong to it too.
  void begin_round(bool decode, std::size_t rows);
  // Ends the open round, if there is one: moves that have been copied take effect, new ones begin.
  void end_round();
  // A pass of more than LoadOptions::lending.rows rows is about to begin: the prompt memory is taken back, and free
  // when this returns. It is lent again when decode rounds follow.
  void reclaim();
  // The memory that is lent. The same for all loads of one model.
  const LentMemory& lent_memory() const { return lent_memory_; }
  std::size_t short_rows() const { return short_rows_; }  // of the longest pass that does not need the prompt memory
  // The cache memory, for a sequence of LoadOptions::lending.cache's context; null where there is none, or while
  // another sequence has it. Takes all of it back; what the sequence does not need is lent from its first pass on.
  std::shared_ptr<CacheLease> lease_cache();
  // Experts in lent memory now.
  std::size_t lent() const { return lent_; }
  // Some are in the prompt memory.
  bool prompt_memory_lent() const { return lent_in_prompt_ > 0; }
  void add_crew_wait(double seconds) { crew_wait_ += seconds; }  // in the round that runs
  TailSkip& tail_skip() { return tail_skip_; }                   // lossy; off at the start

  // Different off-card experts that the passes have met so far, each pass and bank for itself; of the open round too.
  std::uint64_t missed() const { return missed_; }
  // Ends the open round first, so that all of it is counted: to be asked when an answer has ended.
  const ExpertStats& stats() {
    end_round();
    return stats_;
  }
  // Experts in lent memory count as in RAM, where they are as well.
  ExpertPlacement placement() const;
  // Changes whenever an expert has changed its place.
  std::uint64_t moves() const { return moves_; }
  // Whether the experts in RAM can be copied to the card without a detour (CardMemory::pin).
  bool ram_pinned() const { return ram_pinned_; }
  std::size_t ram_bytes() const { return ram_.bytes(); }
  std::size_t card_bytes() const { return card_bytes_; }
  std::size_t slots() const { return slots_; }
  const Arena& ram() const { return ram_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  // Checks every blob against the checksum taken when it was packed. Aborts when one differs.
  void verify() const;

 private:
  struct Bank {
    std::optional<ExpertBlobLayout> layout;
    int size_class = -1;
  };
  struct SizeClass {
    std::size_t bytes = 0;
    std::vector<std::uint8_t*> spare_card, spare_ram;
  };
  struct Move {
    Swap swap;
    std::uint8_t* card_slot;  // where `in` goes; null: the two are exchanged when the move takes effect
    std::uint8_t* ram_cell;   // where `out` goes
    bool lent;                // into lent memory; nobody goes out, or has left it already
  };
  std::size_t at(int bank, std::int32_t expert) const {
    return static_cast<std::size_t>(bank) * static_cast<std::size_t>(experts_) + static_cast<std::size_t>(expert);
  }
  void place(const Model& model, const LoadOptions& options, CardMemory* card);
  void fill(const Model& model, const ParallelFor& parallel, const LoadOptions& options);
  void begin_moves();
  void finish_moves();
  bool in_prompt_memory(const std::uint8_t* blob) const;
  // Those have lost their places in lent memory, or the promise of one.
  void take_back(std::span<const std::int32_t> experts);
  class Lease;
  bool in_card(const std::uint8_t* blob) const;
  void check_blob(int bank, int expert, const std::uint8_t* blob, const char* where) const;

  int experts_ = 0;
  std::vector<Bank> banks_;
  std::vector<SizeClass> classes_;
  std::vector<std::uint8_t*> blobs_;      // [banks * experts]
  std::vector<std::uint8_t*> kept_;       // [banks * experts]: in RAM, of experts in lent memory; else null
  std::vector<std::uint64_t> checksums_;  // XXH3 of each blob as packed
  ExpertPlacement start_;
  std::optional<Adapter> adapter_;
  CardMemory* card_ = nullptr;
  std::shared_ptr<std::uint8_t> card_memory_;
  std::size_t card_bytes_ = 0, slots_ = 0;
  Arena ram_;
  LentMemory lent_memory_;
  std::weak_ptr<CacheLease> lease_;
  std::size_t lent_ = 0, lent_in_prompt_ = 0, short_rows_ = 0;
  bool ram_pinned_ = false;
  std::vector<Move> moving_;
  std::vector<CardMemory::Copy> copies_;
  ExpertStats stats_;
  double crew_wait_ = 0, copy_wait_ = 0;  // of the round that runs
  Adapter::Counts before_;                // at the start of the round
  std::uint64_t missed_ = 0, counted_ = 0, moves_ = 0;
  std::vector<std::uint64_t> seen_;  // [experts]: the count that met it last
  bool open_ = false, decode_ = false;
  std::size_t rows_ = 0;
  mutable TailSkip tail_skip_;  // counts while it splits
  std::vector<std::string> warnings_;
};

}  // namespace tandem
