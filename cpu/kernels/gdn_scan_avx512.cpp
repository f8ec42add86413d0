#include "cpu/kernels/gdn_scan_columns.h"

namespace tandem {

namespace {
struct Vector16 {
  using F = __m512;
  static constexpr std::size_t kLanes = 16;
  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
};
}  // namespace

void gdn_scan_head_avx512(const GdnScan& scan, std::size_t head, float* work) {
  std::size_t column = scan_strips<Vector16, 8>(scan, head, work, 0);
  column = scan_strips<Vector16, 4>(scan, head, work, column);
  column = scan_strips<Vector16, 1>(scan, head, work, column);
  scan_strips<Vector8, 1>(scan, head, work, column);  // eight columns that are left over
}

}  // namespace tandem
