// The lattices of the IQ block formats (runtime/iq_grids.h) in the two forms that the tile kernels look points up in.
// Codes carry a bias, so that they are unsigned with either sign: u = c + bias.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem {

// What an entry of a lattice is made of: values[digit] for the digits of an entry, `bits` bits each.
struct LatticeDigits {
  int bias;
  int bits;
  std::int8_t codes[8];  // value + bias for each digit
};
inline constexpr LatticeDigits kIq2Digits{43, 2, {43 + 8, 43 + 25, 43 + 43, 0, 0, 0, 0, 0}};
inline constexpr LatticeDigits kIq3XxsDigits{
    62, 3, {62 + 4, 62 + 12, 62 + 20, 62 + 28, 62 + 36, 62 + 44, 62 + 52, 62 + 62}};
inline constexpr LatticeDigits kIq3SDigits{16, 3, {16 + 1, 16 + 3, 16 + 5, 16 + 7, 16 + 9, 16 + 11, 16 + 13, 16 + 15}};
// 8 g + 1 for g = -1, 0, 1; the reading with -1 in its place is two less.
inline constexpr LatticeDigits kIq1Digits{9, 2, {9 - 8 + 1, 9 + 1, 9 + 8 + 1, 0, 0, 0, 0, 0}};

// Entry is eight codes (uint64) or four (uint32), the first in the lowest byte.
template <typename Entry, std::size_t count>
struct LatticeTable {
  static constexpr std::size_t kCount = count;
  // Two bytes of digits per entry, apart: four digits of two bits, columns 0 to 3 and 4 to 7; or two digits of three
  // bits, columns 0 and 2, and 1 and 3.
  alignas(64) std::uint8_t digits[2][count];
  Entry codes[count];
};

struct LatticeTables {
  LatticeTable<std::uint64_t, 256> iq2_xxs;
  LatticeTable<std::uint64_t, 512> iq2_xs;
  LatticeTable<std::uint64_t, 1024> iq2_s;
  LatticeTable<std::uint32_t, 256> iq3_xxs;
  LatticeTable<std::uint32_t, 512> iq3_s;
  LatticeTable<std::uint64_t, 2048> iq1;
};

// Made once, at the first call.
const LatticeTables& lattice_tables();

}  // namespace tandem
