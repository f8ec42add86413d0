// The card's half of a meeting with the crew (gpu/handoff.h says how the two sides order their memory).
//
// When: once per layer of a pass whose experts are not all on the card. How: passes of few rows publish in the router's
// kernel (gpu/kernels/router.h), others by one block, which copies rows only when a route misses; the wait is one
// thread, since many that read one word of the host's at once keep it from being written; the combination of the
// experts reads the results where they are (gpu/kernels/elementwise.h). Measured: docs/decisions.md, 2026-12-01.
#pragma once

#include "gpu/kernels/device_rows.h"

namespace tandem::gpu {

// Page-locked host memory, at the addresses that both sides use.
struct MeetingMemory {
  std::uint32_t* doorbell = nullptr;
  std::uint32_t* answer = nullptr;
  std::int32_t* miss_count = nullptr;  // [meetings of a pass]
  std::int32_t* miss = nullptr;        // [rows, used] expert ids, -1 where the card has the expert
  std::int8_t* q = nullptr;            // rows as QuantRows of runtime/ops.h
  float* d = nullptr;
  std::int32_t* s = nullptr;
  float* y = nullptr;  // [rows * used, out]
};

// Splits the routes of a pass: hit and miss [count] get the expert ids that are theirs and -1 elsewhere. slots
// [experts]: the address on the card, null where an expert is not there. log [count], host memory: all ids.
void split_routes(const std::int32_t* expert, std::size_t count, const std::uint8_t* const* slots, std::int32_t* hit,
                  std::int32_t* miss, std::int32_t* log, DeviceStream stream);

struct MeetingArgs {
  MeetingMemory memory;
  std::uint32_t index = 0;                      // of the meeting in its pass; its number is *first_number + index
  const std::uint32_t* first_number = nullptr;  // in the card's memory
  const std::int32_t* miss = nullptr;           // [rows, used], in the card's memory
  std::int32_t* misses = nullptr;               // their number, in the card's memory: set by publishing
  std::size_t rows = 0, used = 0;
};
// Quantised rows in the card's memory: q [rows, cols], aligned to 16 bytes, d [rows, cols / 32], s [rows, cols / 16].
struct QuantRowsOnCard {
  const std::int8_t* q = nullptr;
  const float* d = nullptr;
  const std::int32_t* s = nullptr;
  std::size_t cols = 0;
};
// REQUIRES x.cols % 32 == 0.
void publish(const MeetingArgs& meeting, const QuantRowsOnCard& x, DeviceStream stream);
// Ends when the crew has answered; at once without a miss. After publish.
void await(const MeetingArgs& meeting, DeviceStream stream);
// Ends when *word, in page-locked host memory, has reached *number, in the card's.
void await_number(const std::uint32_t* word, const std::uint32_t* number, DeviceStream stream);

}  // namespace tandem::gpu
