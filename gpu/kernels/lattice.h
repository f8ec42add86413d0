// The look-up tables of the lattice types (IQ1_*, IQ2_*, IQ3_*) on the card.
#pragma once

#include <cstdint>

#include "runtime/quant.h"

namespace tandem {

// The tables as the tile kernels read them, in the memory of the current device; null for a type without one. An entry
// names its codes by digits, one a nibble, the first code in the lowest: four codes make a selector of a byte
// permutation. IQ2_* and IQ1_*: a word per point of eight columns, digits 0, 1, 2 (values 8, 25, 43; -1, 0, 1); IQ3_*:
// 16 bits per point of four columns, digits 0..7, two points a word. REQUIRES load_lattice_tables() on this device.
const std::uint32_t* device_lattice_table(DType type);

// Makes the tables on the current device, once. Not within a pass: it allocates and waits.
void load_lattice_tables();

}  // namespace tandem
