// Random weights of any type at the speed of memory: blocks with sane scales, made once, whose codes are scrambled
// anew with every copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/quant.h"

namespace tandem::bench {

class BlockPool {
 public:
  // Blocks of a float or block type whose values have mean 0 and root mean square `rms`, the same for one seed.
  // REQUIRES an rms that the type can express (1e-3 to 10 is fine for all).
  BlockPool(DType type, double rms, std::uint64_t seed);

  DType type() const { return type_; }
  // Bytes after which the scales repeat: whole blocks, a multiple of 64.
  std::size_t bytes() const { return blocks_.size(); }

  // Writes `count` bytes. Scales are those of the pool from its start on, codes are random; another seed gives other
  // codes. Any whole number of blocks makes valid rows.
  void fill(std::uint64_t seed, std::uint8_t* out, std::size_t count) const;

 private:
  DType type_;
  std::vector<std::uint8_t> blocks_, mask_;  // mask: the bits that fill() scrambles
};

}  // namespace tandem::bench
