// The look-up tables of the lattice types (IQ1_*, IQ2_*, IQ3_*) on the card.
#pragma once

#include <cstdint>

#include "runtime/quant.h"

namespace tandem {

// The tables as the tile kernels read them, in the memory of the current device; null for a type without one. A word
// per point. IQ3_*: its four codes. IQ2_*, IQ1_*: digits that name its eight codes, one a nibble, the first code in the
// lowest: four of them make a selector of a byte permutation; digits 0, 1, 2 stand for 8, 25, 43 (IQ1_*: -1, 0, 1).
// REQUIRES load_lattice_tables() on this device.
const std::uint32_t* device_lattice_table(DType type);

// Makes the tables on the current device, once. Not within a pass: it allocates and waits.
void load_lattice_tables();

}  // namespace tandem
