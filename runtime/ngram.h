// The hashed n-gram table (spec/model.md section 3): exact row numbers, and rows read straight from the mapped file.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "placement/model_shape.h"
#include "runtime/tensor.h"
#include "runtime/tokenizer.h"

namespace tandem {

// Row of every hash head for the last token of `context` (oldest first, the token itself last; fewer tokens than
// ngram_size at the start of a sequence). A missing predecessor, or one equal to the EOS id, makes that place and all
// earlier ones read as EOS; the token itself never cuts. rows has shape.ple_heads() entries.
void ngram_rows(const ModelShape& shape, std::span<const TokenId> context, std::span<std::uint64_t> rows);

class NgramTable {
 public:
  using Advise = int (*)(void* begin, std::size_t bytes, int advice);  // madvise, but for tests

  // in_ram: the whole table is read ahead; else rows come from the disk when they are needed, those of one call at
  // once.
  NgramTable(const ModelShape& shape, const WeightView& table, bool in_ram = false, Advise advise = nullptr);
  // out [tokens, ple_width]: the concatenated table rows of each token; `before` holds the ngram_size - 1 tokens ahead
  // of the first one (fewer at the start of a sequence).
  void gather(std::span<const TokenId> before, std::span<const TokenId> tokens, Rows out) const;

 private:
  void read_ahead(std::span<const std::uint64_t> rows) const;

  const ModelShape& shape_;
  WeightView table_;
  bool in_ram_;
  Advise advise_;
  std::uintptr_t page_;  // bytes
};

}  // namespace tandem
