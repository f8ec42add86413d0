// Norms, hyper-connections, gates and sums: every machine against ReferenceOps.
#include <gtest/gtest.h>

#include "tests/machines.h"
#include "tests/ops/cases.h"
#include "tests/ops/twin.h"

namespace tandem::testing {
namespace {

constexpr float kEps = 1e-6F;
constexpr int kStreams = 4;

class Elementwise : public MachineTest {
 protected:
  // A new input, filled and watched: expect() checks that no run changes it.
  Floats& input(std::size_t rows, std::size_t cols, Values values, std::size_t gap = 3) {
    inputs_.push_back(std::make_unique<Floats>(rows, cols, gap));
    return inputs_.back()->fill([&] { return draw(random_, values); });
  }
  void expect(std::string what, std::size_t rows, decltype(TwinCase::run) run) {
    std::vector<const GuardedArray*> watched;
    for (const auto& array : inputs_) watched.push_back(array.get());
    expect_twin(machine(), {.what = std::move(what), .rows = rows, .inputs = watched, .run = std::move(run)});
    inputs_.clear();
  }
  // Every kind of value at a small and a ragged width, every batch width, and one case that occupies all workers.
  template <typename Body>
  void sweep(Body body) {
    for (const Values values : kAllValues) body(3, 33, values);
    for (const std::size_t cols : {1U, 7U, 8U, 96U, 257U, 640U}) body(2, cols, Values::kNormal);
    for (const std::size_t rows : kRowCounts) body(rows, 64, Values::kMixed);
    body(40, 640, Values::kNormal);
  }
  Random& random() { return random_; }

 private:
  Random random_{21};
  std::vector<std::unique_ptr<Floats>> inputs_;
};
INSTANTIATE_FOR_MACHINES(Elementwise);

std::string label(std::size_t cols, Values values) {
  return fmt::format("{} columns, {}", cols, values_name(values));
}

TEST_P(Elementwise, RmsNorm) {
  for (const std::size_t groups : {1U, 4U})
    sweep([&](std::size_t rows, std::size_t n, Values values) {
      const Floats& x = input(rows, groups * n, values);
      const Floats& gamma = input(1, groups * n, Values::kNormal);
      expect(label(n, values), rows, [&, groups](Ops& ops, std::size_t first, std::size_t count, Results& results) {
        ops.rms_norm(rows_of(x, first, count), groups, gamma.data(), kEps, rows_of(results.floats(count, x.cols())));
        Floats& in_place = results.copy(rows_of(x, first, count));
        ops.rms_norm(rows_of(in_place), groups, gamma.data(), kEps, rows_of(in_place));
      });
    });
}

TEST_P(Elementwise, L2Norm) {
  for (const std::size_t heads : {1U, 3U})
    sweep([&](std::size_t rows, std::size_t dim, Values values) {
      const Floats& x = input(rows, heads * dim, values);
      expect(label(dim, values), rows, [&, dim](Ops& ops, std::size_t first, std::size_t count, Results& results) {
        ops.l2_norm(rows_of(x, first, count), dim, kEps, 0.3F, rows_of(results.floats(count, x.cols())));
        Floats& in_place = results.copy(rows_of(x, first, count));
        ops.l2_norm(rows_of(in_place), dim, kEps, 1.0F, rows_of(in_place));
      });
    });
}

TEST_P(Elementwise, NormRope) {
  struct Shape {
    std::size_t heads, dim, head_stride, half;
  };
  // The query of an attention layer (gate between the heads), its keys, the indexer, odd sizes, no rotation left over.
  for (const Shape& s : {Shape{4, 256, 512, 32}, Shape{2, 256, 256, 32}, Shape{4, 128, 128, 32}, Shape{3, 33, 40, 5},
                         Shape{1, 64, 64, 32}, Shape{2, 16, 17, 1}})
    for (const std::size_t rows : kRowCounts)
      for (const Values values : {Values::kNormal, Values::kMixed, Values::kLarge, Values::kZero}) {
        if (rows > 3 && values != Values::kNormal) continue;
        const Floats& x = input(rows, (s.heads - 1) * s.head_stride + s.dim, values);
        const Floats& gamma = input(1, s.dim, Values::kNormal);
        const Floats& cos = input(rows, s.half, Values::kNormal);
        const Floats& sin = input(rows, s.half, Values::kNormal);
        expect(label(s.dim, values), rows, [&](Ops& ops, std::size_t first, std::size_t count, Results& results) {
          const RopeView rope{rows_of(cos, first, count), rows_of(sin, first, count)};
          ops.norm_rope(rows_of(x, first, count), s.heads, s.dim, s.head_stride, gamma.data(), kEps, rope,
                        rows_of(results.floats(count, s.heads * s.dim)));
        });
      }
}

TEST_P(Elementwise, HyperConnectionLow) {
  for (const int streams : {1, 3, 4})
    sweep([&](std::size_t rows, std::size_t cols, Values values) {
      const Floats& x = input(rows, cols, values);
      expect(label(cols, values), rows, [&, streams](Ops& ops, std::size_t first, std::size_t count, Results& results) {
        ops.hc_low(rows_of(results.copy(rows_of(x, first, count))), streams);
      });
    });
}

TEST_P(Elementwise, HyperConnectionMix) {
  for (const int streams : {1, 3, 4})
    sweep([&](std::size_t rows, std::size_t d, Values values) {
      const std::size_t wide = d * static_cast<std::size_t>(streams);
      const Floats& normed = input(rows, wide, values);
      const Floats& gate = input(rows, wide, d % 2 == 0 ? Values::kNormal : values);
      expect(label(d, values), rows, [&, d, streams](Ops& ops, std::size_t first, std::size_t count, Results& results) {
        ops.hc_mix(rows_of(normed, first, count), rows_of(gate, first, count), streams,
                   rows_of(results.floats(count, d)));
      });
    });
}

TEST_P(Elementwise, HyperConnectionWrite) {
  sweep([&](std::size_t rows, std::size_t d, Values values) {
    const Floats& x = input(rows, d * kStreams, values);
    const Floats& y = input(rows, d, d % 2 == 0 ? Values::kNormal : values);
    const Floats& inject = input(rows, kStreams, Values::kNormal);
    expect(label(d, values), rows, [&](Ops& ops, std::size_t first, std::size_t count, Results& results) {
      ops.hc_write(rows_of(results.copy(rows_of(x, first, count))), rows_of(y, first, count),
                   rows_of(inject, first, count), kStreams);
    });
  });
}

TEST_P(Elementwise, GdnGates) {
  sweep([&](std::size_t rows, std::size_t heads, Values values) {
    const Floats& alpha = input(rows, heads, values);
    const Floats& beta = input(rows, heads, values);
    const Floats& bias = input(1, heads, Values::kNormal);
    Floats& a = input(1, heads, Values::kNormal);
    a.fill([&] { return -random().uniform(0.0F, 8.0F); });
    expect(label(heads, values), rows, [&](Ops& ops, std::size_t first, std::size_t count, Results& results) {
      Floats& decay = results.copy(rows_of(alpha, first, count));
      ops.gdn_gates(rows_of(decay), rows_of(results.copy(rows_of(beta, first, count))), bias.data(), a.data());
    });
  });
}

TEST_P(Elementwise, GdnOutput) {
  for (const std::size_t heads : {1U, 3U})
    sweep([&](std::size_t rows, std::size_t dim, Values values) {
      const Floats& o = input(rows, heads * dim, values);
      const Floats& z = input(rows, heads * dim, values);
      const Floats& norm = input(1, dim, Values::kNormal);
      expect(label(dim, values), rows, [&, dim](Ops& ops, std::size_t first, std::size_t count, Results& results) {
        const ConstRows gate = rows_of(z, first, count);
        ops.gdn_output(rows_of(o, first, count), gate, norm.data(), dim, kEps,
                       rows_of(results.floats(count, o.cols())));
        Floats& in_place = results.copy(rows_of(o, first, count));
        ops.gdn_output(rows_of(in_place), gate, norm.data(), dim, kEps, rows_of(in_place));
      });
    });
}

TEST_P(Elementwise, PleGate) {
  sweep([&](std::size_t rows, std::size_t d, Values values) {
    const Floats& key = input(rows, d * kStreams, values);
    // Large and tiny keys meet ordinary queries, so that products stay finite and stay above zero.
    const bool extreme = values == Values::kLarge || values == Values::kTiny || values == Values::kDenormal;
    const Floats& query = input(rows, d * kStreams, extreme ? Values::kNormal : values);
    const Floats& value = input(rows, d, values);
    expect(label(d, values), rows, [&, d](Ops& ops, std::size_t first, std::size_t count, Results& results) {
      ops.ple_gate(rows_of(key, first, count), rows_of(query, first, count), rows_of(value, first, count), kStreams,
                   rows_of(results.floats(count, d * kStreams)));
    });
  });
}

TEST_P(Elementwise, Sums) {
  sweep([&](std::size_t rows, std::size_t d, Values values) {
    const Floats& x = input(rows, d, values);
    const Floats& a = input(rows, d, values);
    const Floats& b = input(rows, d, Values::kNormal);
    const Floats& wide = input(rows, d * kStreams, values);
    expect(label(d, values), rows, [&, d](Ops& ops, std::size_t first, std::size_t count, Results& results) {
      const ConstRows a_rows = rows_of(a, first, count);
      ops.add2(rows_of(results.copy(rows_of(x, first, count))), a_rows, rows_of(b, first, count));
      ops.tile_streams(a_rows, kStreams, rows_of(results.floats(count, d * kStreams)));
      ops.add_streams(rows_of(results.copy(rows_of(wide, first, count))), a_rows, kStreams);
      ops.pair_streams(a_rows, rows_of(wide, first, count), kStreams, rows_of(results.floats(count * kStreams, 2 * d)));
    });
  });
}

TEST_P(Elementwise, SoftmaxSum) {
  for (const std::size_t n : {1UL, 31UL, 33UL, 255UL, 257UL, 8192UL, 8193UL, 65536UL, 248320UL, 524288UL})
    for (const float temperature : {0.0F, 0.6F, 1.7F}) {
      const std::size_t rows = n > 100000 ? 2 : 5;
      Random random(17 + n);
      Floats logits(rows, n, 3);
      logits.fill([&] {
        const float x = 6.0F * draw(random, Values::kNormal);
        return random.below(40) == 0 ? -std::numeric_limits<float>::infinity() : random.below(9) == 0 ? -0.0F : x;
      });
      for (std::size_t r = 0; r < rows; ++r) logits.row(r)[random.below(n)] = r == 0 ? -0.0F : 5.0F;
      expect(fmt::format("{} logits, T {}", n, temperature), rows,
             [&](Ops& ops, std::size_t first, std::size_t count, Results& results) {
               std::vector<Chosen> chosen(count, Chosen{});
               ops.softmax_sum(rows_of(logits, first, count), temperature, chosen.data());
               const Rows out = rows_of(results.floats(count, 2));
               for (std::size_t r = 0; r < count; ++r) {
                 out.row(r)[0] = chosen[r].top;
                 out.row(r)[1] = chosen[r].sum;
               }
             });
    }
}

TEST_P(Elementwise, MeanPool) {
  for (const std::size_t ratio : {1U, 3U, 4U})
    sweep([&](std::size_t blocks, std::size_t dim, Values values) {
      const Floats& x = input(blocks * ratio, dim, values);
      expect(label(dim, values), blocks,
             [&, dim, ratio](Ops& ops, std::size_t first, std::size_t count, Results& results) {
               ops.mean_pool(rows_of(x, first * ratio, count * ratio), ratio, rows_of(results.floats(count, dim)));
             });
    });
}

TEST_P(Elementwise, Combine) {
  for (const std::size_t used : {1U, 2U, 10U})
    sweep([&](std::size_t rows, std::size_t d, Values values) {
      const Floats& y = input(rows * used, d, values);
      const Floats& shared = input(rows, d, values);
      const Floats& shared_logit = input(rows, 1, Values::kNormal);
      Floats& weight = input(rows, used, Values::kNormal, 0);
      weight.fill([&] { return random().uniform(0.0F, 1.0F); });
      std::vector<std::int32_t> expert(rows * used, 0);
      for (std::size_t i = 0; i < expert.size(); i += 3) expert[i] = -1;  // left out, whatever y holds there
      expect(label(d, values), rows, [&, d, used](Ops& ops, std::size_t first, std::size_t count, Results& results) {
        const Routes routes{expert.data() + first * used, weight.row(first), count, used};
        ops.combine(routes, rows_of(y, first * used, count * used), rows_of(shared_logit, first, count),
                    rows_of(shared, first, count), rows_of(results.floats(count, d)));
      });
    });
}

}  // namespace
}  // namespace tandem::testing
