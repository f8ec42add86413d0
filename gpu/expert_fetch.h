// Experts in RAM that the next layer will probably ask for, copied to the card while this layer ends and the next
// mixer runs.
//
// The card names them (gpu/kernels/name_experts.h). The host, while it waits for the card's next meeting and has
// nothing to compute, starts copies on a stream of their own, as long as they should end before the meeting by what
// copies and waits of earlier passes took; behind each copy the stream writes the meeting's number to a word beside the
// place. The next layer's router takes an expert for the card's where that word says so, and else leaves it to the
// crew. So nothing ever waits for a copy, and when one ends changes where an expert is computed, which cannot change a
// result. Most of a copy reads RAM while the crew does not.
//
// Places. Two sets, for meetings with even and odd indices. A copy for meeting m begins after the card has named
// experts for it, which comes after the experts of meeting m - 2, the last to read the set; and a copy that comes too
// late is in the stream before those for m + 2, whose words alone count by then. A pass ends when its copies have.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gpu/cuda_memory.h"
#include "gpu/kernels/name_experts.h"
#include "gpu/pass_graphs.h"
#include "placement/fetch_ahead.h"

namespace tandem {

class ExpertFetch {
 public:
  ExpertFetch(CudaMemory& memory, const PassGraphs& graphs);
  ~ExpertFetch();
  ExpertFetch(const ExpertFetch&) = delete;
  ExpertFetch& operator=(const ExpertFetch&) = delete;

  // Whether the driver can do what it takes.
  bool possible();
  // Room for banks of `experts` of at most `bytes`, and for passes of `meetings`. Grows only; not within a pass.
  // Returns whether it had to: then what was recorded names memory that is not used any more.
  bool reserve(std::size_t bytes, std::size_t experts, std::size_t meetings);
  // Begins to judge anew. REQUIRES reserve() and possible() unless it is off.
  void set_how(FetchAhead how, double cost = kFetchSeconds);
  const FetchJudge& judge() const { return judge_; }

  // For the kernels of a pass; index: of the meeting that experts are named for. first_number: in the card's memory.
  gpu::NameArgs names(std::uint32_t index, std::size_t rows, std::size_t experts,
                      const std::uint32_t* first_number) const;
  gpu::FetchedExperts fetched(std::uint32_t index) const;

  // What a meeting of a pass can be brought: addresses in page-locked RAM by expert, null where an expert is not there.
  struct Bank {
    const std::uint8_t* const* ram = nullptr;  // null: nothing
    std::size_t bytes = 0;
    // Seconds that the host waits for the meeting, in the mean: where it had nothing to compute for the one before,
    // and where it had. 0: not known.
    std::array<double, 2> wait{};
  };
  // A pass, banks by meeting, until end(). No banks: nothing is fetched in it, and the crew is watched all the same.
  void begin(std::uint32_t first_number, std::span<Bank> banks);
  // By the thread that waits for meeting `number`: as it begins, and then again and again. No call of CUDA's is made
  // while the pass is being launched: one could wait for the launch, which may wait for the card, and that for us.
  void wait_begins() { waits_since_ = Clock::now(); }
  void poll(std::uint32_t number);
  // The meeting has come: the experts that its rows ask for, -1 for none, and those of them that the crew computes.
  void met(std::uint32_t number, std::span<const std::int32_t> asked, std::span<const std::int32_t> crew);
  void computed(double seconds) { crew_seconds_ += seconds; }  // by the crew, for the last meeting
  void end();

 private:
  using Clock = std::chrono::steady_clock;
  // What was named for a meeting.
  struct Named {
    std::uint32_t number = 0;  // of the meeting
    std::array<std::int32_t, gpu::kNames> experts{};
    std::size_t next = gpu::kNames;  // to be copied; all before it have been
  };
  Named& named(std::uint32_t number) { return named_[(number - first_) % 2]; }
  void copy(std::uint32_t number, std::size_t place, const std::uint8_t* from);
  std::uint32_t* tags(std::uint32_t index) const;
  std::int32_t* list(std::uint32_t index) const;
  std::uint32_t copies_done() const;
  double copies_end(Clock::time_point now);  // seconds from now on

  CudaMemory& memory_;
  const PassGraphs& graphs_;
  DeviceStream stream_ = nullptr;
  std::size_t bytes_ = 0, experts_ = 0, meetings_ = 0;
  std::shared_ptr<std::uint8_t> card_, host_;  // places, logits, words; what both sides see
  FetchJudge judge_;
  // Of the pass that runs.
  std::span<Bank> banks_;
  std::uint32_t first_ = 0;
  std::uint32_t heard_ = 0, heard_before_ = 0;  // the last meeting that was named for; as the pass began
  std::array<Named, 2> named_;                  // by the meeting's set of places
  std::uint32_t issued_ = 0;                    // copies, ever
  std::uint32_t ended_ = 0;                     // of them, as far as it has been looked at
  Clock::time_point waits_since_, copying_since_;
  double copy_seconds_ = 0;          // of a copy, in the mean; 0: not known
  bool computed_ = false;            // the crew, for the last meeting
  std::vector<std::uint32_t> seen_;  // [experts]: the last meeting that the crew computed it for
  FetchCounts counts_;
  std::uint64_t crew_experts_ = 0;
  double crew_seconds_ = 0;
};

}  // namespace tandem
