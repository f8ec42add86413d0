// Implements  Ops::quantize (R2).
// When        before every product with a block format.
// How         eight lanes per block of 32, four values each: the maximum and the two half sums take five shuffles.
// Blocks
//             are independent, so the grid covers rows x blocks without regard to rows.
// Measured    see docs/decisions.md, 2026-11-30; bench_gpu_kernels.
#include "gpu/kernels/quantize.h"

#include "gpu/cuda_check.h"
#include "gpu/kernels/launch.cuh"
#include "gpu/kernels/quantize.cuh"

namespace tandem {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kLanesPerBlock = 8;

__global__ void quantize_kernel(const float* x, std::size_t stride, std::size_t blocks, std::size_t count,
                                std::int8_t* q, float* d, std::int32_t* s, std::int32_t* first_bad) {
  begin_kernel();
  const std::size_t at = (static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x) / kLanesPerBlock;
  const unsigned lane = threadIdx.x % kLanesPerBlock;
  const bool inside = at < count;  // whole groups of lanes: shuffles stay within a group
  const std::size_t row = inside ? at / blocks : 0, block = inside ? at % blocks : 0;
  float4 v = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  if (inside) v = *reinterpret_cast<const float4*>(x + row * stride + 32 * block + 4 * lane);
  float amax = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
  for (unsigned step = 4; step > 0; step /= 2) amax = fmaxf(amax, __shfl_xor_sync(~0U, amax, step));
  const BlockScale scale = block_scale(amax);
  const int q0 = __float2int_rn(v.x * scale.inverse), q1 = __float2int_rn(v.y * scale.inverse);
  const int q2 = __float2int_rn(v.z * scale.inverse), q3 = __float2int_rn(v.w * scale.inverse);
  int sum = q0 + q1 + q2 + q3;
  sum += __shfl_xor_sync(~0U, sum, 1);
  sum += __shfl_xor_sync(~0U, sum, 2);
  if (!inside) return;
  if (!(is_finite(v.x) && is_finite(v.y) && is_finite(v.z) && is_finite(v.w)))
    atomicMin(first_bad, static_cast<std::int32_t>(row));
  reinterpret_cast<char4*>(q)[at * kLanesPerBlock + lane] =
      make_char4(static_cast<signed char>(q0), static_cast<signed char>(q1), static_cast<signed char>(q2),
                 static_cast<signed char>(q3));
  if (lane == 0) d[at] = scale.d;
  if (lane % 4 == 0) s[2 * at + lane / 4] = sum;
}

}  // namespace

void launch_quantize(const float* x, std::size_t stride, std::size_t rows, std::size_t cols, std::int8_t* q, float* d,
                     std::int32_t* s, std::int32_t* first_bad, cudaStream_t stream) {
  const std::size_t blocks = cols / 32, count = rows * blocks;
  if (count == 0) return;
  const auto grid = static_cast<unsigned>((count * kLanesPerBlock + kThreads - 1) / kThreads);
  launch_kernel(quantize_kernel, grid, kThreads, 0, stream, x, stride, blocks, count, q, d, s, first_bad);
}

}  // namespace tandem
