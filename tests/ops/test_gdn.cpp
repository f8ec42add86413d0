// The operations with a memory of earlier rows: causal convolution and the delta rule. Every machine against
// ReferenceOps, and a window against its rows one at a time, with the state carried from row to row.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/machines.h"
#include "tests/ops/cases.h"
#include "tests/ops/twin.h"

namespace tandem::testing {
namespace {

class CausalConv : public MachineTest {};
INSTANTIATE_FOR_MACHINES(CausalConv);

struct ConvCase {
  Floats history, x, weights;
  std::size_t dilation;

  ConvCase(std::size_t rows, std::size_t channels, std::size_t taps, std::size_t dilation_, Values values,
           Random& random)
      : history((taps - 1) * dilation_, channels, 3),
        x(rows, channels, 3),
        weights(taps, channels, 3),
        dilation(dilation_) {
    history.fill([&] { return draw(random, values); });
    x.fill([&] { return draw(random, values); });
    weights.fill([&] { return draw(random, Values::kNormal); });
  }
  // The window alone: the rows before `first` are history.
  void run(Ops& ops, std::size_t first, std::size_t count, Results& results) const {
    Floats before(history.rows(), x.cols());
    for (std::size_t t = 0; t < before.rows(); ++t) {
      const std::size_t at = first + t;
      const float* source = at < history.rows() ? history.row(at) : x.row(at - history.rows());
      std::copy_n(source, x.cols(), before.row(t));
    }
    ops.causal_conv(rows_of(std::as_const(before)), rows_of(x, first, count), rows_of(weights), dilation,
                    rows_of(results.floats(count, x.cols())));
  }
};

TEST_P(CausalConv, Twin) {
  Random random(31);
  const auto expect = [&](std::size_t rows, std::size_t channels, std::size_t taps, std::size_t dilation,
                          Values values) {
    const ConvCase c(rows, channels, taps, dilation, values, random);
    const auto run = [&](Ops& ops, std::size_t first, std::size_t count, Results& results) {
      c.run(ops, first, count, results);
    };
    const auto what = fmt::format("{} channels, {} taps {} apart, {}", channels, taps, dilation, values_name(values));
    expect_twin(machine(), {.what = what, .rows = rows, .inputs = {&c.history, &c.x, &c.weights}, .run = run});
  };
  for (const Values values : kAllValues) expect(3, 33, 4, 1, values);
  for (const std::size_t channels : {1U, 8U, 257U, 640U}) expect(5, channels, 4, 3, Values::kNormal);
  for (const std::size_t rows : kRowCounts) expect(rows, 40, 4, rows % 2 == 0 ? 1 : 3, Values::kMixed);
  expect(5, 16, 1, 1, Values::kNormal);
  expect(5, 16, 2, 2, Values::kNormal);
  expect(40, 640, 4, 3, Values::kNormal);
}

class GdnScanTwin : public MachineTest {};
INSTANTIATE_FOR_MACHINES(GdnScanTwin);

struct ScanInputs {
  std::size_t key_heads, value_heads, dim;
  Floats state, replay_k, replay_u, replay_decay, q, k, v, decay, beta;

  ScanInputs(std::size_t key_heads_, std::size_t value_heads_, std::size_t dim_, std::size_t replay, std::size_t rows,
             Values values, Random& random)
      : key_heads(key_heads_),
        value_heads(value_heads_),
        dim(dim_),
        state(value_heads * dim, dim),
        replay_k(replay, key_heads * dim),
        replay_u(replay, value_heads * dim),
        replay_decay(replay, value_heads),
        q(rows, key_heads * dim, 3),
        k(rows, key_heads * dim, 3),
        v(rows, value_heads * dim, 3),
        decay(rows, value_heads, 3),
        beta(rows, value_heads, 3) {
    const bool large = values == Values::kLarge || values == Values::kMixed;  // keys and queries are unit vectors
    const Values unit = large ? Values::kNormal : values;
    for (Floats* array : {&state, &v, &replay_u}) array->fill([&] { return draw(random, values); });
    for (Floats* array : {&q, &k, &replay_k}) array->fill([&] { return 0.1F * draw(random, unit); });
    for (Floats* array : {&decay, &beta, &replay_decay}) array->fill([&] { return random.uniform(0.0F, 1.0F); });
  }
  std::vector<const GuardedArray*> watched() const {
    return {&state, &replay_k, &replay_u, &replay_decay, &q, &k, &v, &decay, &beta};
  }
  // Rows first .. first + count - 1 of the window after the given replay; the state is advanced in place.
  GdnScan scan(Floats& s, std::size_t replay, std::size_t first, std::size_t count, Floats& out, Floats* log) const {
    return {key_heads,
            value_heads,
            dim,
            s.data(),
            rows_of(replay_k, 0, replay),
            rows_of(replay_u, 0, replay),
            rows_of(replay_decay, 0, replay),
            rows_of(q, first, count),
            rows_of(k, first, count),
            rows_of(v, first, count),
            rows_of(decay, first, count),
            rows_of(beta, first, count),
            rows_of(out),
            log == nullptr ? Rows() : rows_of(*log)};
  }
};

// Copies the state into an output of its own; the state has no gaps between its rows.
Floats& state_copy(Results& results, const Floats& state) {
  auto& copy = results.add<float>(state.rows(), state.cols());
  for (std::size_t r = 0; r < state.rows(); ++r) std::copy_n(state.row(r), state.cols(), copy.row(r));
  return copy;
}

void expect_scan_twin(Ops& machine, const ScanInputs& in, Values values) {
  const std::size_t rows = in.q.rows(), replay = in.replay_k.rows();
  for (const bool logged : {false, true}) {
    const auto run = [&](Ops& ops, std::size_t, std::size_t, Results& results) {
      Floats& s = state_copy(results, in.state);
      Floats& out = results.floats(rows, in.v.cols());
      Floats* log = logged ? &results.floats(rows, in.v.cols()) : nullptr;
      ops.gdn_scan(in.scan(s, replay, 0, rows, out, log));
    };
    const auto what = fmt::format("{} key and {} value heads of {}, {} replayed, {}, {}", in.key_heads, in.value_heads,
                                  in.dim, replay, logged ? "logged" : "committed", values_name(values));
    expect_twin(machine, {.what = what, .rows = rows, .inputs = in.watched(), .run = run, .rows_alone = false});
  }
}

TEST_P(GdnScanTwin, Twin) {
  Random random(32);
  const auto expect = [&](std::size_t key_heads, std::size_t value_heads, std::size_t dim, std::size_t replay,
                          std::size_t rows, Values values) {
    expect_scan_twin(machine(), ScanInputs(key_heads, value_heads, dim, replay, rows, values, random), values);
  };
  for (const Values values : kAllValues) expect(2, 4, 16, 2, 3, values);
  for (std::size_t replay = 0; replay <= 16; ++replay) expect(2, 4, 16, replay, 2, Values::kNormal);
  for (const std::size_t rows : {1U, 2U, 3U, 5U, 16U, 40U}) expect(1, 3, 16, 1, rows, Values::kNormal);
  for (const std::size_t dim : {8U, 24U, 40U, 64U, 72U, 96U, 128U}) expect(2, 4, dim, 1, 2, Values::kNormal);
  // More rows than a card has in shared memory at a time, two and three times, with and without rows to replay.
  for (const std::size_t rows : {16U, 17U, 33U, 48U}) expect(1, 2, 128, rows % 2 == 0 ? 5 : 0, rows, Values::kNormal);
  expect(2, 4, 64, 16, 40, Values::kMixed);
  // Sums that vanish to -0, beside segments that only pad the tree.
  for (const std::size_t dim : {72U, 96U})
    for (const Values values : {Values::kTiny, Values::kDenormal}) expect(2, 4, dim, 1, 2, values);
  expect(3, 6, 12, 1, 2, Values::kNormal);  // no multiple of 8
  expect(4, 4, 64, 3, 5, Values::kMixed);
  expect(16, 48, 16, 2, 2, Values::kNormal);
}

// Replay without new rows, as a session does before it is saved.
TEST_P(GdnScanTwin, ReplayAlone) {
  Random random(33);
  for (const std::size_t dim : {12U, 16U, 64U})
    expect_scan_twin(machine(), ScanInputs(2, 4, dim, 5, 0, Values::kNormal, random), Values::kNormal);
}

bool equal(const Floats& a, const Floats& b) {
  for (std::size_t r = 0; r < a.rows(); ++r)
    if (std::memcmp(a.row(r), b.row(r), a.cols() * sizeof(float)) != 0) return false;
  return true;
}

// A window of rows equals its rows one at a time (R7: a sequential scan in every mode).
TEST_P(GdnScanTwin, RowByRow) {
  Random random(34);
  for (const std::size_t dim : {12U, 16U, 64U, 128U}) {
    const std::size_t rows = 5;
    const ScanInputs in(2, 4, dim, 2, rows, Values::kNormal, random);
    Floats whole = in.state, step = in.state, out(rows, in.v.cols(), 3), one(1, in.v.cols(), 3);
    machine().gdn_scan(in.scan(whole, 2, 0, rows, out, nullptr));
    for (std::size_t t = 0; t < rows; ++t) {
      machine().gdn_scan(in.scan(step, t == 0 ? 2 : 0, t, 1, one, nullptr));
      EXPECT_EQ(std::memcmp(one.row(0), out.row(t), out.cols() * sizeof(float)), 0) << "dim " << dim << ", row " << t;
    }
    EXPECT_TRUE(equal(whole, step)) << "dim " << dim;
  }
}

// Logging 16 rows and folding the first a of them into the next pass leaves the state of a committed rows: the bits of
// a window whose rejected rows never ran. The outputs of the window are those of the committed scan.
TEST_P(GdnScanTwin, AcceptedRowsAreThoseCommitted) {
  Random random(35);
  constexpr std::size_t kRows = 16;
  for (const std::size_t dim : {12U, 16U, 64U}) {
    const ScanInputs in(2, 4, dim, 0, kRows, Values::kNormal, random);
    Floats kept = in.state, out(kRows, in.v.cols()), log(kRows, in.v.cols()), committed_out(kRows, in.v.cols());
    machine().gdn_scan(in.scan(kept, 0, 0, kRows, out, &log));
    EXPECT_TRUE(equal(kept, in.state)) << "a logged window changes no state";
    for (std::size_t accepted = 0; accepted <= kRows; ++accepted) {
      Floats committed = in.state, replayed = in.state, none(0, in.v.cols());
      machine().gdn_scan(in.scan(committed, 0, 0, accepted, committed_out, nullptr));
      GdnScan scan = in.scan(replayed, 0, 0, 0, none, nullptr);
      scan.replay_k = rows_of(in.k, 0, accepted);
      scan.replay_u = rows_of(std::as_const(log), 0, accepted);
      scan.replay_decay = rows_of(in.decay, 0, accepted);
      machine().gdn_scan(scan);
      EXPECT_TRUE(equal(committed, replayed)) << "dim " << dim << ", " << accepted << " accepted";
    }
    EXPECT_TRUE(equal(committed_out, out)) << "dim " << dim;
  }
}

}  // namespace
}  // namespace tandem::testing
