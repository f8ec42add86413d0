// The meeting of card and crew within a pass: the card publishes the routes whose expert it does not have, with the
// quantised rows, and goes on; the crew computes them; the card takes the results when it needs them. No call of
// CUDA's is needed in between.
//
// Memory. Everything lies in page-locked host memory that both sides map. Per meeting (one layer of a pass):
//   card: writes miss ids, rows and their number, each thread fences (__threadfence_system), the block meets, one
//         thread stores the meeting's sequence number to `doorbell` (st.release.sys). Where several blocks write (the
//         router's kernel), the others have fenced and added to a counter that the last one has read.
//   host: polls `doorbell` with acquire; the number is at least that of the meeting: all it published is visible. It
//         writes result rows, then stores the number to `answer` with release.
//   card: one thread polls `answer` (ld.acquire.sys) until it has the number; the kernel ends; the next one reads the
//         result rows past all caches (ld.volatile), so nothing stale is seen. A meeting without misses is not waited
//         for.
// The rows are single-buffered: with misses the card does not publish again before it has its answer. The number of
// misses is not: without misses the card runs ahead, so every meeting of a pass has its own word for it.
// Numbers grow by one per meeting through the life of a machine; the first one of a pass is read from the card's
// memory, so that a recorded pass can run again. 32 bits wrap after 2^32 meetings (a week of decoding without a pause);
// comparisons are by difference.
//
// What the host makes late (Ops::await_late) is met in the same way, one way only: the card waits until the word
// `given` has the number of the pass, which the host stores with release after it has written its staging areas.
//
// A side that is stuck. The host gives up when the card has not published for two seconds: it says both numbers and
// aborts. If the host fails (an exception of the crew), it answers all meetings of the pass first, so that the card
// ends.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "gpu/cuda_memory.h"
#include "gpu/expert_fetch.h"
#include "gpu/kernels/meeting.h"
#include "runtime/ops.h"

namespace tandem {

class Handoff {
 public:
  explicit Handoff(CudaMemory& memory);

  // Room for passes of `rows` rows with `used` experts each, and `meetings` of them; rows of `cols` values, results of
  // `out` values. Grows only; not within a pass.
  // Returns whether it had to: then what was launched or recorded before names memory that is not used any more.
  bool reserve(std::size_t rows, std::size_t used, std::size_t cols, std::size_t out, std::size_t meetings);

  // One meeting of a pass, as the host needs it.
  struct Meeting {
    const ExpertBank* bank = nullptr;
    std::size_t rows = 0, used = 0, cols = 0, out = 0;
    std::uint32_t index = 0;              // in the pass
    const std::int32_t* asked = nullptr;  // staging memory: the routes [rows, used]; null: nothing is fetched for it
  };
  // For the kernels that publish it and that wait for it; first_number: in the card's memory. What follows the wait
  // finds the rows of the misses at memory.y, tight, and reads them past all caches.
  gpu::MeetingArgs args(const Meeting& meeting, const std::int32_t* misses, const std::uint32_t* first_number) const;

  // The host's half of one meeting: waits for the doorbell, and fetches experts meanwhile; has the crew compute,
  // answers. Returns seconds of crew work.
  double serve(const Meeting& meeting, std::uint32_t first_number, Ops& crew, ExpertFetch* fetch = nullptr);
  // Late inputs of a pass: launches the wait for the number in the card's memory; and the host's half.
  void await_late(const std::uint32_t* number, DeviceStream stream);
  void give_late(std::uint32_t number);
  // After a failure: lets the card end a pass whose last meeting has this number.
  void answer_all(std::uint32_t number);

 private:
  void wait_for(std::uint32_t number, ExpertFetch* fetch) const;

  CudaMemory& memory_;
  std::size_t rows_ = 0, used_ = 0, cols_ = 0, out_ = 0, meetings_ = 0;
  std::shared_ptr<std::uint8_t> given_;                // the word, alone on its cache line
  Array<std::int32_t> miss_number_;                    // of the open meeting, for the card
  std::vector<std::shared_ptr<std::uint8_t>> owners_;  // recorded passes may still name outgrown memory
  gpu::MeetingMemory area_;
};

}  // namespace tandem
