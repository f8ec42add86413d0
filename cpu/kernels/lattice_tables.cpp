// Implements  the look-up tables of cpu/kernels/tile_lattice.h.
// When        first use of a lattice type.
// How         every value of a grid is found among the biased codes of its lattice; its place there is the digit.
// Measured    18 KB of codes at most for one type: they stay in the first-level cache beside the activations.
#include "cpu/kernels/lattice_tables.h"

#include "placement/check.h"
#include "runtime/iq_grids.h"

namespace tandem {

namespace {

// `unit` and `offset` read a grid value as the code unit * value + offset.
template <typename Entry, std::size_t count>
void fill(const IqGrid<Entry, count>& grid, const LatticeDigits& lattice, int unit, int offset,
          LatticeTable<Entry, count>& table) {
  const int digit_count = lattice.bits == 2 ? 3 : 8;
  for (std::size_t e = 0; e < count; ++e) {
    std::int8_t values[sizeof(Entry)], codes[sizeof(Entry)];
    __builtin_memcpy(values, &grid.entry[e], sizeof(Entry));
    table.digits[0][e] = table.digits[1][e] = 0;
    for (std::size_t j = 0; j < sizeof(Entry); ++j) {
      const int code = unit * values[j] + offset + lattice.bias;
      int digit = 0;
      while (digit < digit_count && lattice.codes[digit] != code) ++digit;
      CHECK(digit < digit_count, "entry {} of a lattice has the value {}", e, values[j]);
      codes[j] = static_cast<std::int8_t>(code);
      const std::size_t plane = lattice.bits == 2 ? j / 4 : j % 2, place = lattice.bits == 2 ? j % 4 : j / 2;
      std::uint8_t& byte = table.digits[plane][e];
      byte = static_cast<std::uint8_t>(byte | digit << (static_cast<std::size_t>(lattice.bits) * place));
    }
    __builtin_memcpy(&table.codes[e], codes, sizeof(Entry));
  }
}

LatticeTables make_tables() {
  LatticeTables tables;
  fill(kIq2XxsGrid, kIq2Digits, 1, 0, tables.iq2_xxs);
  fill(kIq2XsGrid, kIq2Digits, 1, 0, tables.iq2_xs);
  fill(kIq2SGrid, kIq2Digits, 1, 0, tables.iq2_s);
  fill(kIq3XxsGrid, kIq3XxsDigits, 1, 0, tables.iq3_xxs);
  fill(kIq3SGrid, kIq3SDigits, 1, 0, tables.iq3_s);
  fill(kIq1SGrid, kIq1Digits, 8, 1, tables.iq1);
  return tables;
}

}  // namespace

const LatticeTables& lattice_tables() {
  static const LatticeTables tables = make_tables();
  return tables;
}

}  // namespace tandem
