// Implements  Ops::expert_ffn and Ops::ffn for packed experts.
// When        the experts that are on the card; the shared expert.
// How         two launches of the tile kernels over the list of jobs: gate and up of 32 hidden rows in one block, which
//             multiplies and quantises them on the spot, then down. Gate and up of different types take two plain
//             launches and one that multiplies and quantises. The grid is fixed by the number of rows; blocks beyond
//             the number of jobs end at once.
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
  float amax = fabsf(hidden);
  for (unsigned step = 16; step > 0; step /= 2) amax = fmaxf(amax, __shfl_xor_sync(~0U, amax, step));
  const BlockScale scale = block_scale(amax);
  const int code = __float2int_rn(hidden * scale.inverse);
  int sum = code;
  for (unsigned step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(~0U, sum, step);
  q[32 * at + lane] = static_cast<std::int8_t>(code);
  if (lane == 0) d[at] = scale.d;
  if (lane % 16 == 0) s[2 * at + lane / 16] = sum;
  if (!is_finite(hidden)) bad[at / blocks] = 1;
}

std::size_t align_up(std::size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

// One matrix of the three, where it is.
struct Matrix {
  DType type;
  std::size_t rows, cols;
  const std::uint8_t* data;  // or null and
  std::size_t offset;        // in a blob
  float scale;
  const float* expert_scale;
};
Matrix in_blob(const ExpertBlobLayout::Part& part, float scale, const float* expert_scale) {
  return {part.type, part.rows, part.cols, nullptr, part.offset, scale, expert_scale};
}
Matrix alone(const DeviceTiles& w) {
  return {w.type, w.rows, w.cols, w.data, 0, w.scale, nullptr};
}

// What the two halves of an FFN share.
struct Work {
  DeviceQuant x;
  int width;    // activation rows at most per job
  int pairs;    // hidden rows
  int jobs;     // of the grid
  bool listed;  // jobs on the card; otherwise rows 0 .. width - 1
};

void place(TileProduct& p, int index, const Matrix& m) {
  p.data[index] = m.data;
  p.offset[index] = m.offset;
  p.scale[index] = m.scale;
  p.expert_scale[index] = m.expert_scale;
}

TileProduct product(const Matrix& m, const Work& work, const ExpertScratch& scratch) {
  TileProduct p = tile_product(m.type, m.rows, m.cols);
  place(p, 0, m);
  p.x = work.x;
  p.width = work.width;
  if (work.listed) {
    p.jobs = scratch.jobs;
    p.job_count = scratch.job_count;
  }
  return p;
}

void launch_halves(const Matrix& gate, const Matrix& up, const Matrix& down, const Work& work, float* y,
                   std::size_t y_stride, const ExpertScratch& scratch, cudaStream_t stream, TileRoute route) {
  const std::size_t ff = gate.rows;
  CHECK(ff % 32 == 0 && up.rows == ff && up.cols == gate.cols && down.cols == ff,
        "gate {} x {}, up {} x {}, down {} x {}", gate.rows, gate.cols, up.rows, up.cols, down.rows, down.cols);
  if (gate.type == up.type) {
    TileProduct p = product(gate, work, scratch);
    place(p, 1, up);
    p.fused = true;
    p.hidden_q = scratch.q;
    p.hidden_d = scratch.d;
    p.hidden_s = scratch.s;
    p.bad = scratch.bad;
    launch_tile_product(gate.type, p, work.jobs, route, stream);
  } else {
    for (const bool first : {true, false}) {
      TileProduct p = product(first ? gate : up, work, scratch);
      p.y = first ? scratch.gate : scratch.up;
      p.y_stride = ff;
      launch_tile_product(first ? gate.type : up.type, p, work.jobs, route, stream);
    }
    const std::size_t blocks = ff / 32, count = blocks * static_cast<std::size_t>(work.pairs);
    const auto grid = static_cast<unsigned>((32 * count + kThreads - 1) / kThreads);
    launch_kernel(silu_quantize_kernel, grid, kThreads, 0, stream, scratch.gate, scratch.up, count, blocks, scratch.q,
                  scratch.d, scratch.s, scratch.bad);
  }
  TileProduct p = product(down, work, scratch);
  p.x = {scratch.q, scratch.d, scratch.s};
  p.by_pair = true;
  p.y = y;
  p.y_stride = y_stride;
  p.bad = scratch.bad;
  launch_tile_product(down.type, p, work.jobs, route, stream);
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
                       cudaStream_t stream, TileRoute route, bool listed) {
  const std::size_t used = routes.used, most = std::min(scratch.pairs, kMaxPairs);
  CHECK(!listed || routes.rows * used <= most, "a list of {} x {} pairs, work memory for {}", routes.rows, used, most);
  CHECK(used > 0 && used <= most, "{} experts per row, work memory for {}", used, most);
  const Matrix gate = in_blob(layout.gate, scales.gate_all, scales.gate);
  const Matrix up = in_blob(layout.up, scales.up_all, scales.up);
  const Matrix down = in_blob(layout.down, scales.down_all, scales.down);
  const std::size_t group = most / used;
  for (std::size_t first = 0; first < routes.rows; first += group) {
    const std::size_t rows = std::min(group, routes.rows - first);
    const DeviceRoutes part{routes.expert + first * used, rows, used, routes.slots};
    const int per_job = pairs_per_job(rows);
    if (!listed) launch_expert_jobs(part, per_job, scratch.jobs, scratch.job_count, scratch.bad, stream);
    const int pairs = static_cast<int>(rows * used);
    const Work work{x.rows_from(first, layout.gate.cols), per_job, pairs, pairs, true};
    launch_halves(gate, up, down, work, y + first * used * y_stride, y_stride, scratch, stream, route);
  }
}

void launch_ffn(const DeviceTiles& gate, const DeviceTiles& up, const DeviceTiles& down, const DeviceQuant& x,
                std::size_t rows, float* y, std::size_t y_stride, const ExpertScratch& scratch, cudaStream_t stream,
                TileRoute route) {
  CHECK(scratch.pairs > 0, "no work memory");
  const bool gemm = route == TileRoute::kGemm || (route == TileRoute::kAuto && rows >= kGemmMinRows);
  for (std::size_t first = 0; first < rows; first += scratch.pairs) {
    const int count = static_cast<int>(std::min(scratch.pairs, rows - first));
    if (gemm && gate.type == up.type) {
      launch_gemm_ffn(gate, up, down, x.rows_from(first, gate.cols), static_cast<std::size_t>(count),
                      y + first * y_stride, y_stride, scratch.q, scratch.d, scratch.s, scratch.bad, stream);
      continue;
    }
    CUDA_CHECK(cudaMemsetAsync(scratch.bad, 0, static_cast<std::size_t>(count) * sizeof(std::int32_t), stream));
    const Work work{x.rows_from(first, gate.cols), count, count, 1, false};
    launch_halves(alone(gate), alone(up), alone(down), work, y + first * y_stride, y_stride, scratch, stream, route);
  }
}

}  // namespace tandem
