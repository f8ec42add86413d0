#include "cpu/float_ops.h"

#include <cblas.h>

#include <algorithm>
#include <vector>

#include "cpu/kernels/elementwise.h"

namespace tandem {
namespace {

// Weights of one strip, 2 MiB of floats. Per core, 512 rows by [4096, 2560] of Q4_0: 58 GFLOP/s with strips of 32 Ki,
// 98 with 256 Ki, 108 with this, 113 with four times as much (AMD EPYC, OpenBLAS 0.3.21 on Haswell kernels,
// 2026-11).
constexpr std::size_t kStripWeights = std::size_t{512} * 1024;

std::size_t strip_rows(std::size_t cols) {
  return std::max<std::size_t>(1, kStripWeights / cols);
}

// y[:, n] = (x W.row(n)) * W.scale for weight rows first <= n < last, on the calling thread.
void multiply(const WeightView& w, std::size_t first, std::size_t last, ConstRows x, Rows y) {
  // The workers are ours; OpenBLAS must not add threads of its own to them. Told by every worker, because its OpenMP
  // variant keeps the number per thread.
  thread_local const bool alone = [] {
    openblas_set_num_threads(1);
    return true;
  }();
  CHECK(alone);
  thread_local std::vector<float> strip;
  const std::size_t most = strip_rows(w.cols);
  for (std::size_t at = first; at < last; at += most) {
    const std::size_t count = std::min(most, last - at);
    const float* weights = reinterpret_cast<const float*>(w.row(at));
    if (w.type != DType::F32) {
      strip.resize(most * w.cols);
      for (std::size_t r = 0; r < count; ++r) dequantize_row(w.type, w.row(at + r), w.cols, strip.data() + r * w.cols);
      weights = strip.data();
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<blasint>(x.rows), static_cast<blasint>(count),
                static_cast<blasint>(w.cols), w.scale, x.data, static_cast<blasint>(x.stride), weights,
                static_cast<blasint>(w.cols), 0.0F, y.data + at, static_cast<blasint>(y.stride));
  }
}

}  // namespace

FloatOps::FloatOps(int workers) : CpuOps(workers) {
  require_concurrent_blas(openblas_get_parallel(), this->workers());
}

std::string FloatOps::describe() const {
  return fmt::format("CPU, float32 products (OpenBLAS, {}), {} worker{}", openblas_get_corename(), workers(),
                     workers() == 1 ? "" : "s");
}

std::unique_ptr<Ops> make_float_ops(int workers) {
  return std::make_unique<FloatOps>(workers);
}

// The sequential variant hands out its packing buffers without a lock: with Debian's 0.3.21, four threads that
// multiplied [7, 96] by [48, 96] got up to 1 % of their products silently wrong, as long as they really ran at once.
// The pthread and OpenMP variants lock.
void require_concurrent_blas(int openblas_parallel, int workers) {
  if (openblas_parallel == OPENBLAS_SEQUENTIAL && workers > 1)
    fail_input(
        "OpenBLAS: expected a variant that {} workers may call at once, found the sequential one. Fix: install "
        "libopenblas0-pthread (update-alternatives chooses between them), or --workers 1",
        workers);
}

LoadedModel FloatOps::load(const Model&, const LoadOptions&) {
  return {};
}

void FloatOps::matmul(const WeightView& w, const Activation& a, Rows y) {
  CHECK(y.cols == w.rows && y.rows == a.x.rows && w.cols == a.x.cols, "{}: [{}, {}] times [{}, {}] into [{}, {}]",
        w.name, w.rows, w.cols, a.x.rows, a.x.cols, y.rows, y.cols);
  // A strip a task, or a fair share where the whole matrix is smaller than a strip for each worker.
  const auto share = (w.rows + static_cast<std::size_t>(workers()) - 1) / static_cast<std::size_t>(workers());
  const std::size_t rows = std::min(strip_rows(w.cols), share);
  parallel_tiles((w.rows + rows - 1) / rows, rows * w.cols,
                 [&](std::size_t i) { multiply(w, i * rows, std::min(w.rows, (i + 1) * rows), a.x, y); });
}

void FloatOps::ffn(const ExpertWeights& weights, const Activation& a, Rows y) {
  const std::size_t ff = weights.gate.rows;
  std::vector<float> gate(y.rows * ff), up(y.rows * ff);
  matmul(weights.gate, a, Rows(gate.data(), y.rows, ff));
  matmul(weights.up, a, Rows(up.data(), y.rows, ff));
  silu_mul(gate.data(), up.data(), gate.size());
  matmul(weights.down, Activation{ConstRows(gate.data(), y.rows, ff), {}}, y);
}

void FloatOps::expert_ffn(const ExpertBank& bank, const Routes& routes, const Activation& a, Rows y) {
  // The (row, rank) pairs of every expert, so that its weights are decoded once for all its rows.
  std::vector<std::vector<std::size_t>> pairs(static_cast<std::size_t>(bank.experts));
  for (std::size_t i = 0; i < routes.rows * routes.used; ++i)
    if (routes.expert[i] >= 0) pairs[static_cast<std::size_t>(routes.expert[i])].push_back(i);
  const std::size_t ff = bank.gate.rows, d = bank.gate.cols;
  parallel_tiles(pairs.size(), 3 * ff * d, [&](std::size_t e) {
    const std::size_t count = pairs[e].size();
    if (count == 0) return;
    const ExpertWeights w = bank.expert(static_cast<int>(e));
    std::vector<float> x(count * d), gate(count * ff), up(count * ff), out(count * y.cols);
    for (std::size_t i = 0; i < count; ++i) std::copy_n(a.x.row(pairs[e][i] / routes.used), d, x.data() + i * d);
    const ConstRows in(x.data(), count, d), hidden(gate.data(), count, ff);
    multiply(w.gate, 0, ff, in, Rows(gate.data(), count, ff));
    multiply(w.up, 0, ff, in, Rows(up.data(), count, ff));
    silu_mul(gate.data(), up.data(), gate.size());
    multiply(w.down, 0, y.cols, hidden, Rows(out.data(), count, y.cols));
    for (std::size_t i = 0; i < count; ++i) std::copy_n(out.data() + i * y.cols, y.cols, y.row(pairs[e][i]));
  });
}

}  // namespace tandem
