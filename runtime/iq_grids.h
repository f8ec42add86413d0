// Lattice tables of the IQ block formats (docs/formats.md). An entry holds the int8 values of 8 or 4 neighbouring
// weights in memory order: element 0 is the lowest byte.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem {

// A plain array in a struct: decoders are inlined into kernels that are compiled for several instruction sets, so they
// must not call an out-of-line member function such as std::array::operator[].
template <typename Entry, std::size_t count>
struct IqGrid {
  Entry entry[count];
};

extern const IqGrid<std::uint64_t, 256> kIq2XxsGrid;  // values 8, 25, 43
extern const IqGrid<std::uint64_t, 512> kIq2XsGrid;   // values 8, 25, 43
extern const IqGrid<std::uint64_t, 1024> kIq2SGrid;   // values 8, 25, 43
extern const IqGrid<std::uint32_t, 256> kIq3XxsGrid;  // values 4, 12, 20, 28, 36, 44, 52, 62
extern const IqGrid<std::uint32_t, 512> kIq3SGrid;    // odd values 1..15
extern const IqGrid<std::uint64_t, 2048> kIq1SGrid;   // values -1, 0, 1; used by IQ1_S and IQ1_M

// Non-linear 4-bit codes of IQ4_NL and IQ4_XS.
inline constexpr std::int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};
// FP4 (E2M1) codes times two, so that they are integers; code 8 is -0.
inline constexpr std::int8_t kFp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace tandem
