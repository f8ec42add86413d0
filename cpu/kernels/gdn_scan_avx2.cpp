#include "cpu/kernels/gdn_scan_columns.h"

namespace tandem {

void gdn_scan_head_avx2(const GdnScan& scan, std::size_t head, float* work) {
  // Four vectors: what sixteen registers hold.
  scan_strips<Vector8, 1>(scan, head, work, scan_strips<Vector8, 4>(scan, head, work, 0));
}

}  // namespace tandem
