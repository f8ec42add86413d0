#include "runtime/ngram.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace tandem {

void ngram_rows(const ModelShape& shape, std::span<const TokenId> context, std::span<std::uint64_t> rows) {
  CHECK(!context.empty() && rows.size() == static_cast<std::size_t>(shape.ple_heads()));
  const std::size_t orders = static_cast<std::size_t>(shape.ngram_size);
  const std::size_t per_order = static_cast<std::size_t>(shape.heads_per_ngram);
  bool cut = false;
  std::uint64_t mix = 0;
  for (std::size_t lag = 0; lag < orders; ++lag) {
    TokenId token = shape.ple_eos;
    if (lag < context.size()) token = context[context.size() - 1 - lag];
    if (lag > 0) cut = cut || lag >= context.size() || token == shape.ple_eos;
    const auto id = static_cast<std::uint64_t>(cut ? shape.ple_eos : token);
    mix ^= id * shape.ple_multipliers[lag];
    for (std::size_t g = 0; lag > 0 && g < per_order; ++g) {
      const std::size_t head = (lag - 1) * per_order + g;
      rows[head] = mix % shape.ple_vocab_sizes[head] + shape.ple_offsets[head];
    }
  }
}

NgramTable::NgramTable(const ModelShape& shape, const WeightView& table, bool in_ram, Advise advise)
    : shape_(shape),
      table_(table),
      in_ram_(in_ram),
      advise_(advise != nullptr ? advise : madvise),
      page_(static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE))) {
  // Rows are read at random and are smaller than a page: from disk, the kernel would read ahead 128 KiB for each.
  const auto begin = (reinterpret_cast<std::uintptr_t>(table.data) + page_ - 1) / page_ * page_;
  const auto end = (reinterpret_cast<std::uintptr_t>(table.data) + table.bytes()) / page_ * page_;
  if (end > begin) advise_(reinterpret_cast<void*>(begin), end - begin, in_ram ? MADV_WILLNEED : MADV_RANDOM);
}

// Asks for the pages of all rows before the first is read, so that a disk serves them side by side. Pages that are
// there already are asked for as well: to know that they are (mincore) is a call of the system for each row, too.
void NgramTable::read_ahead(std::span<const std::uint64_t> rows) const {
  for (const std::uint64_t row : rows) {
    const auto begin = reinterpret_cast<std::uintptr_t>(table_.row(row)) / page_ * page_;
    const auto end = reinterpret_cast<std::uintptr_t>(table_.row(row)) + table_.row_size();
    advise_(reinterpret_cast<void*>(begin), end - begin, MADV_WILLNEED);
  }
}

void NgramTable::gather(std::span<const TokenId> before, std::span<const TokenId> tokens, Rows out) const {
  thread_local std::vector<TokenId> context;  // kept: a decode round allocates nothing
  thread_local std::vector<std::uint64_t> rows;
  context.assign(before.begin(), before.end());
  context.insert(context.end(), tokens.begin(), tokens.end());
  const auto heads = static_cast<std::size_t>(shape_.ple_heads());
  rows.resize(heads * tokens.size());
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const std::size_t end = before.size() + t + 1;
    const std::size_t first = end - std::min(end, static_cast<std::size_t>(shape_.ngram_size));
    ngram_rows(shape_, std::span<const TokenId>(context).subspan(first, end - first),
               std::span(rows).subspan(t * heads, heads));
  }
  for (const std::uint64_t row : rows) CHECK(row < table_.rows, "n-gram row {} of {}", row, table_.rows);
  if (!in_ram_) read_ahead(rows);
  for (std::size_t i = 0; i < rows.size(); ++i) table_.read_row(rows[i], out.row(i / heads) + i % heads * table_.cols);
}

}  // namespace tandem
