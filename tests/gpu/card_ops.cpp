#include "tests/gpu/card_ops.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "gpu/kernels/attention.h"
#include "gpu/kernels/elementwise.h"
#include "gpu/kernels/float_matmul.h"
#include "gpu/kernels/gdn_scan.h"
#include "gpu/kernels/history.h"
#include "gpu/kernels/ngram.h"
#include "gpu/kernels/norms.h"
#include "gpu/kernels/route.h"
#include "gpu/kernels/sample.h"
#include "gpu/kernels/select.h"
#include "tests/gpu/card_call.h"

namespace tandem::testing {

namespace {

constexpr unsigned kWatchdogSeconds = 120;

[[noreturn]] void not_here(const char* what) {
  CHECK(false, "{} is not a float kernel", what);
  std::abort();
}

class CardOps final : public Ops {
 public:
  CardOps() { alarm(kWatchdogSeconds); }
  ~CardOps() override { alarm(0); }
  std::string describe() const override { return "float kernels"; }

  void matmul(const WeightView& w, const Activation& a, Rows y) override {
    CardCall call;
    const gpu::FloatType type = w.type == DType::F32   ? gpu::FloatType::kF32
                                : w.type == DType::F16 ? gpu::FloatType::kF16
                                                       : gpu::FloatType::kBf16;
    CHECK(dtype_info(w.type).kind == DTypeKind::kFloat, "{}", dtype_name(w.type));
    // The card's copy of a matrix is aligned to its elements, as a file's is; the tests' are not.
    const std::size_t size = w.type == DType::F32 ? 4 : 2, n = w.rows * w.cols;
    const auto x = call.in(a.x);
    const auto out = call.out(y);
    if (size == 4) {
      std::vector<float> copy(n);
      std::memcpy(copy.data(), w.data, n * size);
      gpu::float_matmul(type, call.values(copy.data(), n), w.rows, w.scale, x, out, nullptr);
      call.finish();
    } else {
      std::vector<std::uint16_t> copy(n);
      std::memcpy(copy.data(), w.data, n * size);
      gpu::float_matmul(type, call.values(copy.data(), n), w.rows, w.scale, x, out, nullptr);
      call.finish();
    }
  }

  void rms_norm(ConstRows x, std::size_t groups, const float* gamma, float eps, Rows y) override {
    CardCall call;
    gpu::rms_norm(call.in(x), groups, call.values(gamma, x.cols), eps, call.out(y), nullptr);
  }
  void l2_norm(ConstRows x, std::size_t dim, float eps, float scale, Rows y) override {
    CardCall call;
    gpu::l2_norm(call.in(x), dim, eps, scale, call.out(y), nullptr);
  }
  void norm_rope(ConstRows x, std::size_t heads, std::size_t dim, std::size_t head_stride, const float* gamma,
                 float eps, const RopeView& rope, Rows y) override {
    // The kernel's tables are tight and start at any position: here row 2 of theirs is row 0 of ours.
    const std::size_t half = rope.cos.cols, first = 2;
    std::vector<float> cos((rope.cos.rows + first) * half, NAN), sin = cos;
    for (std::size_t r = 0; r < rope.cos.rows; ++r) {
      std::copy_n(rope.cos.row(r), half, cos.data() + (r + first) * half);
      std::copy_n(rope.sin.row(r), half, sin.data() + (r + first) * half);
    }
    CardCall call;
    const gpu::DeviceRope tables{call.values(cos.data(), cos.size()), call.values(sin.data(), sin.size()), half,
                                 call.count(first)};
    gpu::norm_rope(call.in(x), heads, dim, head_stride, call.values(gamma, dim), eps, tables, call.out(y), nullptr);
    call.finish();
  }
  void hc_low(Rows lo, int streams) override {
    CardCall call;
    gpu::hc_low(call.out(lo), streams, nullptr);
  }
  void hc_mix(ConstRows normed, ConstRows gate, int streams, Rows mixed) override {
    CardCall call;
    gpu::hc_mix(call.in(normed), call.in(gate), streams, call.out(mixed), nullptr);
  }
  void hc_write(Rows x, ConstRows y, ConstRows inject, int streams) override {
    CardCall call;
    gpu::hc_write(call.out(x), call.in(y), call.in(inject), streams, nullptr);
  }
  void causal_conv(ConstRows history, ConstRows x, ConstRows weights, std::size_t dilation, Rows y) override {
    CardCall call;
    gpu::causal_conv(call.in(history), call.in(x), call.in(weights), dilation, call.out(y), nullptr, nullptr);
  }
  void gdn_gates(Rows alpha, Rows beta, const float* dt_bias, const float* a) override {
    CardCall call;
    gpu::gdn_gates(call.out(alpha), call.out(beta), call.values(dt_bias, alpha.cols), call.values(a, alpha.cols),
                   nullptr);
  }
  // The rows to replay stand in a log of 16 rows, as they do in a sequence; how many of them is read on the card.
  void gdn_scan(const GdnScan& s) override {
    const std::size_t replay = s.replay_k.rows;
    std::vector<std::vector<float>> logs;
    const auto log = [&](ConstRows rows, std::size_t cols) {
      std::vector<float>& copy = logs.emplace_back(16 * cols, NAN);
      for (std::size_t r = 0; r < rows.rows; ++r) std::copy_n(rows.row(r), cols, copy.data() + r * cols);
      return ConstRows(copy.data(), 16, cols);
    };
    logs.reserve(3);
    CardCall call;
    gpu::DeviceGdnScan scan;
    scan.key_heads = s.key_heads, scan.value_heads = s.value_heads, scan.dim = s.dim;
    scan.state = call.changed(s.state, s.value_heads * s.dim * s.dim);
    scan.replay_k = call.in(log(s.replay_k, s.key_heads * s.dim));
    scan.replay_u = call.in(log(s.replay_u, s.value_heads * s.dim));
    scan.replay_decay = call.in(log(s.replay_decay, s.value_heads));
    scan.replay_count = call.count(replay);
    scan.q = call.in(s.q), scan.k = call.in(s.k), scan.v = call.in(s.v);
    scan.decay = call.in(s.decay), scan.beta = call.in(s.beta);
    scan.out = call.out(s.out);
    scan.log_u = call.out(s.log_u);
    gpu::gdn_scan(scan, nullptr);
    call.finish();
  }
  void gdn_output(ConstRows o, ConstRows z, const float* norm, std::size_t dim, float eps, Rows r) override {
    CardCall call;
    gpu::gdn_output(call.in(o), call.in(z), call.values(norm, dim), dim, eps, call.out(r), nullptr);
  }

  void kv_store(const KvView& kv, std::size_t position, ConstRows k, ConstRows v) override {
    CardCall call;
    gpu::kv_store(upload(call, kv), call.count(position), call.in(k), call.in(v), nullptr);
  }
  void mean_pool(ConstRows x, std::size_t ratio, Rows y) override {
    CardCall call;
    gpu::mean_pool(call.in(x), ratio, call.out(y), nullptr);
  }
  void select_positions(ConstRows q, std::size_t heads, ConstRows pooled, std::size_t position, std::size_t ratio,
                        std::size_t blocks, AttendLists lists) override {
    constexpr std::int32_t kNone = std::numeric_limits<std::int32_t>::max();
    std::int32_t bad = kNone;
    std::vector<float> scores(q.rows * pooled.rows, NAN);
    {
      CardCall call;
      gpu::select_positions(call.in(q), heads, call.in(pooled), call.count(position), ratio, blocks,
                            upload(call, lists), call.changed(scores.data(), scores.size()), call.changed(&bad, 1),
                            nullptr);
    }
    if (bad == kNone) return;
    const auto row = static_cast<std::size_t>(bad);
    const float* at = scores.data() + row * pooled.rows;
    const float* found = std::find_if_not(at, at + pooled.rows, [](float s) { return std::isfinite(s); });
    CHECK(false, "score of block {} at position {}", found - at, position + row);
  }
  void index_blocks(const IndexBlocks& b) override {
    constexpr std::size_t kWindow = 16;
    const std::size_t dim = b.keys.cols, last = (b.position + b.keys.rows) / b.ratio;
    CardCall call;
    gpu::DeviceIndexBlocks card;
    card.raw = {const_cast<float*>(call.values(b.raw.rows, b.raw.depth * dim)),
                const_cast<float*>(call.values(b.raw.window, kWindow * dim)), b.raw.depth, dim};
    card.pending = call.count(b.pending);
    card.keys = call.in(b.keys);
    card.position = call.count(b.position);
    card.ratio = b.ratio;
    card.gamma = call.values(b.gamma, dim), card.eps = b.eps;
    card.cos = call.in(b.rope.cos), card.sin = call.in(b.rope.sin);
    card.pooled = call.out(Rows(b.pooled, last, dim));
    gpu::index_blocks(card, nullptr);
    call.finish();
  }
  void all_positions(std::size_t position, AttendLists lists) override {
    CardCall call;
    gpu::all_positions(call.count(position), position + lists.rows, upload(call, lists), nullptr);
  }
  void attention(ConstRows q, const KvView& kv, const AttendLists& lists, float scale, ConstRows gate,
                 std::size_t gate_stride, Rows out) override {
    CardCall call;
    std::size_t longest = 0;
    for (std::size_t r = 0; r < lists.rows; ++r) longest = std::max(longest, static_cast<std::size_t>(lists.count[r]));
    longest = std::min(longest + 70, lists.stride);  // a grid with idle blocks, where there is room
    void* work = call.work(gpu::attention_bytes(q.rows, q.cols / kv.head_dim, kv.head_dim, longest));
    gpu::attention(call.in(q), upload(call, kv), upload(call, lists), longest, scale, call.in(gate), gate_stride,
                   call.out(out), work, nullptr);
  }

  std::int64_t route(ConstRows logits, Routes routes) override {
    std::int32_t bad = std::numeric_limits<std::int32_t>::max();
    const std::size_t n = routes.rows * routes.used;
    {
      CardCall call;
      gpu::route(call.in(logits), routes.used, call.changed(routes.expert, n), call.changed(routes.weight, n),
                 call.changed(&bad, 1), nullptr);
    }
    return bad == std::numeric_limits<std::int32_t>::max() ? -1 : bad;
  }
  void combine(const Routes& routes, ConstRows y, ConstRows shared_logit, ConstRows shared, Rows out) override {
    CardCall call;
    const std::size_t n = routes.rows * routes.used;
    gpu::combine(call.values(routes.expert, n), call.values(routes.weight, n), routes.used, call.in(y),
                 call.in(shared_logit), call.in(shared), call.out(out), nullptr);
  }
  void ple_gate(ConstRows key, ConstRows query, ConstRows value, int streams, Rows gv) override {
    CardCall call;
    gpu::ple_gate(call.in(key), call.in(query), call.in(value), streams, call.out(gv), nullptr);
  }
  void add2(Rows x, ConstRows a, ConstRows b) override {
    CardCall call;
    gpu::add2(call.out(x), call.in(a), call.in(b), nullptr);
  }
  void softmax_sum(ConstRows logits, float temperature, Chosen* chosen) override {
    CardCall call;
    const gpu::SampleNumbers numbers{0, temperature, 0};
    std::uint32_t arrived = 0;
    gpu::softmax_sum(call.in(logits), call.values(&numbers, 1), call.changed(chosen, logits.rows),
                     call.changed(&arrived, 1), call.work(gpu::sample_bytes(logits.rows)), nullptr);
    call.finish();
    EXPECT_EQ(arrived, 0U);
  }
  void tile_streams(ConstRows a, int streams, Rows x) override {
    CardCall call;
    gpu::tile_streams(call.in(a), streams, call.out(x), nullptr);
  }
  void add_streams(Rows x, ConstRows a, int streams) override {
    CardCall call;
    gpu::add_streams(call.out(x), call.in(a), streams, nullptr);
  }

  void pair_streams(ConstRows a, ConstRows h, int streams, Rows out) override {
    CardCall call;
    gpu::pair_streams(call.in(a), call.in(h), streams, call.out(out), nullptr);
  }

  std::int64_t quantize(ConstRows, QuantRows) override { not_here("quantize"); }
  void expert_ffn(const ExpertBank&, const Routes&, const Activation&, Rows) override { not_here("expert_ffn"); }
  void ffn(const ExpertWeights&, const Activation&, Rows) override { not_here("ffn"); }

 private:
  static gpu::DeviceKv upload(CardCall& call, const KvView& kv) {
    const std::size_t n = kv.capacity * kv.width();
    if (kv.type == KvType::kF32)
      return {false,
              call.changed(static_cast<float*>(kv.k), n),
              call.changed(static_cast<float*>(kv.v), n),
              kv.kv_heads,
              kv.head_dim,
              kv.capacity};
    return {true,
            call.changed(static_cast<std::uint16_t*>(kv.k), n),
            call.changed(static_cast<std::uint16_t*>(kv.v), n),
            kv.kv_heads,
            kv.head_dim,
            kv.capacity};
  }
  static DeviceLists upload(CardCall& call, const AttendLists& lists) {
    return {call.out(RowsOf<std::int32_t>(lists.positions, lists.rows, lists.stride)).data,
            call.changed(lists.count, lists.rows), lists.rows, lists.stride};
  }
};

}  // namespace

std::unique_ptr<Ops> make_card_ops(std::string* why_not) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    *why_not = std::string("no CUDA device: ") + (error != cudaSuccess ? cudaGetErrorString(error) : "none found");
    return nullptr;
  }
  return std::make_unique<CardOps>();
}

}  // namespace tandem::testing
