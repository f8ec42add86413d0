// Implements: Ops::gdn_scan for one value head, AVX2 and AVX-512, with the same bits.
#pragma once

#include "runtime/ops.h"

namespace tandem {

// `work` holds dim * dim floats, private to the caller. REQUIRES dim % 8 == 0 and dim <= 1024.
using GdnScanHead = void (*)(const GdnScan& scan, std::size_t head, float* work);
void gdn_scan_head_avx2(const GdnScan& scan, std::size_t head, float* work);
void gdn_scan_head_avx512(const GdnScan& scan, std::size_t head, float* work);

}  // namespace tandem
