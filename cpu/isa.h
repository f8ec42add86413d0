// What this processor can do, asked of the processor itself: not every compiler knows a name for all of it.
#pragma once

#include <string>
#include <string_view>

namespace tandem {

// One of avx2, fma, f16c, avxvnni, avx512f, avx512bw, avx512vl, avx512dq, avx512vnni, avx512vbmi, gfni; including that
// the operating system saves the registers. Compiled for any x86-64, so that it may be asked first of all.
bool cpu_has(std::string_view feature);

// What the CPU machine needs (AVX2, FMA, F16C) and this processor lacks, for a message; empty: nothing.
std::string missing_cpu_features();

}  // namespace tandem
