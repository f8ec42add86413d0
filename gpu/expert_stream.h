// Experts that are not on the card, sent over PCIe while a long pass runs: a ring of places on the card, filled in the
// order in which the pass will meet the experts, as far ahead as there are free places.
//
// A stream of copies fills a place when the kernels that used it last have ended (an event of the main stream); the
// main stream waits for the copies of a batch (an event of theirs) before its kernels. The host waits for neither.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpu/cuda_memory.h"
#include "placement/footprint.h"

struct CUevent_st;

namespace tandem {

class ExpertStream {
 public:
  // Each takes a batch of experts, as many as fit, at least one.
  static constexpr std::size_t kPlaces = static_cast<std::size_t>(kStreamPlaces);

  explicit ExpertStream(DeviceStream main);
  ~ExpertStream();
  ExpertStream(const ExpertStream&) = delete;
  ExpertStream& operator=(const ExpertStream&) = delete;

  // stream_ring_bytes of what it has to serve, in `memory`. Grows only; not within a pass. REQUIRES no pass that
  // streams.
  void reserve(MachineMemory& memory, std::size_t bytes);
  std::size_t bytes() const { return memory_area_.bytes(); }

  // An expert in page-locked RAM.
  struct Source {
    int bank;
    std::int32_t expert;
    const std::uint8_t* blob;
    std::size_t bytes;
  };
  // A pass that will meet these experts in this order; the copies begin. Experts of one bank follow each other.
  void begin(std::vector<Source> sources);
  // The experts of the pass that are next, all of one bank, with their addresses on the card: what the main stream is
  // given from here on finds them. Empty: none of this bank is left.
  struct Batch {
    std::span<const Source> sources;
    const std::uint8_t* first = nullptr;  // on the card; one after the other
  };
  Batch next(int bank);
  // What the main stream has been given so far is all that reads the last batch.
  void used();
  // The pass has ended, or failed: nothing is under way afterwards.
  void end();
  bool open() const { return open_; }

 private:
  struct Piece {
    std::size_t first, count;  // of sources_
  };
  void send_ahead();

  DeviceStream main_, copies_ = nullptr;
  CUevent_st* sent_[kPlaces];
  CUevent_st* used_[kPlaces];
  Array<std::uint8_t> memory_area_;
  std::vector<Source> sources_;
  std::vector<Piece> pieces_;
  std::size_t next_sent_ = 0, next_used_ = 0;
  bool open_ = false;
};

}  // namespace tandem
