// The float kernels at the shapes of the model, for windows of 1 to 16 rows, against ReferenceOps. The odd shapes and
// the kinds of values are those of tests/ops, which this program runs too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/machines.h"
#include "tests/ops/cases.h"
#include "tests/ops/twin.h"

namespace tandem::testing {
namespace {

constexpr float kEps = 1e-6F;
constexpr std::size_t kHidden = 2560, kWide = 4 * kHidden;
constexpr std::size_t kWidths[] = {1, 2, 3, 4, 5, 6, 7, 8, 11, 15, 16};

class Shapes : public MachineTest {
 protected:
  Floats& input(std::size_t rows, std::size_t cols, std::size_t gap = 0) {
    inputs_.push_back(std::make_unique<Floats>(rows, cols, gap));
    return inputs_.back()->fill([&] { return draw(random_, Values::kNormal); });
  }
  // The case as a whole; rows alone only for the widest, they cost as many launches as rows.
  void expect(std::string what, std::size_t rows, decltype(TwinCase::run) run) {
    expect_twin(machine(),
                {.what = std::move(what), .rows = rows, .inputs = {}, .run = std::move(run), .rows_alone = rows == 16});
    inputs_.clear();
  }
  Random& random() { return random_; }
  std::vector<std::unique_ptr<Floats>> inputs_;

 private:
  Random random_{71};
};
INSTANTIATE_FOR_MACHINES(Shapes);

TEST_P(Shapes, Norms) {
  for (const std::size_t w : kWidths) {
    const Floats& x = input(w, kWide);
    const Floats& gamma = input(1, kWide);
    const Floats& heads = input(w, 24 * 512);
    const Floats& cos = input(w, 32);
    const Floats& sin = input(w, 32);
    const Floats& z = input(w, 6144);
    expect("norms", w, [&](Ops& ops, std::size_t first, std::size_t count, Results& results) {
      for (const std::size_t groups : {1U, 4U})
        ops.rms_norm(rows_of(x, first, count), groups, gamma.data(), kEps, rows_of(results.floats(count, kWide)));
      const ConstRows keys(x.row(first) + 2048, count, 2048, x.stride());
      ops.l2_norm(keys, 128, kEps, 0.1F, rows_of(results.floats(count, 2048)));
      const RopeView rope{rows_of(cos, first, count), rows_of(sin, first, count)};
      ops.norm_rope(rows_of(heads, first, count), 24, 256, 512, gamma.data(), kEps, rope,
                    rows_of(results.floats(count, 6144)));
      const ConstRows o(x.row(first), count, 6144, x.stride());
      ops.gdn_output(o, rows_of(z, first, count), gamma.data(), 128, kEps, rows_of(results.floats(count, 6144)));
    });
  }
}

TEST_P(Shapes, HyperConnectionsAndSums) {
  for (const std::size_t w : kWidths) {
    const Floats& x = input(w, kWide);
    const Floats& y = input(w, kWide);
    const Floats& narrow = input(w, kHidden);
    const Floats& inject = input(w, 4);
    const Floats& experts = input(w * 10, kHidden);
    const Floats& weight = input(w, 10);
    const Floats& logit = input(w, 1);
    std::vector<std::int32_t> expert(w * 10, 0);
    expect("sums", w, [&](Ops& ops, std::size_t first, std::size_t count, Results& results) {
      const ConstRows a = rows_of(x, first, count), b = rows_of(y, first, count), n = rows_of(narrow, first, count);
      ops.hc_low(rows_of(results.copy(ConstRows(x.row(first), count, 320, x.stride()))), 4);
      ops.hc_mix(a, b, 4, rows_of(results.floats(count, kHidden)));
      ops.hc_write(rows_of(results.copy(a)), n, rows_of(inject, first, count), 4);
      ops.tile_streams(n, 4, rows_of(results.floats(count, kWide)));
      ops.add_streams(rows_of(results.copy(a)), n, 4);
      ops.add2(rows_of(results.copy(a)), b, a);
      ops.ple_gate(a, b, n, 4, rows_of(results.floats(count, kWide)));
      const Routes routes{expert.data(), const_cast<float*>(weight.row(first)), count, 10};
      ops.combine(routes, rows_of(experts, first * 10, count * 10), rows_of(logit, first, count), n,
                  rows_of(results.floats(count, kHidden)));
    });
  }
}

TEST_P(Shapes, GdnScan) {
  for (const std::size_t w : kWidths)
    for (const bool logged : {false, true}) {
      const std::size_t replay = logged ? w : 16 - w;
      const Floats& state = input(48 * 128, 128);
      // Keys of about unit length, so that the state stays finite.
      const auto small = [&](std::size_t rows, std::size_t cols) -> Floats& {
        return input(rows, cols).fill([&] { return 0.1F * draw(random(), Values::kNormal); });
      };
      const Floats& qkv = small(w, kWide);
      const Floats& k = small(16, 2048);
      const Floats& u = input(16, 6144);
      const auto gates = [&](std::size_t rows) -> Floats& {
        return input(rows, 48).fill([&] { return random().uniform(0.0F, 1.0F); });
      };
      const Floats& replay_decay = gates(16);
      const Floats& decay = gates(w);
      const Floats& beta = gates(w);
      const auto run = [&](Ops& ops, std::size_t, std::size_t, Results& results) {
        auto& s = results.add<float>(48 * 128, 128);
        std::copy_n(state.data(), 48 * 128 * 128, s.data());
        const auto part = [&](std::size_t at, std::size_t cols) {
          return ConstRows(qkv.data() + at, w, cols, qkv.stride());
        };
        ops.gdn_scan({16, 48, 128, s.data(), rows_of(k, 0, replay), rows_of(u, 0, replay),
                      rows_of(replay_decay, 0, replay), part(0, 2048), part(2048, 2048), part(4096, 6144),
                      rows_of(decay), rows_of(beta), rows_of(results.floats(w, 6144)),
                      logged ? rows_of(results.floats(w, 6144)) : Rows()});
      };
      expect_twin(
          machine(),
          {.what = fmt::format("{} replayed", replay), .rows = w, .inputs = {}, .run = run, .rows_alone = false});
    }
}

TEST_P(Shapes, FloatMatmul) {
  struct Shape {
    std::size_t n, cols;
  };
  for (const DType type : {DType::F32, DType::F16, DType::BF16})
    for (const Shape& s :
         {Shape{48, 2560}, {4, 10240}, {512, 2560}, {1, 2560}, {320, 10240}, {2051, 320}, {7, 16384}}) {
      const Weights w = float_weights(type, s.n, s.cols, Values::kNormal, random());
      for (const std::size_t rows : {1U, 2U, 3U, 4U, 5U, 8U, 9U, 16U, 19U}) {
        if (rows > 4 && s.n > 512) continue;
        const Floats& x = input(rows, s.cols);
        const auto run = [&](Ops& ops, std::size_t first, std::size_t count, Results& results) {
          ops.matmul(w.view, {rows_of(x, first, count), {}}, rows_of(results.floats(count, s.n)));
        };
        expect_twin(machine(), {.what = fmt::format("{} [{}, {}]", dtype_name(type), s.n, s.cols),
                                .rows = rows,
                                .inputs = {},
                                .run = run,
                                .rows_alone = false});
      }
    }
}

// The kernel for many rows: tails of rows, outputs and columns, half segments, every depth of the tree; values that
// vanish; and what it leaves to the other one (few outputs, columns that are no multiple of a copy).
TEST_P(Shapes, FloatMatmulOfManyRows) {
  struct Shape {
    std::size_t n, cols;
    Values values = Values::kNormal;
  };
  for (const DType type : {DType::F32, DType::F16, DType::BF16})
    for (const Shape& s : {Shape{512, 2560},
                           {16, 264},
                           {33, 2568},
                           {40, 128},
                           {31, 384},
                           {48, 8, Values::kTiny},
                           {20, 1288, Values::kTiny},
                           {20, 10240},
                           {17, 16384},
                           {15, 512},
                           {40, 300},
                           {24, 131}}) {
      const Weights w = float_weights(type, s.n, s.cols, s.values, random());
      for (const std::size_t rows : {63U, 64U, 65U, 150U}) {
        if (rows == 150 && s.cols > 2600) continue;
        Floats& x = input(rows, s.cols, s.n == 33 ? 4 : 0);
        if (s.values != Values::kNormal) x.fill([&] { return draw(random(), s.values); });
        const auto run = [&](Ops& ops, std::size_t first, std::size_t count, Results& results) {
          ops.matmul(w.view, {rows_of(x, first, count), {}}, rows_of(results.floats(count, s.n)));
        };
        expect_twin(machine(), {.what = fmt::format("{} [{}, {}], many rows", dtype_name(type), s.n, s.cols),
                                .rows = rows,
                                .inputs = {},
                                .run = run,
                                .rows_alone = false});
        inputs_.clear();
      }
    }
}

TEST_P(Shapes, Select) {
  // Blocks of a lane in registers: 1, 4, 16; and read from memory. Positions on both sides of a block's end.
  for (const std::size_t position : {0U, 2045U, 2046U, 2050U, 4093U, 4100U, 16381U, 16390U, 40001U, 65533U, 70003U})
    for (const std::size_t w : {1U, 3U, 16U}) {
      if (w == 3 && position > 20000) continue;
      Floats q(w, 512, 3), pooled((position + w) / 4 + 1, 128, 3);
      const bool ties = position % 2 == 0;
      const auto value = [&] { return ties ? static_cast<float>(random().below(3)) - 1.0F : random().uniform(); };
      q.fill(value);
      pooled.fill(value);
      const auto run = [&](Ops& ops, std::size_t first, std::size_t count, Results& results) {
        auto& positions = results.add<std::int32_t>(count, 2051);
        auto& counts = results.add<std::int32_t>(count, 1);
        ops.select_positions(rows_of(q, first, count), 4, rows_of(pooled), position + first, 4, 512,
                             {positions.data(), counts.data(), count, 2051});
      };
      expect_twin(machine(), {.what = fmt::format("position {}", position),
                              .rows = w,
                              .inputs = {},
                              .run = run,
                              .rows_alone = position == 4093});
    }
}

// Lists of 2051 entries (sparse), and long ones, whose segments go several to a block.
TEST_P(Shapes, Attention) {
  struct Case {
    std::size_t w, entries;
    KvType type;
  };
  for (const Case& c : {Case{1, 2051, KvType::kF16},
                        {2, 1, KvType::kF16},
                        {5, 2048, KvType::kF16},
                        {16, 300, KvType::kF16},
                        {2, 2051, KvType::kF32},
                        {1, 4096, KvType::kF16},
                        {1, 4097, KvType::kF16},
                        {1, 12000, KvType::kF32}}) {
    const std::size_t capacity = c.entries + 64, stride = c.entries + 16;
    const Floats& q = input(c.w, 6144);
    const Floats& gate = input(c.w, 24 * 512);
    const std::size_t bytes = c.type == KvType::kF32 ? 4 : 2;
    std::vector<float> k(capacity * 512 * bytes / 4), v(k.size());
    for (auto* cache : {&k, &v})
      for (float& cell : *cache) {
        cell = draw(random(), Values::kNormal);
        if (bytes == 2) {
          const std::uint16_t pair[2] = {float_to_half(cell), float_to_half(random().uniform())};
          std::memcpy(&cell, pair, 4);
        }
      }
    Guarded<std::int32_t> positions(c.w, stride), counts(c.w, 1);
    for (std::size_t r = 0; r < c.w; ++r) {
      const std::size_t n = c.entries - std::min(r, c.entries - 1);
      counts.row(r)[0] = static_cast<std::int32_t>(n);
      for (std::size_t i = 0, p = random().below(8); i < n; ++i) {
        positions.row(r)[i] = static_cast<std::int32_t>(p);
        p += 1 + (i % 64 == 0 && p + (n - i) + 4 < capacity ? random().below(2) : 0);
      }
    }
    const KvView kv{c.type, k.data(), v.data(), 2, 256, capacity};
    const auto run = [&](Ops& ops, std::size_t first, std::size_t count, Results& results) {
      const ConstRows gates(gate.row(first) + 256, count, 24 * 512 - 256, gate.stride());
      ops.attention(rows_of(q, first, count), kv, {positions.row(first), counts.row(first), count, stride}, 0.0625F,
                    gates, 512, rows_of(results.floats(count, 6144)));
    };
    expect_twin(
        machine(),
        {.what = fmt::format("{} entries", c.entries), .rows = c.w, .inputs = {}, .run = run, .rows_alone = false});
  }
}

}  // namespace
}  // namespace tandem::testing
