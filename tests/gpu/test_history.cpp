// The rows that layers keep of their past: the card's kernels against RowHistory and the pipeline's own steps on the
// host.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cpu/reference_ops.h"
#include "gpu/kernels/float_matmul.h"
#include "gpu/kernels/gdn_scan.h"
#include "gpu/kernels/history.h"
#include "runtime/memory.h"
#include "tests/gpu/card_call.h"
#include "tests/gpu/card_ops.h"
#include "tests/gpu/gpu_test.h"
#include "tests/ops/cases.h"
#include "tests/ops/guarded.h"

namespace tandem::testing {
namespace {

constexpr std::size_t kMost = 16;  // rows of a window

class History : public GpuTest {
 protected:
  Floats filled(std::size_t rows, std::size_t cols, std::size_t gap = 3) {
    Floats array(rows, cols, gap);
    array.fill([&] { return draw(random_, Values::kNormal); });
    return array;
  }
  Random random_{81};
};

::testing::AssertionResult same(ConstRows a, ConstRows b) {
  for (std::size_t r = 0; r < a.rows; ++r)
    for (std::size_t c = 0; c < a.cols; ++c)
      if (std::memcmp(a.row(r) + c, b.row(r) + c, sizeof(float)) != 0)
        return ::testing::AssertionFailure()
               << fmt::format("row {}, column {}: {:a} and {:a}", r, c, a.row(r)[c], b.row(r)[c]);
  return ::testing::AssertionSuccess();
}

// A history with its window on the host, tight as both sides have it.
struct HostHistory {
  Floats rows, window;
  HostHistory(const Floats& rows_, const Floats& window_) : rows(rows_), window(window_) {}
  HistoryRows view() { return {rows.data(), window.data(), rows.rows(), window.cols()}; }
  gpu::DeviceHistory on_card(CardCall& call) {
    return {call.changed(rows.data(), rows.rows() * window.cols()), call.changed(window.data(), kMost * window.cols()),
            rows.rows(), window.cols()};
  }
};

::testing::AssertionResult same(const HostHistory& a, const HostHistory& b) {
  const auto rows = same(rows_of(a.rows), rows_of(b.rows));
  return rows ? same(rows_of(a.window), rows_of(b.window)) : rows;
}

TEST_F(History, CommitKeepAndLogAreThoseOfTheHost) {
  MachineMemory& host = host_memory();
  for (const std::size_t depth : {0U, 1U, 3U, 9U})
    for (std::size_t n = 0; n <= kMost; ++n) {
      const std::string what = fmt::format("{} deep, {} rows", depth, n);
      const HostHistory start(filled(depth, 131, 0), filled(kMost, 131, 0));
      const Floats x = filled(n, 131);
      {
        HostHistory expected = start, got = start;
        host.commit_rows(expected.view(), rows_of(x));
        CardCall call;
        gpu::commit_rows(got.on_card(call), call.in(rows_of(x)), nullptr);
        call.finish();
        EXPECT_TRUE(same(expected, got)) << "commit, " << what;
      }
      for (const bool on_card : {false, true}) {  // where the number of rows lies
        HostHistory expected = start, got = start;
        HostHistory other(filled(depth + 2, 40, 0), filled(kMost, 40, 0)), expected_other = other;
        const HistoryRows views[] = {expected.view(), expected_other.view()};
        host.keep_rows(views, n);
        CardCall call;
        std::vector<gpu::DeviceHistory> list = {got.on_card(call), other.on_card(call)};
        gpu::keep_rows(list.data(), list.size(), on_card ? call.count(n) : nullptr, on_card ? 77 : n, nullptr);
        call.finish();
        EXPECT_TRUE(same(expected, got)) << "keep, " << what;
        EXPECT_TRUE(same(expected_other, other)) << "keep, the second of a list, " << what;
      }
      for (const std::size_t at : {std::size_t{0}, kMost - n}) {
        HostHistory expected = start, got = start;
        host.log_rows(expected.view(), at, rows_of(x));
        CardCall call;
        gpu::log_rows(got.on_card(call), kMost, call.count(at), call.in(rows_of(x)), nullptr);
        call.finish();
        EXPECT_TRUE(same(expected, got)) << "log at " << at << ", " << what;
      }
    }
}

// More histories than one launch takes.
TEST_F(History, KeepsAnyNumberOfHistories) {
  std::vector<HostHistory> got;
  for (int i = 0; i < 70; ++i) got.emplace_back(filled(3, 33, 0), filled(kMost, 33, 0));
  std::vector<HostHistory> expected = got;
  std::vector<HistoryRows> views;
  for (HostHistory& history : expected) views.push_back(history.view());
  host_memory().keep_rows(views, 2);
  CardCall call;
  std::vector<gpu::DeviceHistory> list;
  for (HostHistory& history : got) list.push_back(history.on_card(call));
  gpu::keep_rows(list.data(), list.size(), nullptr, 2, nullptr);
  call.finish();
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same(expected[i], got[i])) << i;
}

// A convolution that logs its input.
TEST_F(History, ConvolutionLogs) {
  ReferenceOps reference;
  struct Shape {
    std::size_t taps, dilation, cols;
  };
  for (const Shape& s : {Shape{4, 1, 10240}, {4, 3, 1030}, {2, 2, 129}})
    for (const std::size_t w : {1U, 2U, 5U, 16U}) {
      const Floats history = filled((s.taps - 1) * s.dilation, s.cols), x = filled(w, s.cols);
      const Floats weights = filled(s.taps, s.cols);
      Floats window = filled(kMost, s.cols, 0), expected_window = window, y(w, s.cols, 3), expected(w, s.cols, 3);
      reference.causal_conv(rows_of(history), rows_of(x), rows_of(weights), s.dilation, rows_of(expected));
      for (std::size_t r = 0; r < w; ++r) std::copy_n(x.row(r), s.cols, expected_window.row(r));
      CardCall call;
      gpu::causal_conv(call.in(rows_of(history)), call.in(rows_of(x)), call.in(rows_of(weights)), s.dilation,
                       call.out(rows_of(y)), call.changed(window.data(), kMost * s.cols), nullptr);
      call.finish();
      EXPECT_TRUE(same(rows_of(std::as_const(expected)), rows_of(std::as_const(y))));
      EXPECT_TRUE(same(rows_of(std::as_const(expected_window)), rows_of(std::as_const(window))));
    }
}

TEST_F(History, CopiesOfRows) {
  for (const std::size_t rows : {1U, 3U, 16U}) {
    const Floats a = filled(rows, 2048), b = filled(rows, 48), c = filled(1, 10240);
    Floats to_a(kMost, 2048, 3), to_b(kMost, 48, 3), to_c(1, 10240, 3);
    for (Floats* to : {&to_a, &to_b, &to_c}) to->fill([] { return 7.0F; });
    CardCall call;
    const gpu::RowCopy copies[] = {{call.in(rows_of(a)), call.out(rows_of(to_a))},
                                   {call.in(rows_of(b)), call.out(rows_of(to_b))},
                                   {call.in(rows_of(c)), call.out(rows_of(to_c))}};
    gpu::copy_rows(copies, 3, nullptr);
    call.finish();
    EXPECT_TRUE(same(rows_of(a), rows_of(std::as_const(to_a))));
    EXPECT_TRUE(same(rows_of(b), rows_of(std::as_const(to_b))));
    EXPECT_TRUE(same(rows_of(c), rows_of(std::as_const(to_c))));
    for (std::size_t r = rows; r < kMost; ++r) EXPECT_EQ(to_a.row(r)[5], 7.0F) << "a row beyond those copied";
  }
}

// The log of a window is read as the replay of the next and overwritten by it, in the same memory.
TEST_F(History, ReplayedRowsMayBeOverwrittenByTheNewLog) {
  constexpr std::size_t kHeads = 6, kDim = 128;
  for (const std::size_t kept : {0U, 1U, 5U, 16U}) {
    Floats state = filled(kHeads * kDim, kDim, 0), log_u = filled(kMost, kHeads * kDim, 0);
    const auto small = [&](std::size_t rows, std::size_t cols) {
      Floats array(rows, cols);
      array.fill([&] { return 0.1F * random_.uniform(); });
      return array;
    };
    const Floats log_k = small(kMost, 2 * kDim), decay = small(kMost, kHeads), q = small(kMost, 2 * kDim);
    const Floats k = small(kMost, 2 * kDim), v = small(kMost, kHeads * kDim), beta = small(kMost, kHeads);
    Floats out(kMost, kHeads * kDim), expected_state = state, expected_u(kMost, kHeads * kDim), expected_out = out;
    GdnScan scan{2,
                 kHeads,
                 kDim,
                 expected_state.data(),
                 rows_of(log_k, 0, kept),
                 rows_of(std::as_const(log_u), 0, kept),
                 rows_of(decay, 0, kept),
                 rows_of(q),
                 rows_of(k),
                 rows_of(v),
                 rows_of(decay),
                 rows_of(beta),
                 rows_of(expected_out),
                 rows_of(expected_u)};
    ReferenceOps().gdn_scan(scan);
    CardCall call;
    gpu::DeviceGdnScan card;
    card.key_heads = 2, card.value_heads = kHeads, card.dim = kDim;
    card.state = call.changed(state.data(), kHeads * kDim * kDim);
    card.log_u = call.out(rows_of(log_u));
    card.replay_k = call.in(rows_of(log_k)), card.replay_u = card.log_u, card.replay_decay = call.in(rows_of(decay));
    card.replay_count = call.count(kept);
    card.q = call.in(rows_of(q)), card.k = call.in(rows_of(k)), card.v = call.in(rows_of(v));
    card.decay = card.replay_decay, card.beta = call.in(rows_of(beta));
    card.out = call.out(rows_of(out));
    gpu::gdn_scan(card, nullptr);
    call.finish();
    EXPECT_TRUE(same(rows_of(std::as_const(expected_out)), rows_of(std::as_const(out)))) << kept;
    EXPECT_TRUE(same(rows_of(std::as_const(expected_u)), rows_of(std::as_const(log_u)))) << kept;
    EXPECT_TRUE(same(rows_of(std::as_const(expected_state)), rows_of(std::as_const(state)))) << kept;
  }
}

// A sequence of raw indexer keys, cut into passes at every offset: the pooled keys are those of ReferenceOps, wherever
// their keys come from, and no others are touched.
TEST_F(History, IndexBlocks) {
  constexpr std::size_t kDim = 128, kHalf = 32, kEnd = 70;
  ReferenceOps reference;
  std::string why_not;
  const std::unique_ptr<Ops> card = make_card_ops(&why_not);
  for (const std::size_t ratio : {1U, 3U, 4U}) {
    const Floats keys = filled(kEnd, kDim), gamma = filled(1, kDim), cos = filled(17, kHalf), sin = filled(17, kHalf);
    for (const std::size_t w : {1U, 2U, 3U, 4U, 5U, 16U})
      for (std::size_t position = 0; position + w <= kEnd; ++position)
        for (const std::size_t pending : {0U, 1U, 2U, 6U}) {
          if (pending > position || position % 7 != pending % 7) continue;
          // The rows before the pass: `ratio` - 1 committed ones, then the pending ones in a window whose rest is NaN.
          const std::size_t committed = position - pending;
          Floats history(ratio - 1, kDim), window(kMost, kDim), got(kEnd, kDim);
          history.fill([] { return NAN; });
          window.fill([] { return NAN; });
          got.fill([] { return 5.0F; });
          for (std::size_t i = 0; i < ratio - 1; ++i)
            if (committed + i >= ratio - 1) std::copy_n(keys.row(committed + i - (ratio - 1)), kDim, history.row(i));
          for (std::size_t i = 0; i < pending; ++i) std::copy_n(keys.row(committed + i), kDim, window.row(i));
          Floats expected = got;
          IndexBlocks blocks{{history.data(), window.data(), ratio - 1, kDim},
                             pending,
                             rows_of(keys, position, w),
                             position,
                             ratio,
                             gamma.data(),
                             1e-6F,
                             {rows_of(cos), rows_of(sin)},
                             expected.data()};
          reference.index_blocks(blocks);
          blocks.pooled = got.data();
          card->index_blocks(blocks);
          EXPECT_TRUE(same(rows_of(std::as_const(expected)), rows_of(std::as_const(got))))
              << fmt::format("blocks of {}, {} rows at {}, {} pending", ratio, w, position, pending);
        }
  }
}

TEST_F(History, RowsOfATableByTokenId) {
  constexpr std::size_t kRows = 300, kCols = 2560;
  for (const float scale : {1.0F, 0.75F}) {
    const Weights full = float_weights(DType::F32, kRows, kCols, Values::kNormal, random_);
    const Weights half = float_weights(DType::F16, kRows, kCols, Values::kMixed, random_);
    const Weights brain = float_weights(DType::BF16, kRows, kCols, Values::kNormal, random_);
    const std::vector<std::int32_t> ids = {0, 299, 7, 7, 150};
    for (const auto& [type, weights] :
         {std::pair{gpu::FloatType::kF32, &full}, {gpu::FloatType::kF16, &half}, {gpu::FloatType::kBf16, &brain}}) {
      WeightView view = weights->view;
      view.scale = scale;
      Floats out(ids.size(), kCols, 3), expected(ids.size(), kCols, 3);
      for (std::size_t i = 0; i < ids.size(); ++i) view.read_row(static_cast<std::size_t>(ids[i]), expected.row(i));
      CardCall call;
      // The card's copy is aligned to its elements.
      std::vector<std::uint16_t> copy(view.bytes() / 2);
      std::memcpy(copy.data(), view.data, view.bytes());
      void* table = call.work(view.bytes());
      CUDA_CHECK(cudaMemcpy(table, copy.data(), view.bytes(), cudaMemcpyHostToDevice));
      gpu::float_rows(type, table, kRows, scale, call.values(ids.data(), ids.size()), call.out(rows_of(out)), nullptr);
      call.finish();
      EXPECT_TRUE(same(rows_of(std::as_const(expected)), rows_of(std::as_const(out)))) << dtype_name(view.type);
    }
  }
}

}  // namespace
}  // namespace tandem::testing
