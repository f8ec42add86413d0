// How many of a layer's missed experts the card reads from RAM by itself, over PCIe, while the crew computes the rest
// (zero-copy). Which side computes an expert changes no bit (docs/numerics.md, L2), so the share may follow the clock.
//
// With m different experts missed, of which the card takes z, the layer's experts are there after
//   max(z c, m > z ? meeting + t0 + (m - z) k : 0)
// c: what an expert in RAM adds to the card's kernels, measured at load; t0 + j k: what the crew takes
// for j experts, a line through what it took so far, by width; meeting: what the hand-off costs beside that. The card
// takes the z that makes this least, the smaller one of equals.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "gpu/kernels/route_split.h"
#include "runtime/sequence_state.h"

namespace tandem {

class ZeroCopyShare {
 public:
  // Seconds for the card to read one expert from RAM; 0: it cannot, and takes none.
  void set_card(double seconds_per_expert) { card_ = seconds_per_expert; }
  double card() const { return card_; }
  bool on() const { return card_ > 0; }
  // The crew took `seconds` for `experts` > 0 different experts of one layer of a pass of `rows` rows.
  void crew_took(std::size_t rows, std::size_t experts, double seconds);
  // Of m missed experts, how many the card takes. REQUIRES 1 <= rows <= kMaxWindow. None until the crew has been timed.
  std::size_t takes(std::size_t rows, std::size_t missed) const;
  // The table of this width for the kernel.
  gpu::TakeTable table(std::size_t rows) const;

 private:
  // Sums for the line, of which older terms fade.
  struct Line {
    double n = 0, m = 0, mm = 0, t = 0, mt = 0;
    double at(double experts) const;
  };
  double card_ = 0;
  std::array<Line, kMaxWindow + 1> lines_;
};

}  // namespace tandem
