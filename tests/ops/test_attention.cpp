// Key/value storage, selection of positions, attention: every machine against ReferenceOps, selection also against
// its definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "cpu/reference_ops.h"
#include "tests/machines.h"
#include "tests/ops/cases.h"
#include "tests/ops/oracle.h"
#include "tests/ops/twin.h"

namespace tandem::testing {
namespace {

// ---- storage --------------------------------------------------------------------------------------------------------

class KvStore : public MachineTest {};
INSTANTIATE_FOR_MACHINES(KvStore);

template <typename T>
void expect_store_twin(Ops& machine, KvType type, std::size_t heads, std::size_t dim, std::size_t position,
                       const Floats& k, const Floats& v, Values values) {
  constexpr std::size_t kCapacity = 64;
  const std::size_t width = heads * dim;
  const auto run = [&](Ops& ops, std::size_t first, std::size_t count, Results& results) {
    auto& keys = results.add<T>(kCapacity, width);
    auto& stored = results.add<T>(kCapacity, width);
    keys.fill([] { return 7; });
    stored.fill([] { return 8; });
    const KvView kv{type, keys.data(), stored.data(), heads, dim, kCapacity};
    ops.kv_store(kv, position + first, rows_of(k, first, count), rows_of(v, first, count));
  };
  const auto what = fmt::format("{} of {} at {}, {}", heads, dim, position, values_name(values));
  expect_twin(machine, {.what = what, .rows = k.rows(), .inputs = {&k, &v}, .run = run, .rows_alone = false});
  // Row by row into one cache.
  Results whole, step;
  run(machine, 0, k.rows(), whole);
  auto& keys = step.add<T>(kCapacity, width).fill([] { return 7; });
  auto& stored = step.add<T>(kCapacity, width).fill([] { return 8; });
  const KvView kv{type, keys.data(), stored.data(), heads, dim, kCapacity};
  for (std::size_t r = 0; r < k.rows(); ++r) machine.kv_store(kv, position + r, rows_of(k, r, 1), rows_of(v, r, 1));
  EXPECT_TRUE(same_bits(whole, step)) << what;
}

TEST_P(KvStore, Twin) {
  Random random(41);
  for (const Values values : kAllValues)
    for (const std::size_t dim : {7U, 12U, 32U, 256U})
      for (const std::size_t rows : {1U, 3U, 16U}) {
        Floats k(rows, 2 * dim, 3), v(rows, 2 * dim, 3);
        // Half the values lie within the range of a half and half way between two of them: ties go to even.
        const auto value = [&] {
          const float drawn = draw(random, values);
          if (random.below(2) == 0) return drawn;
          const float half = half_to_float(half_of(drawn, random));
          return half + half_to_float(static_cast<std::uint16_t>(float_to_half(std::fabs(half)) + 1)) / 2 -
                 std::fabs(half) / 2;
        };
        k.fill(value);
        v.fill(value);
        const std::size_t position = random.below(64 - rows + 1);
        expect_store_twin<std::uint16_t>(machine(), KvType::kF16, 2, dim, position, k, v, values);
        expect_store_twin<float>(machine(), KvType::kF32, 2, dim, position, k, v, values);
      }
}

// ---- selection ------------------------------------------------------------------------------------------------------

class Select : public MachineTest {};
INSTANTIATE_FOR_MACHINES(Select);

struct SelectCase {
  std::size_t rows, position, ratio, blocks;
  std::size_t heads = 4, dim = 16;
};

// Runs the case as a twin; scores must be exact in binary32 for the comparison with the definition.
void expect_selection(Ops& machine, const SelectCase& c, const Floats& q, const Floats& pooled, bool exact_scores) {
  const std::size_t stride = c.blocks * c.ratio + c.ratio + 1;
  const auto run = [&](Ops& ops, std::size_t first, std::size_t count, Results& results) {
    auto& positions = results.add<std::int32_t>(count, stride);
    auto& counts = results.add<std::int32_t>(count, 1);
    const AttendLists lists{positions.data(), counts.data(), count, stride};
    ops.select_positions(rows_of(q, first, count), c.heads, rows_of(pooled), c.position + first, c.ratio, c.blocks,
                         lists);
    for (std::size_t r = 0; exact_scores && r < count; ++r) {
      const std::size_t visible = c.position + first + r + 1;
      const std::span<const float> row(q.row(first + r), q.cols());
      const auto expected = oracle::attended(oracle::block_scores(row, c.heads, rows_of(pooled), visible / c.ratio),
                                             visible, c.ratio, c.blocks);
      ASSERT_EQ(counts.row(r)[0], static_cast<std::int32_t>(expected.size()));
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), positions.row(r))) << "row " << first + r;
    }
  };
  const auto what = fmt::format("position {}, {} blocks of {}", c.position, c.blocks, c.ratio);
  expect_twin(machine, {.what = what, .rows = c.rows, .inputs = {&q, &pooled}, .run = run});
}

// Small integers: scores are exact and many are equal. Negative queries and keys make many of them zero.
TEST_P(Select, EdgesOfTheBudgetWithTies) {
  Random random(42);
  for (const std::size_t ratio : {1U, 3U, 4U})
    for (const std::size_t blocks : {1U, 2U, 8U})
      for (std::size_t step = 0; step < 2 * ratio + 6; ++step) {
        const SelectCase c{2, blocks * ratio - 1 + step, ratio, blocks};
        Floats q(c.rows, c.heads * c.dim, 3), pooled((c.position + c.rows) / ratio, c.dim, 3);
        q.fill([&] { return static_cast<float>(random.below(3)) - 1.0F; });
        pooled.fill([&] { return random.below(4) == 0 ? static_cast<float>(random.below(3)) - 1.0F : 0.0F; });
        expect_selection(machine(), c, q, pooled, true);
      }
}

TEST_P(Select, EqualScoresGoToTheLowerBlocks) {
  for (const float key : {0.0F, -1.0F, 1.0F})  // zero, zero after relu, all equal
    for (std::size_t position = 30; position < 42; ++position) {
      const SelectCase c{1, position, 4, 5};
      Floats q(1, c.heads * c.dim), pooled((position + 1) / 4, c.dim);
      q.fill([] { return 1.0F; });
      pooled.fill([&] { return key; });
      expect_selection(machine(), c, q, pooled, true);
    }
}

TEST_P(Select, Twin) {
  Random random(43);
  for (const Values values : {Values::kNormal, Values::kTiny, Values::kDenormal, Values::kMixed})
    for (const std::size_t rows : kRowCounts) {
      const SelectCase c{rows, 200, 4, 16, 4, rows % 2 == 0 ? std::size_t{128} : std::size_t{33}};
      Floats q(rows, c.heads * c.dim, 3), pooled((c.position + rows) / 4 + 2, c.dim, 3);
      q.fill([&] { return draw(random, values); });
      pooled.fill([&] { return draw(random, values == Values::kMixed ? Values::kNormal : values); });
      expect_selection(machine(), c, q, pooled, false);
    }
  const SelectCase real{5, 2300, 4, 512, 4, 128};  // the real model's budget
  Floats q(5, 512), pooled(577, 128);
  q.fill([&] { return draw(random, Values::kNormal); });
  pooled.fill([&] { return draw(random, Values::kNormal); });
  expect_selection(machine(), real, q, pooled, false);
}

TEST_P(Select, ScoresThatAreNotFiniteAreAnError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Floats q(1, 32), pooled(8, 16);
    q.fill([] { return 1.0F; });
    pooled.fill([] { return 1.0F; });
    pooled.row(3)[5] = bad;
    std::vector<std::int32_t> positions(32), count(1);
    const AttendLists lists{positions.data(), count.data(), 1, 32};
    EXPECT_DEATH(
        machine().select_positions(rows_of(std::as_const(q)), 2, rows_of(std::as_const(pooled)), 31, 4, 5, lists),
        "block 3 at position 31");
  }
}

TEST_P(Select, AllPositions) {
  for (const std::size_t position : {0U, 1U, 63U, 300U}) {
    const auto run = [&](Ops& ops, std::size_t first, std::size_t count, Results& results) {
      const std::size_t stride = position + 10;
      auto& positions = results.add<std::int32_t>(count, stride);
      auto& counts = results.add<std::int32_t>(count, 1);
      ops.all_positions(position + first, {positions.data(), counts.data(), count, stride});
      for (std::size_t r = 0; r < count; ++r) {
        const std::size_t visible = position + first + r + 1;
        ASSERT_EQ(counts.row(r)[0], static_cast<std::int32_t>(visible));
        for (std::size_t p = 0; p < visible; ++p) ASSERT_EQ(positions.row(r)[p], static_cast<std::int32_t>(p));
      }
    };
    expect_twin(machine(), {.what = fmt::format("position {}", position), .rows = 5, .inputs = {}, .run = run});
  }
}

// ---- attention ------------------------------------------------------------------------------------------------------

class Attention : public MachineTest {};
INSTANTIATE_FOR_MACHINES(Attention);

struct AttentionShape {
  std::size_t rows, kv_heads, per_kv, dim, count;
  std::size_t gate_gap = 0;  // between the gates of two heads
};

// Row r attends to count + r positions (all different rows of the cache), drawn from twice as many.
Guarded<std::int32_t> draw_lists(const AttentionShape& s, std::size_t capacity, Guarded<std::int32_t>& counts,
                                 Random& random) {
  Guarded<std::int32_t> positions(s.rows, s.count + s.rows + 3);
  for (std::size_t r = 0; r < s.rows; ++r) {
    std::size_t left = s.count + r, at = 0;
    counts.row(r)[0] = static_cast<std::int32_t>(left);
    for (std::size_t p = 0; left > 0; ++p)
      if (random.below(capacity - p) < left) {
        positions.row(r)[at++] = static_cast<std::int32_t>(p);
        --left;
      }
  }
  return positions;
}

template <typename T>
void expect_attention_twin(Ops& machine, const AttentionShape& s, Values values, Random& random) {
  constexpr KvType kType = std::is_same_v<T, float> ? KvType::kF32 : KvType::kF16;
  const std::size_t heads = s.kv_heads * s.per_kv, capacity = 2 * (s.count + s.rows), width = s.kv_heads * s.dim;
  const std::size_t gate_stride = s.dim + s.gate_gap;
  Floats q(s.rows, heads * s.dim, 3), gate(s.rows, heads * gate_stride, 3);
  Guarded<T> keys(capacity, width), stored(capacity, width);
  q.fill([&] { return draw(random, values); });
  gate.fill([&] { return draw(random, values); });
  for (Guarded<T>* cache : {&keys, &stored})
    cache->fill([&]() -> T {
      // Scores stay finite: large queries meet ordinary keys.
      const float value = draw(random, values == Values::kLarge || values == Values::kMixed ? Values::kNormal : values);
      if constexpr (std::is_same_v<T, float>)
        return value;
      else
        return half_of(value, random);
    });
  Guarded<std::int32_t> counts(s.rows, 1);
  Guarded<std::int32_t> positions = draw_lists(s, capacity, counts, random);
  const KvView kv{kType, keys.data(), stored.data(), s.kv_heads, s.dim, capacity};
  const auto run = [&](Ops& ops, std::size_t first, std::size_t count, Results& results) {
    const AttendLists lists{positions.row(first), counts.row(first), count, positions.stride()};
    ops.attention(rows_of(q, first, count), kv, lists, 0.25F, rows_of(gate, first, count), gate_stride,
                  rows_of(results.floats(count, q.cols())));
  };
  const auto what = fmt::format("{} kv heads, {} heads each of {}, {} positions, {}, {}", s.kv_heads, s.per_kv, s.dim,
                                s.count, kType == KvType::kF32 ? "f32" : "f16", values_name(values));
  expect_twin(machine,
              {.what = what, .rows = s.rows, .inputs = {&q, &gate, &keys, &stored, &positions, &counts}, .run = run});
}

TEST_P(Attention, Twin) {
  Random random(44);
  const auto expect = [&](const AttentionShape& s, Values values) {
    expect_attention_twin<float>(machine(), s, values, random);
    expect_attention_twin<std::uint16_t>(machine(), s, values, random);
  };
  for (const Values values : kAllValues) expect({3, 2, 2, 16, 70}, values);
  for (const std::size_t count :
       {1U, 2U, 3U, 31U, 62U, 63U, 64U, 65U, 126U, 127U, 128U, 129U, 191U, 192U, 193U, 255U, 256U, 257U, 298U, 300U})
    expect({2, 1, 2, 16, count, 16}, Values::kNormal);
  for (const std::size_t dim : {8U, 12U, 32U, 33U, 64U, 128U, 256U}) expect({2, 2, 3, dim, 67, dim}, Values::kNormal);
  for (const std::size_t per_kv : {1U, 2U, 3U, 12U}) expect({2, 3, per_kv, 16, 20, 5}, Values::kMixed);
  for (const std::size_t rows : kRowCounts) expect({rows, 2, 2, 16, 9}, Values::kNormal);
  expect({5, 2, 4, 64, 150, 64}, Values::kNormal);  // enough for all workers
  // Many rows of long lists, which a card cuts into few groups of two, four and sixteen segments.
  expect({18, 2, 2, 16, 600}, Values::kNormal);
  expect({20, 1, 12, 32, 1100}, Values::kNormal);
  expect({17, 1, 1, 8, 4200}, Values::kMixed);
}

// Keys that match the query by far leave the others e^-87 of weight: the clamp of exp_c.
TEST_P(Attention, OneSharpKey) {
  Random random(45);
  for (std::size_t n = 1; n <= 130; n += 43)
    expect_attention_twin<float>(machine(), {2, 1, 1, 16, n}, Values::kLarge, random);
}

// Values that vanish under their weights leave -0 in every segment; the padding of the tree turns it into +0.
TEST_P(Attention, SumsOfNegativeZero) {
  constexpr std::size_t kDim = 8;
  for (const std::size_t n : {64U, 128U, 129U, 192U, 300U}) {
    Floats q(1, kDim), gate(1, kDim), keys(n, kDim), values(n, kDim);
    q.fill([] { return 1e3F; });
    gate.fill([] { return 1.0F; });
    keys.fill([] { return -1.0F; });
    values.fill([] { return -1e-30F; });
    std::fill_n(keys.row(0), kDim, 1.0F);
    std::fill_n(values.row(0), kDim, 0.0F);
    std::vector<std::int32_t> positions(n), count = {static_cast<std::int32_t>(n)};
    for (std::size_t i = 0; i < n; ++i) positions[i] = static_cast<std::int32_t>(i);
    const KvView kv{KvType::kF32, keys.data(), values.data(), 1, kDim, n};
    const auto run = [&](Ops& ops, std::size_t, std::size_t, Results& results) {
      Floats& out = results.floats(1, kDim);
      ops.attention(rows_of(q), kv, {positions.data(), count.data(), 1, n}, 1.0F, rows_of(gate), kDim, rows_of(out));
      const std::size_t segments = (n + 63) / 64;
      EXPECT_EQ(std::signbit(out.data()[3]), segments == 1 || segments == 2) << n << " positions";
    };
    expect_twin(machine(), {.what = fmt::format("{} positions", n), .inputs = {&q, &gate, &keys, &values}, .run = run});
  }
}

class IndexBlocksTest : public MachineTest {};
INSTANTIATE_FOR_MACHINES(IndexBlocksTest);

// Blocks that a pass completes, from rows committed before, rows of an open window and rows of its own, wherever the
// borders lie: the mean and the rotation of the same rows taken from one list of all positions.
TEST_P(IndexBlocksTest, FromHistoryWindowAndPass) {
  constexpr std::size_t kRatio = 4, kDim = 32, kHalf = 8, kMost = 16;
  Random random(91);
  Floats all(64, kDim), gamma(1, kDim);
  for (Floats* array : {&all, &gamma}) array->fill([&] { return draw(random, Values::kNormal); });
  for (std::size_t pending = 0; pending <= kMost; ++pending)
    for (const std::size_t rows : {1U, 2U, 5U, 16U})
      for (std::size_t position = pending + kRatio; position < pending + 2 * kRatio; ++position) {
        const std::size_t committed = position - pending, first = position / kRatio;
        Floats history(kRatio - 1, kDim), window(kMost, kDim), keys(rows, kDim, 3);
        for (std::size_t i = 0; i < history.rows(); ++i)
          std::copy_n(all.row(committed - history.rows() + i), kDim, history.row(i));
        for (std::size_t i = 0; i < pending; ++i) std::copy_n(all.row(committed + i), kDim, window.row(i));
        for (std::size_t i = 0; i < rows; ++i) std::copy_n(all.row(position + i), kDim, keys.row(i));
        const std::size_t possible = rows / kRatio + 1, blocks = (position + rows) / kRatio - first;
        Floats cos(possible, kHalf), sin(possible, kHalf), pooled(16, kDim), expected(16, kDim);
        for (Floats* array : {&cos, &sin}) array->fill([&] { return random.uniform(-1.0F, 1.0F); });
        machine().index_blocks({{history.data(), window.data(), history.rows(), kDim},
                                pending,
                                rows_of(std::as_const(keys)),
                                position,
                                kRatio,
                                gamma.data(),
                                1e-6F,
                                {rows_of(std::as_const(cos)), rows_of(std::as_const(sin))},
                                pooled.data()});
        ReferenceOps reference;
        for (std::size_t b = 0; b < blocks; ++b) {
          Floats mean(1, kDim);
          reference.mean_pool(rows_of(std::as_const(all), (first + b) * kRatio, kRatio), kRatio, rows_of(mean));
          reference.norm_rope(rows_of(std::as_const(mean)), 1, kDim, kDim, gamma.data(), 1e-6F,
                              {rows_of(std::as_const(cos), b, 1), rows_of(std::as_const(sin), b, 1)},
                              Rows(expected.row(first + b), 1, kDim));
        }
        for (std::size_t b = 0; b < 16; ++b)
          ASSERT_EQ(std::memcmp(pooled.row(b), expected.row(b), kDim * sizeof(float)), 0)
              << "block " << b << ", position " << position << ", " << pending << " pending, " << rows << " rows";
      }
}

}  // namespace
}  // namespace tandem::testing
