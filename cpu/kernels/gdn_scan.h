// Implements: Ops::gdn_scan for one value head, AVX2.
#pragma once

#include "runtime/ops.h"

namespace tandem {

// `work` holds dim * dim floats, private to the caller.
void gdn_scan_head(const GdnScan& scan, std::size_t head, float* work);

}  // namespace tandem
