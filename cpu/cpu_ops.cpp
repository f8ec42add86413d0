#include "cpu/cpu_ops.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "cpu/kernels/attention.h"
#include "cpu/kernels/dot_block.h"
#include "cpu/kernels/dot_float.h"
#include "cpu/kernels/elementwise.h"
#include "cpu/kernels/gdn_scan.h"
#include "cpu/select.h"
#include "cpu/topology.h"
#include "runtime/exact_math.h"
#include "runtime/timeline.h"

namespace tandem {

namespace {
// Below this much work (weights or values touched, about 0.25 ns each) handing it to another thread costs more than it
// saves; and so much work is one unit of a loop.
constexpr std::size_t kSerialWork = 24 * 1024;
constexpr std::size_t kUnitWork = kSerialWork / 2;

// A tile kernel does about this many weights in the time of one unit of that work.
constexpr std::size_t kTileSpeed = 8;

bool is_block(const WeightView& w) {
  return dtype_info(w.type).kind == DTypeKind::kBlock;
}

CrewOptions crew_options(const CpuOptions& options, std::vector<int> processors) {
  CHECK(options.workers >= 0 && options.suggested >= 0, "{} and {} workers", options.workers, options.suggested);
  const int cores = static_cast<int>(processors.size());
  const int automatic = options.suggested > 0 ? std::min(options.suggested, cores) : cores;
  const int workers = options.workers == 0 ? automatic : options.workers;
  // More workers than cores are left to the system: bound, two of them would take turns on one core.
  if (!options.pin || workers > cores) processors.clear();
  return {workers, std::move(processors)};
}
}  // namespace

CpuOps::CpuOps(const CpuOptions& options) : CpuOps(options, crew_processors(read_topology(), options.cores)) {}

CpuOps::CpuOps(const CpuOptions& options, const std::vector<int>& processors)
    : cores_(static_cast<int>(processors.size())),
      isa_(options.isa),
      crew_(crew_options(options, processors)),
      card_(crew_),
      run_unit_([this](std::size_t unit) { crew_run_.run(unit); }),
      crew_body_(run_unit_) {
  CHECK(tile_isa_supported(isa_), "{}", tile_isa_name(isa_));
}
CpuOps::~CpuOps() = default;

std::string CpuOps::describe() const {
  const bool bound = workers() > 1 && crew_.bound_workers() == workers() - 1;
  return fmt::format("CPU, {}, {} worker{}{}", tile_isa_name(isa_), workers(), workers() == 1 ? "" : "s",
                     bound ? " bound to their cores" : "");
}
std::vector<std::string> CpuOps::warnings() const {
  std::vector<std::string> list;
  if (!crew_.warning().empty()) list.push_back(crew_.warning());
  if (workers() > cores_)
    list.push_back(
        fmt::format("{} CPU workers on {} core{}: they take turns, and every step waits for the last of them. Fix: "
                    "--workers {}, or leave it out",
                    workers(), cores_, cores_ == 1 ? "" : "s", cores_));
  return list;
}
std::unique_ptr<Ops> make_cpu_ops(const CpuOptions& options) {
  return std::make_unique<CpuOps>(options);
}
std::unique_ptr<Ops> make_cpu_ops(int workers, TileIsa isa) {
  return std::make_unique<CpuOps>(workers, isa);
}

void CpuOps::parallel(std::size_t n, std::size_t work, Crew::Body body) {
  if (workers() == 1 || n <= 1 || n * work < kSerialWork) {
    for (std::size_t i = 0; i < n; ++i) body(i);
    return;
  }
  const std::size_t grain = std::max<std::size_t>(1, kUnitWork / std::max<std::size_t>(1, work));
  if (grain == 1) return crew_.loop(n, body);
  crew_.loop((n + grain - 1) / grain, [&](std::size_t i) {
    for (std::size_t k = i * grain; k < std::min(n, (i + 1) * grain); ++k) body(k);
  });
}

// Rows of elements that do not depend on each other: one row is worth cutting too.
void CpuOps::parallel_columns(std::size_t rows, std::size_t cols, std::size_t step, std::size_t cost,
                              FunctionRef<void(std::size_t, std::size_t, std::size_t)> body) {
  const std::size_t worth = std::max<std::size_t>(1, kUnitWork / (cost * step)) * step;
  const std::size_t pieces = (cols + worth - 1) / worth;
  // Pieces of one row differ by a step at most.
  const std::size_t width = ((cols + pieces - 1) / pieces + step - 1) / step * step;
  parallel(rows * pieces, width * cost, [&](std::size_t i) {
    const std::size_t first = i % pieces * width;
    if (first < cols) body(i / pieces, first, std::min(cols, first + width));
  });
}

void CpuOps::parallel_tiles(std::size_t n, std::size_t columns, Crew::Body body) {
  parallel(n, std::max<std::size_t>(1, kTileRows * columns / kTileSpeed), body);
}

// ---- products -------------------------------------------------------------------------------------------------------

std::int64_t CpuOps::quantize(ConstRows x, QuantRows q) {
  CHECK(x.cols % 32 == 0 && q.rows == x.rows && q.cols == x.cols, "{} columns into {} x {}", x.cols, q.rows, q.cols);
  const Span span("quantize");
  std::atomic<std::int64_t> bad{-1};
  parallel_columns(x.rows, x.cols, 32, 2, [&](std::size_t r, std::size_t first, std::size_t last) {
    if (quantize_row(x.row(r) + first, last - first, q.q + r * x.cols + first, q.d + (r * x.cols + first) / 32,
                     q.s + (r * x.cols + first) / 16))
      return;
    // The first such row, whoever finds it.
    const auto row = static_cast<std::int64_t>(r);
    for (std::int64_t seen = bad.load(); seen < 0 || row < seen;)
      if (bad.compare_exchange_weak(seen, row)) break;
  });
  return bad.load();
}

void CpuOps::matmul(const WeightView& w, const Activation& a, Rows y) {
  const Product product{w, y};
  matmuls({&product, 1}, a);
}

// One loop over the tiles of all matrices, the strips of rows of those that have no tiles among them.
void CpuOps::matmuls(std::span<const Product> products, const Activation& a) {
  const Span span("matmul");
  parts_.clear();
  const std::size_t rows = a.x.rows, cols = a.x.cols;
  std::size_t units = 0, work = 0;
  for (const Product& product : products) {
    const WeightView& w = product.w;
    CHECK(product.y.cols == w.rows && product.y.rows == rows && w.cols == cols && (!is_block(w) || a.q.cols == w.cols),
          "{}: [{}, {}] times [{}, {}] into [{}, {}]", w.name, w.rows, w.cols, rows, cols, product.y.rows,
          product.y.cols);
    const PackedMatrix* packed = is_block(w) ? weights_.matrix(w) : nullptr;
    // A strip of weight rows per unit; wide batches spread over more strips than narrow ones.
    const std::size_t strip =
        packed != nullptr ? kTileRows
                          : std::clamp<std::size_t>(kUnitWork / (cols * std::clamp<std::size_t>(rows, 1, 8)), 1, 64);
    units += (w.rows + strip - 1) / strip;
    work += packed != nullptr ? w.rows * cols * std::max<std::size_t>(1, rows / 2) / kTileSpeed : w.rows * cols * rows;
    parts_.push_back({&w, packed, product.y, strip, units});
  }
  parallel(units, std::max<std::size_t>(1, work / std::max<std::size_t>(1, units)), [&](std::size_t unit) {
    std::size_t i = 0;
    while (unit >= parts_[i].end) ++i;
    const MatmulPart& part = parts_[i];
    const std::size_t index = unit - (i == 0 ? 0 : parts_[i - 1].end);
    const std::size_t first = index * part.strip, last = std::min(part.w->rows, first + part.strip);
    if (!is_block(*part.w)) return matmul_float_rows(*part.w, first, last, a.x, part.y);
    thread_local std::vector<TileJob> jobs;
    jobs.resize(rows);
    for (std::size_t r = 0; r < rows; ++r) jobs[r] = {a.q.q_row(r), a.q.d_row(r), a.q.s_row(r), part.y.row(r)};
    if (part.packed == nullptr) return matmul_block_rows(*part.w, first, last, jobs.data(), rows);
    for (TileJob& job : jobs) job.y += first;
    tile_function(isa_, part.w->type)(part.packed->tile(index), cols, jobs.data(), rows, last - first,
                                      part.packed->scale);
  });
}

// ---- norms ----------------------------------------------------------------------------------------------------------

namespace {
float inverse_rms(const float* x, std::size_t n, float eps) {
  return 1.0F / std::sqrt(dot_float(x, x, n) / static_cast<float>(n) + eps);
}
}  // namespace

void CpuOps::rms_norm(ConstRows x, std::size_t groups, const float* gamma, float eps, Rows y) {
  const Span span("rms_norm");
  const std::size_t n = x.cols / groups;
  CHECK(n * groups == x.cols && y.cols == x.cols && y.rows == x.rows);
  parallel(x.rows, 2 * x.cols, [&](std::size_t r) {
    for (std::size_t g = 0; g < x.cols; g += n)
      scale_by(x.row(r) + g, inverse_rms(x.row(r) + g, n, eps), gamma + g, n, y.row(r) + g);
  });
}

void CpuOps::l2_norm(ConstRows x, std::size_t dim, float eps, float scale, Rows y) {
  const Span span("l2_norm");
  CHECK(x.cols % dim == 0 && y.cols == x.cols && y.rows == x.rows);
  parallel_columns(x.rows, x.cols, dim, 2, [&](std::size_t r, std::size_t first, std::size_t last) {
    for (std::size_t h = first; h < last; h += dim) {
      const float* in = x.row(r) + h;
      scale_by(in, 1.0F / std::sqrt(dot_float(in, in, dim) + eps), scale, dim, y.row(r) + h);
    }
  });
}

void CpuOps::norm_rope(ConstRows x, std::size_t heads, std::size_t dim, std::size_t head_stride, const float* gamma,
                       float eps, const RopeView& rope, Rows y) {
  const Span span("norm_rope");
  const std::size_t half = rope.cos.cols;
  CHECK(y.cols == heads * dim && 2 * half <= dim && x.cols >= (heads - 1) * head_stride + dim);
  parallel_columns(x.rows, heads, 1, 2 * dim, [&](std::size_t r, std::size_t first, std::size_t last) {
    const float* c = rope.cos.row(r);
    const float* s = rope.sin.row(r);
    for (std::size_t h = first; h < last; ++h) {
      const float* in = x.row(r) + h * head_stride;
      float* out = y.row(r) + h * dim;
      scale_by(in, inverse_rms(in, dim, eps), gamma, dim, out);
      for (std::size_t i = 0; i < half; ++i) {
        const float a = out[i], b = out[i + half];
        out[i] = std::fma(-b, s[i], a * c[i]);
        out[i + half] = std::fma(a, s[i], b * c[i]);
      }
    }
  });
}

// ---- hyper-connections
// ------------------------------------------------------------------------------------------------

void CpuOps::hc_low(Rows lo, int streams) {
  const Span span("hc_low");
  parallel_columns(lo.rows, lo.cols, 8, 8, [&](std::size_t r, std::size_t first, std::size_t last) {
    silu_scaled(lo.row(r) + first, last - first, static_cast<float>(streams));
  });
}

void CpuOps::hc_mix(ConstRows normed, ConstRows gate, int streams, Rows mixed) {
  const Span span("hc_mix");
  const auto count = static_cast<std::size_t>(streams);
  CHECK(normed.cols == mixed.cols * count && gate.cols == normed.cols);
  parallel_columns(mixed.rows, mixed.cols, 8, 8 * count, [&](std::size_t r, std::size_t first, std::size_t last) {
    hc_mix_row(normed.row(r) + first, gate.row(r) + first, count, mixed.cols, last - first, mixed.row(r) + first);
  });
}

void CpuOps::hc_write(Rows x, ConstRows y, ConstRows inject, int streams) {
  const Span span("hc_write");
  const std::size_t d = y.cols, count = static_cast<std::size_t>(streams);
  CHECK(x.cols == d * count && inject.cols == count);
  parallel_columns(x.rows, d, 8, count, [&](std::size_t r, std::size_t first, std::size_t last) {
    for (std::size_t s = 0; s < count; ++s)
      axpy(2.0F * sigmoid_c(inject.row(r)[s] / static_cast<float>(streams)), y.row(r) + first, last - first,
           x.row(r) + s * d + first);
  });
}

// ---- convolution, GDN
// -------------------------------------------------------------------------------------------------

void CpuOps::causal_conv(ConstRows history, ConstRows x, ConstRows weights, std::size_t dilation, Rows y) {
  const Span span("causal_conv");
  CHECK(history.rows == (weights.rows - 1) * dilation && x.cols == weights.cols && y.cols == x.cols);
  const auto input = [&](std::size_t t) { return t < history.rows ? history.row(t) : x.row(t - history.rows); };
  parallel_columns(x.rows, x.cols, 8, 12, [&](std::size_t t, std::size_t first, std::size_t last) {
    float* out = y.row(t) + first;
    const std::size_t n = last - first;
    std::fill_n(out, n, 0.0F);
    for (std::size_t k = 0; k < weights.rows; ++k)
      conv_tap(weights.row(k) + first, input(t + k * dilation) + first, n, out);
    silu_inplace(out, n);
  });
}

void CpuOps::gdn_scan(const GdnScan& scan) {
  const Span span("gdn_scan");
  if (scan.dim % 8 != 0 || scan.dim > 1024) return ReferenceOps::gdn_scan(scan);
  const GdnScanHead head = isa_ == TileIsa::kAvx512Vnni ? gdn_scan_head_avx512 : gdn_scan_head_avx2;
  parallel(scan.value_heads, 4 * scan.dim * scan.dim * (scan.q.rows + scan.replay_k.rows), [&](std::size_t h) {
    thread_local std::vector<float> work;
    work.resize(scan.dim * scan.dim);
    head(scan, h, work.data());
  });
}

void CpuOps::gdn_output(ConstRows o, ConstRows z, const float* norm, std::size_t dim, float eps, Rows r) {
  const Span span("gdn_output");
  parallel_columns(o.rows, o.cols, dim, 8, [&](std::size_t t, std::size_t first, std::size_t last) {
    for (std::size_t h = first; h < last; h += dim)
      gate_norm(o.row(t) + h, inverse_rms(o.row(t) + h, dim, eps), norm, z.row(t) + h, dim, r.row(t) + h);
  });
}

// ---- attention
// --------------------------------------------------------------------------------------------------------

void CpuOps::kv_store(const KvView& kv, std::size_t position, ConstRows k, ConstRows v) {
  const Span span("kv_store");
  if (kv.type == KvType::kF32) return ReferenceOps::kv_store(kv, position, k, v);
  CHECK(position + k.rows <= kv.capacity, "{} + {} rows in {} positions", position, k.rows, kv.capacity);
  for (std::size_t r = 0; r < k.rows; ++r) {
    store_half_row(k.row(r), kv.width(), static_cast<std::uint16_t*>(kv.k) + (position + r) * kv.width());
    store_half_row(v.row(r), kv.width(), static_cast<std::uint16_t*>(kv.v) + (position + r) * kv.width());
  }
}

void CpuOps::select_positions(ConstRows q, std::size_t heads, ConstRows pooled, std::size_t position, std::size_t ratio,
                              std::size_t blocks, AttendLists lists) {
  const Span span("select_positions");
  const std::size_t most = (position + q.rows) / ratio;
  parallel(q.rows, most > blocks ? most * q.cols : lists.stride / 8, [&](std::size_t r) {
    thread_local std::vector<float> scores;
    const std::size_t visible = position + r + 1, complete = visible / ratio;
    if (complete > blocks) {
      scores.resize(complete);
      block_scores(q.row(r), heads, pooled.slice(0, complete), scores.data());
      for (std::size_t b = 0; b < complete; ++b)
        CHECK(std::isfinite(scores[b]), "score of block {} at position {} is {}", b, position + r, scores[b]);
    }
    lists.count[r] =
        write_positions(scores.data(), complete, visible, ratio, blocks, lists.positions + r * lists.stride);
  });
}

void CpuOps::attention(ConstRows q, const KvView& kv, const AttendLists& lists, float scale, ConstRows gate,
                       std::size_t gate_stride, Rows out) {
  const Span span("attention_rows");
  if (kv.head_dim % 8 != 0) return ReferenceOps::attention(q, kv, lists, scale, gate, gate_stride, out);
  const std::size_t per_kv = q.cols / kv.head_dim / kv.kv_heads, width = per_kv * kv.head_dim;
  const auto longest = static_cast<std::size_t>(*std::max_element(lists.count, lists.count + q.rows));
  parallel(q.rows * kv.kv_heads, longest * width, [&](std::size_t i) {
    const std::size_t r = i / kv.kv_heads, head = i % kv.kv_heads;
    attention_row(q.row(r) + head * width, kv, head, per_kv, lists.positions + r * lists.stride,
                  static_cast<std::size_t>(lists.count[r]), scale, gate.row(r) + head * per_kv * gate_stride,
                  gate_stride, out.row(r) + head * width);
  });
}

// ---- experts: cpu_experts.cpp; their combination
// ---------------------------------------------------------------------

void CpuOps::combine(const Routes& routes, ConstRows y, ConstRows shared_logit, ConstRows shared, Rows out) {
  const Span span("combine");
  parallel_columns(out.rows, out.cols, 8, routes.used, [&](std::size_t r, std::size_t first, std::size_t last) {
    float* sum = out.row(r) + first;
    const std::size_t n = last - first;
    std::fill_n(sum, n, 0.0F);
    for (std::size_t k = r * routes.used; k < (r + 1) * routes.used; ++k)
      if (routes.expert[k] >= 0) axpy(routes.weight[k], y.row(k) + first, n, sum);
    axpy(sigmoid_c(shared_logit.row(r)[0]), shared.row(r) + first, n, sum);
  });
}

// ---- n-gram embedding and sums
// ------------------------------------------------------------------------------------------

void CpuOps::ple_gate(ConstRows key, ConstRows query, ConstRows value, int streams, Rows gv) {
  const std::size_t d = value.cols;
  const float root = std::sqrt(static_cast<float>(d));
  parallel(value.rows, 3 * key.cols, [&](std::size_t r) {
    for (std::size_t c = 0; c < static_cast<std::size_t>(streams); ++c) {
      const float s = dot_float(key.row(r) + c * d, query.row(r) + c * d, d) / root;
      const float magnitude = std::sqrt(std::max(std::fabs(s), 1e-6F));
      scale_to(sigmoid_c(s > 0.0F ? magnitude : s < 0.0F ? -magnitude : 0.0F), value.row(r), d, gv.row(r) + c * d);
    }
  });
}

void CpuOps::add2(Rows x, ConstRows a, ConstRows b) {
  parallel(x.rows, 2 * x.cols, [&](std::size_t r) { add_two(x.row(r), a.row(r), b.row(r), x.cols); });
}

void CpuOps::softmax_sum(ConstRows logits, float temperature, Chosen* chosen) {
  parallel(logits.rows, 4 * logits.cols, [&](std::size_t r) {
    chosen[r].top = largest(logits.row(r), logits.cols) + 0.0F;  // never -0
    chosen[r].sum = exp_sum(logits.row(r), logits.cols, chosen[r].top, softmax_scale(temperature));
  });
}

}  // namespace tandem
