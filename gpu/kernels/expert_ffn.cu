// Implements  Ops::expert_ffn and Ops::ffn for packed experts.
// When        the experts that are on the card; the shared expert.
// How         two launches, gate and up of 32 hidden rows at once, multiplied and quantised on the spot, then down: of
//             expert_product.cuh over the list of jobs, of tile_product.cuh for the shared expert. Gate and up of
//             different types take two plain launches and one that multiplies and quantises.
// Measured    docs/decisions.md, 2026-11-30; bench_gpu_kernels.
#include "gpu/kernels/expert_ffn.h"

#include <algorithm>

#include "gpu/cuda_check.h"
#include "gpu/kernels/launch.cuh"
#include "gpu/kernels/quantize.cuh"
#include "gpu/kernels/tile_gemm.h"
#include "gpu/kernels/tile_kernel_table.h"
#include "placement/check.h"
#include "runtime/exact_math.h"

namespace tandem {
namespace {

constexpr unsigned kThreads = 256;

// h = silu(gate) * up, quantised; a warp per block of 32.
__global__ void silu_quantize_kernel(const float* gate, const float* up, std::size_t count, std::size_t blocks,
                                     std::int8_t* q, float* d, std::int32_t* s, std::int32_t* bad) {
  begin_kernel();
  const std::size_t at = (static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const unsigned lane = threadIdx.x % 32;
  if (at >= count) return;
  const float hidden = silu_c(gate[32 * at + lane]) * up[32 * at + lane];
  quantize_block(hidden, lane, at, q, d, s);
  if (!is_finite(hidden)) bad[at / blocks] = 1;
}

std::size_t align_up(std::size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

template <class Matrix>
void check_shapes(const Matrix& gate, const Matrix& up, const Matrix& down) {
  CHECK(gate.rows % 32 == 0 && up.rows == gate.rows && up.cols == gate.cols && down.cols == gate.rows,
        "gate {} x {}, up {} x {}, down {} x {}", gate.rows, gate.cols, up.rows, up.cols, down.rows, down.cols);
}

// What an FFN is made of, for a kind of product: of an expert that all rows use, or of a list of experts. `prepare`
// yields the product with one matrix (0 gate, 1 up, 2 down) and what it reads, `pair` adds up to the product with gate,
// `launch` launches it.
struct FfnShape {
  DType gate, up;
  std::size_t ff;
};
template <class Prepare, class Pair, class Launch>
void launch_halves(const FfnShape& shape, std::size_t hidden_rows, float* y, std::size_t y_stride,
                   const ExpertScratch& scratch, cudaStream_t stream, const Prepare& prepare, const Pair& pair,
                   const Launch& launch) {
  if (shape.gate == shape.up) {
    auto p = prepare(0);
    pair(p);
    p.fused = true;
    p.out = TileResults{nullptr, 0, scratch.q, scratch.d, scratch.s, scratch.bad};
    launch(0, p);
  } else {
    for (const int matrix : {0, 1}) {
      auto p = prepare(matrix);
      p.out = TileResults{.y = matrix == 0 ? scratch.gate : scratch.up, .y_stride = shape.ff};
      launch(matrix, p);
    }
    const std::size_t blocks = shape.ff / 32, count = blocks * hidden_rows;
    const auto grid = static_cast<unsigned>((32 * count + kThreads - 1) / kThreads);
    launch_kernel(silu_quantize_kernel, grid, kThreads, 0, stream, scratch.gate, scratch.up, count, blocks, scratch.q,
                  scratch.d, scratch.s, scratch.bad);
  }
  auto p = prepare(2);
  p.x = {scratch.q, scratch.d, scratch.s};
  p.out = TileResults{.y = y, .y_stride = y_stride, .bad = scratch.bad};
  launch(2, p);
}

}  // namespace

std::size_t expert_scratch_bytes(std::size_t pairs, std::size_t ff) {
  return align_up(pairs * sizeof(ExpertJob)) + align_up(sizeof(std::int32_t)) + align_up(pairs * sizeof(std::int32_t)) +
         align_up(pairs * ff) + 2 * align_up(pairs * ff / 8) + align_up(pairs * ff / 4) +
         2 * align_up(pairs * ff * sizeof(float));
}

ExpertScratch make_expert_scratch(void* memory, std::size_t pairs, std::size_t ff) {
  auto* at = static_cast<std::uint8_t*>(memory);
  const auto take = [&at](std::size_t bytes) {
    std::uint8_t* const piece = at;
    at += align_up(bytes);
    return static_cast<void*>(piece);
  };
  ExpertScratch scratch;
  scratch.pairs = pairs;
  scratch.jobs = static_cast<ExpertJob*>(take(pairs * sizeof(ExpertJob)));
  scratch.job_count = static_cast<std::int32_t*>(take(sizeof(std::int32_t)));
  scratch.bad = static_cast<std::int32_t*>(take(pairs * sizeof(std::int32_t)));
  scratch.q = static_cast<std::int8_t*>(take(pairs * ff));
  scratch.d = static_cast<float*>(take(pairs * ff / 8));
  scratch.s = static_cast<std::int32_t*>(take(pairs * ff / 4));
  scratch.gate = static_cast<float*>(take(pairs * ff * sizeof(float)));
  scratch.up = static_cast<float*>(take(pairs * ff * sizeof(float)));
  return scratch;
}

void launch_expert_ffn(const ExpertBlobLayout& layout, const ExpertScales& scales, const DeviceRoutes& routes,
                       const DeviceQuant& x, float* y, std::size_t y_stride, const ExpertScratch& scratch,
                       cudaStream_t stream, bool listed) {
  const std::size_t used = routes.used, most = std::min(scratch.pairs, kMaxPairs);
  CHECK(!listed || routes.rows * used <= most, "a list of {} x {} pairs, work memory for {}", routes.rows, used, most);
  CHECK(used > 0 && used <= most, "{} experts per row, work memory for {}", used, most);
  const ExpertBlobLayout::Part* const parts[] = {&layout.gate, &layout.up, &layout.down};
  const float all[] = {scales.gate_all, scales.up_all, scales.down_all};
  const float* const each[] = {scales.gate, scales.up, scales.down};
  check_shapes(layout.gate, layout.up, layout.down);
  const FfnShape shape{layout.gate.type, layout.up.type, layout.gate.rows};
  const std::size_t group = most / used;
  for (std::size_t first = 0; first < routes.rows; first += group) {
    const std::size_t rows = std::min(group, routes.rows - first);
    const DeviceRoutes part{routes.expert + first * used, rows, used, routes.slots};
    const int per_job = pairs_per_job(rows), pairs = static_cast<int>(rows * used);
    if (!listed) launch_expert_jobs(part, per_job, scratch.jobs, scratch.job_count, scratch.bad, stream);
    const auto place = [&](ExpertProduct& p, int index, int matrix) {
      p.offset[index] = parts[matrix]->offset;
      p.scale[index] = all[matrix];
      p.expert_scale[index] = each[matrix];
    };
    const auto prepare = [&](int matrix) {
      ExpertProduct p = expert_product(parts[matrix]->type, parts[matrix]->rows, parts[matrix]->cols);
      place(p, 0, matrix);
      p.x = x.rows_from(first, layout.gate.cols);
      p.by_pair = matrix == 2;
      p.jobs = scratch.jobs;
      p.job_count = scratch.job_count;
      p.list_ready = matrix > 0;
      return p;
    };
    launch_halves(
        shape, static_cast<std::size_t>(pairs), y + first * used * y_stride, y_stride, scratch, stream, prepare,
        [&](ExpertProduct& p) { place(p, 1, 1); },
        [&](int matrix, ExpertProduct& p) { launch_expert_product(parts[matrix]->type, p, pairs, per_job, stream); });
  }
}

void launch_ffn(const DeviceTiles& gate, const DeviceTiles& up, const DeviceTiles& down, const DeviceQuant& x,
                std::size_t rows, float* y, std::size_t y_stride, const ExpertScratch& scratch, cudaStream_t stream,
                TileRoute route) {
  CHECK(scratch.pairs > 0, "no work memory");
  const DeviceTiles* const matrices[] = {&gate, &up, &down};
  check_shapes(gate, up, down);
  const FfnShape shape{gate.type, up.type, gate.rows};
  const bool gemm = route == TileRoute::kGemm || (route == TileRoute::kAuto && rows >= kGemmMinRows);
  for (std::size_t first = 0; first < rows; first += scratch.pairs) {
    const int count = static_cast<int>(std::min(scratch.pairs, rows - first));
    if (gemm && gate.type == up.type) {
      launch_gemm_ffn(gate, up, down, x.rows_from(first, gate.cols), static_cast<std::size_t>(count),
                      y + first * y_stride, y_stride, scratch.q, scratch.d, scratch.s, scratch.bad, stream);
      continue;
    }
    CUDA_CHECK(cudaMemsetAsync(scratch.bad, 0, static_cast<std::size_t>(count) * sizeof(std::int32_t), stream));
    const auto prepare = [&](int matrix) {
      const DeviceTiles& m = *matrices[matrix];
      TileProduct p = tile_product(m.type, m.rows, m.cols);
      p.data[0] = m.data;
      p.scale[0] = m.scale;
      p.x = x.rows_from(first, gate.cols);
      p.width = count;
      return p;
    };
    launch_halves(
        shape, static_cast<std::size_t>(count), y + first * y_stride, y_stride, scratch, stream, prepare,
        [&](TileProduct& p) { p.data[1] = up.data, p.scale[1] = up.scale; },
        [&](int matrix, TileProduct& p) { launch_tile_product(matrices[matrix]->type, p, route, stream); });
  }
}

}  // namespace tandem
